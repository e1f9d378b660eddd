"""Building segments: rows of (id, segment) become sets, and the exclusive ones are verified to be disjoint.

The rule: no id is in two exclusive segments. Rows that break it are an error that lists the ids, unless an order
resolves it: `first_wins=["new", "active"]` puts an id of both into `new`. Segments declared `overlapping` (audiences,
hold-outs) may share ids with any. The order of the rows never matters: the same rows give the same snapshot, however
they are shuffled or split over files.

Up to 4 million rows at a time are sorted into bitmaps, so memory holds the bitmaps and 4 million rows. Eight bitmaps of
a segment are united at a time. Text ids are numbered on the way (`number_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from capline.model.errors import SegmentError
from capline.segment.build.source import NONE, Rows
from capline.segment.dictionary.idfile import Group
from capline.segment.manifest import MOST_SEGMENTS, check_names
from capline.segment.sets.idset import IdArray, IdSet, set_type
from capline.segment.snapshot.snapshot import describe_overlap

if TYPE_CHECKING:
    from capline.segment.build.source import TextRows
    from capline.segment.dictionary.dictionary import Dictionary, DictionaryBuilder
    from capline.segment.snapshot.snapshot import Snapshot

_GATHERED = 4_000_000
_GATHERED_TEXTS = 2_000_000
_PARTS = 8


def build_segments(
    rows: Iterable[Rows],
    first_wins: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None,
    *,
    kind: str = "uint32",
    overlapping: Collection[str] = (),
    partial: bool = False,
    builder: DictionaryBuilder | None = None,
) -> dict[str, IdSet]:
    """Unite the rows into sets by segment, ready for a `Snapshot`.

    `first_wins` names every exclusive segment, the strongest first, which is also their final order. A name without
    rows becomes an empty segment, so that every day's snapshot has the same segments. Without it the names are sorted,
    and ids in two exclusive segments raise `SegmentError` with their number and the first ten (as texts if `builder`
    numbered them). Duplicate rows are fine. `overlapping` names the segments that may share ids; they come last, with
    or without rows. A `partial` build may have ids in two segments: `merge` resolves them. `kind` is that of the rows'
    ids: `uint32` (also the numbers of texts) or `uint64`.

    `progress` is called with the number of rows so far. Cost: about 0.1 s for a million rows in random order.
    """
    order = None if first_wins is None else check_names(tuple(first_wins))
    parts: dict[str, list[IdSet]] = {name: [] for name in (*(order or ()), *overlapping)}
    gathered: dict[str, list[IdArray]] = {}
    count = total = 0
    for batch in rows:
        for name, ids in _by_segment(batch):
            if order is not None and name not in parts:
                raise _not_in_order(name, order)
            gathered.setdefault(name, []).append(ids)
        count += batch.ids.size
        total += batch.ids.size
        if progress is not None:
            progress(total)
        if count >= _GATHERED:
            _to_bitmaps(gathered, parts, set_type(kind))
            count = 0
    _to_bitmaps(gathered, parts, set_type(kind))
    sets = {name: set_type(kind).union(parts.pop(name)) for name in list(parts)}
    if partial:
        return {name: sets[name] for name in sorted(sets)}
    texts = None if builder is None else builder.dictionary()
    return make_disjoint(sets, order, overlapping, texts=texts)


def change_segments(
    before: Snapshot, rows: Iterable[Rows], builder: DictionaryBuilder | None = None
) -> dict[str, IdSet]:
    """The sets of a snapshot with some ids moved: each row says where its id is from now on, `-` for nowhere.

    Rows name exclusive segments; the overlapping ones stay as they are. Raises like `build_segments`.
    """
    kind = "uint32" if before.kind == "text" else before.kind
    moved = build_segments(rows, kind=kind, partial=True)
    for name in moved:
        if name not in (*before.names, NONE):
            raise SegmentError(f"segment {name!r} is not one of {', '.join(before.names)}; `-` stands for none of them")
    if overlap := describe_overlap(moved, None if builder is None else builder.dictionary()):
        raise SegmentError(f"{overlap}; say once where an id goes")
    out = set_type(kind).union(list(moved.values()))
    return {
        name: (ids - out) | moved.get(name, type(ids)()) if name in before.names else ids
        for name, ids in before.sets.items()
    }


def number_rows(
    rows: Iterable[TextRows], builder: DictionaryBuilder, progress: Callable[[int], object] | None = None
) -> Iterator[Rows]:
    """Give each text id its number: rows with text ids become rows with uint32 ids. About 1 µs a row."""
    waiting: list[TextRows] = []
    count = total = 0
    for batch in rows:
        waiting.append(batch)
        count += batch.codes.size
        total += batch.codes.size
        if progress is not None:
            progress(total)
        if count >= _GATHERED_TEXTS:
            yield from _numbered(waiting, builder)
            waiting.clear()
            count = 0
    yield from _numbered(waiting, builder)


def _numbered(waiting: list[TextRows], builder: DictionaryBuilder) -> Iterator[Rows]:
    """Number many batches at once, which is cheaper for each text."""
    by_length: dict[int, list[Group]] = {}
    start = 0
    for batch in waiting:
        for group in batch.groups:
            by_length.setdefault(group.length_bytes, []).append(group._replace(places=group.places + start))
        start += batch.codes.size
    groups = [
        Group(length, np.concatenate([group.places for group in some]), np.concatenate([group.cells for group in some]))
        for length, some in by_length.items()
    ]
    numbers = builder.numbers(groups, start)
    start = 0
    for batch in waiting:
        yield Rows(numbers[start : start + batch.codes.size], batch.codes, batch.names)
        start += batch.codes.size


def make_disjoint(
    sets: dict[str, IdSet],
    order: Sequence[str] | None,
    overlapping: Collection[str],
    *,
    texts: Dictionary | None = None,
) -> dict[str, IdSet]:
    """Verify that the exclusive sets are disjoint, or make them so by the order; return them in their final order."""
    names = sorted(name for name in sets if name not in overlapping) if order is None else list(order)
    for name in sets:
        if name not in names and name not in overlapping:
            raise _not_in_order(name, names)
    both = [name for name in names if name in overlapping]
    if both:
        raise SegmentError(f"segment {both[0]!r} may overlap, so it has no place in the order; leave it out there")
    kind = type(next(iter(sets.values()))) if sets else IdSet
    exclusive = {name: sets.get(name, kind()) for name in names}
    if order is not None:
        exclusive = _first_wins(exclusive, kind)
    elif overlap := describe_overlap(exclusive, texts):
        raise SegmentError(f"{overlap}; fix the rows, or state which segment wins (first_wins, --first-wins)")
    return {**exclusive, **{name: sets[name] for name in sorted(overlapping)}}


def _not_in_order(name: str, order: Sequence[str]) -> SegmentError:
    return SegmentError(f"segment {name!r} is not in the order {','.join(order)}; the order names every segment")


def _by_segment(batch: Rows) -> list[tuple[str, IdArray]]:
    """Split the batch's ids by name, with one stable sort of the codes: a radix sort, if 16 bits hold them."""
    short = len(batch.names) <= 1 << 16  # a dictionary of Parquet may have more, unused ones
    ids = batch.ids[np.argsort(batch.codes.astype(np.uint16) if short else batch.codes, kind="stable")]
    ends = np.cumsum(np.bincount(batch.codes, minlength=len(batch.names))).tolist()
    starts = [0, *ends[:-1]]
    return [(name, ids[start:end]) for name, start, end in zip(batch.names, starts, ends, strict=True) if start < end]


def _to_bitmaps(gathered: dict[str, list[IdArray]], parts: dict[str, list[IdSet]], kind: type[IdSet]) -> None:
    for name, arrays in gathered.items():
        some = parts.setdefault(name, [])
        some.append(kind.from_array(np.concatenate(arrays)))
        # Bitmaps of rows in random order are thin: a few of them are larger than their union.
        if len(some) == _PARTS:
            some[:] = [kind.union(some)]
    if len(parts) > MOST_SEGMENTS:
        raise SegmentError(f"more than {MOST_SEGMENTS} different segments; is the segment column the right one?")
    gathered.clear()


def _first_wins(sets: dict[str, IdSet], kind: type[IdSet]) -> dict[str, IdSet]:
    taken = kind()
    won: dict[str, IdSet] = {}
    for name, ids in sets.items():
        won[name] = ids - taken
        taken |= ids
    return won
