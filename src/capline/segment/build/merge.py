"""Merging partial builds: parts of the rows are built apart, on any machines, and then united in one step.

    part-0000/  part-0001/  ...     partial snapshots: `capline segments build --partial`, or `write_snapshot(partial=)`
          └─────────┴────> merge    sets of one name are united, disjointness is verified (or made by an order)

The rule: a merge of parts equals one build of all their rows, with the same errors and the same order of precedence.

For text ids, each part has its own numbers and its own small dictionary. Merging looks up the part's texts in the
permanent dictionary, adds new ones, and renumbers the part's sets. One part is in memory at a time.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from capline.model.errors import SegmentError
from capline.segment.build.build import make_disjoint
from capline.segment.dictionary.dictionary import DictionaryBuilder
from capline.segment.dictionary.idfile import Group
from capline.segment.sets.idset import IdSet, set_type
from capline.segment.snapshot.load import load_partial
from capline.segment.snapshot.snapshot import Snapshot


def merge_partials(
    paths: Sequence[str | Path],
    first_wins: Sequence[str] | None = None,
    version: str | None = None,
    *,
    builder: DictionaryBuilder | None = None,
    progress: Callable[[int], object] | None = None,
) -> Snapshot:
    """Unite partial snapshots (or whole ones), all of one kind of ids, into one whole snapshot.

    `first_wins` as in `build_segments`; `builder` is the kept dictionary, for text ids; `progress` is called with the
    number of parts done. A segment must be exclusive in all parts that have it, or overlapping in all.
    """
    if not paths:
        raise SegmentError("no partial snapshot named; give at least one")
    sets: dict[str, IdSet] = {}
    declared: dict[str, bool] = {}
    kind: str | None = None
    for done, path in enumerate(paths, start=1):
        part = load_partial(path)
        if kind not in (None, part.kind):
            raise SegmentError(f"{path}: its ids are {part.kind}, and those of the parts before it {kind}")
        kind = part.kind
        if (kind == "text") != (builder is not None):
            fix = "say where their dictionary is kept (--ids)" if kind == "text" else "leave out --ids"
            raise SegmentError(f"{path}: its ids are {kind}; {fix}")
        for name in part.sets:
            exclusive = name in part.names
            if declared.setdefault(name, exclusive) != exclusive:
                raise SegmentError(f"{path}: segment {name!r} may overlap in some of the parts and not in others")
        renumber = None if builder is None else _renumber(part, builder)
        for name, ids in part.sets.items():
            moved = ids if renumber is None else IdSet.from_array(renumber[ids.to_array()])
            sets[name] = sets[name] | moved if name in sets else moved
        if progress is not None:
            progress(done)
    if first_wins is not None:
        sets = {**{name: set_type(kind or "")() for name in first_wins}, **sets}
    overlapping = [name for name, exclusive in declared.items() if not exclusive]
    ids = None if builder is None else builder.dictionary()
    return Snapshot(make_disjoint(sets, first_wins, overlapping, texts=ids), version, overlapping=overlapping, ids=ids)


def _renumber(part: Snapshot, builder: DictionaryBuilder) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    if part.ids is None:
        raise SegmentError("a part with text ids lacks its dictionary")
    kept = np.zeros(len(part.ids), dtype=np.uint32)
    for length, cells, numbers in part.ids.groups():
        kept[numbers] = builder.numbers([Group(length, np.arange(len(cells)), cells)], len(cells))
    return kept
