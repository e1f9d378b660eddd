"""The audience of a campaign: sorted ids with their segments and zones, and the columns that messages need.

    rows                 ─> ids, sorted, each once ─> codes by snapshot ─┐
      └─────────────────────> columns in the order of the ids ────────────┴─> Audience
    bitmap or expression ─> ids

All as arrays: 5 bytes a subject for ids and codes (9 for ids above 2^32, 17 and the id for text), 2 for zones, and the
texts of the columns. 10 million ids are 50 MB, 10 million UUIDs 530.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from capline.model.errors import CampaignError, UnknownNameError, quoted
from capline.model.subject import LARGEST_ID
from capline.model.zone import check_zone
from capline.segment import expand, read_audience, read_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from capline.campaign.store.packed import Ids
    from capline.model.subject import Subject
    from capline.segment import Snapshot
    from capline.segment.build.inputs import Input

MOST_ZONES = 1024
"""Distinct zones in one audience; some 600 names exist."""

_SLICE = 1 << 16
_LISTED = 10
_MOST_DIGITS = len(str(LARGEST_ID))


@dataclass(frozen=True, slots=True)
class AudienceSource:
    """Where the audience comes from: `kind` is csv, parquet, bitmap (then `paths`) or segments (then `expression`).

    `columns` are for senders; `zone_column` (None: there is none) names each subject's time zone. `ids` is number or
    text; None: as a Parquet file has them, and numbers in CSV.
    """

    kind: str
    paths: tuple[str, ...] = ()
    expression: str = ""
    column: str = "id"
    columns: tuple[str, ...] = ()
    drop_duplicates: bool = False
    zone_column: str | None = None
    ids: str | None = None


@dataclass(frozen=True, slots=True)
class TextIds:
    """Ids of text, ascending: `order` has their places in an Arrow array. Rows of them are an array of texts."""

    texts: Any
    order: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, rows: slice | NDArray[np.integer[Any]]) -> Ids:
        return np.array(self.texts.take(self.order[rows]).to_pylist(), object)

    def find(self, ids: Ids) -> NDArray[np.intp]:
        """The row of each of these ids."""

        def text_at(place: Any) -> str:
            return self.texts[place].as_py()

        return np.array([bisect_left(self.order, each, key=text_at) for each in ids.tolist()], np.intp)


@dataclass(frozen=True, slots=True)
class Audience:
    """Subject i is `ids[i]` (ascending), in the segment `segments[codes[i]]`; the first segment is None, for none.

    `texts` holds the further columns as Arrow arrays; `columns` returns rows of them. Subject i is in the time zone
    `zones[zone_codes[i]]`; the first zone is None, for the policy's. Without a column of zones, `zone_codes` is None.
    """

    ids: Ids | TextIds
    codes: NDArray[np.integer[Any]]
    segments: tuple[str | None, ...]
    texts: Mapping[str, Any]
    zones: tuple[str | None, ...] = (None,)
    zone_codes: NDArray[np.uint16] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def sizes(self) -> tuple[tuple[str | None, int], ...]:
        """Each segment's name and number of subjects."""
        counts = np.bincount(self.codes, minlength=len(self.segments)).tolist()
        return tuple(zip(self.segments, counts, strict=True))

    def columns(self, rows: NDArray[np.integer[Any]]) -> dict[str, Sequence[str]]:
        """The further columns of some subjects, as texts; a null is an empty text."""
        return {name: [text or "" for text in values.take(rows).to_pylist()] for name, values in self.texts.items()}

    @property
    def kind(self) -> str:
        """The ids' kind: uint32, uint64 or text."""
        return _kind(self.ids)

    def find(self, ids: Ids) -> NDArray[np.intp]:
        """The row of each of these ids, which are in it."""
        return self.ids.find(ids) if isinstance(self.ids, TextIds) else np.searchsorted(self.ids, ids)

    def row_of(self, subject: Subject) -> int | None:
        """The row of a subject of the ids' kind; None where it is not in it."""
        row = int(self.find(np.array([subject], object if isinstance(subject, str) else np.uint64))[0])
        return row if self.ids[row : row + 1].tolist() == [subject] else None

    def only(self, ids: Sequence[str]) -> Audience:
        """These of it; `CampaignError` for one who is not in it."""
        rows: list[int] = []
        for each in ids:
            is_number = each.isascii() and each.isdecimal() and len(each) <= _MOST_DIGITS and int(each) <= LARGEST_ID
            subject = each if self.kind == "text" else int(each) if is_number else None
            row = None if subject is None else self.row_of(subject)
            if row is None:
                raise CampaignError(f"only: {quoted(each)} is not in the audience")
            rows.append(row)
        some = np.array(sorted(rows), np.intp)
        found = TextIds(self.ids.texts, self.ids.order[some]) if isinstance(self.ids, TextIds) else self.ids[some]
        texts = {name: values.take(some) for name, values in self.texts.items()}
        zones = None if self.zone_codes is None else self.zone_codes[some]
        return Audience(found, self.codes[some], self.segments, texts, self.zones, zones)

    def digest(self) -> str:
        """SHA-256 over everything but the segments, which are an input of their own."""
        digest = hashlib.sha256()
        for start in range(0, len(self), _SLICE):
            some = self.ids[start : start + _SLICE]
            little = some.astype(some.dtype.newbyteorder("<"), copy=False)
            digest.update("\0".join(["", *some.tolist()]).encode() if some.dtype == object else little.data)
        for name, values in self.texts.items():
            digest.update(f"\0{name}\0".encode())
            for start in range(0, len(values), 1 << 16):
                digest.update("\0".join(text or "" for text in values.slice(start, 1 << 16).to_pylist()).encode())
        if self.zone_codes is not None:
            digest.update("\0".join(("", "", *(zone or "" for zone in self.zones))).encode())
            digest.update(self.zone_codes.astype("<u2", copy=False).data)
        return digest.hexdigest()


def _kind(ids: Ids | TextIds) -> str:
    return "text" if isinstance(ids, TextIds) else str(ids.dtype)


def read(source: AudienceSource, snapshot: Snapshot | None) -> Audience:
    """Read an audience and its segments; raises a `CaplineError` for a bad id, and for an empty audience."""
    if source.kind in ("csv", "parquet"):
        ids, texts, zones, zone_codes = _read_rows(source)
    else:
        ids, texts, zones, zone_codes = _read_set(source, snapshot), {}, (None,), None
    if snapshot is None:
        return Audience(ids, np.zeros(len(ids), np.uint8), (None,), texts, zones, zone_codes)
    kind = _kind(ids)
    if kind != snapshot.kind and (kind, snapshot.kind) != ("uint32", "uint64"):
        raise CampaignError(f"the ids of the segments are {snapshot.kind}, the audience's {kind}: build them so")
    parts = (ids[start : start + _SLICE] for start in range(0, len(ids), _SLICE))
    codes = np.concatenate([snapshot.codes(part.tolist() if kind == "text" else part) for part in parts])
    return Audience(ids, codes, (None, *snapshot.names), texts, zones, zone_codes)


def _read_set(source: AudienceSource, snapshot: Snapshot | None) -> Ids | TextIds:
    """The ids of a bitmap file, or of an expression over the segments."""
    if source.kind == "bitmap":
        return read_audience(source.paths).to_array()
    if snapshot is None:
        raise CampaignError("an expression over segments needs a snapshot")
    numbers = snapshot.evaluate(source.expression).to_array()
    if not numbers.size:
        raise CampaignError(f"audience {source.expression!r}: an empty audience; nobody is in it")
    if snapshot.ids is None:
        return numbers
    pa: Any = import_module("pyarrow")
    gathered = _Texts()
    for start in range(0, numbers.size, _SLICE):
        texts = [snapshot.ids.text(number) for number in numbers[start : start + _SLICE].tolist()]
        gathered.add(pa.array(texts, pa.large_string()))
    return gathered.sorted()[0]


def _read_rows(
    source: AudienceSource,
) -> tuple[Ids | TextIds, dict[str, Any], tuple[str | None, ...], NDArray[np.uint16] | None]:
    """Read ids, texts, zones and zone codes, in the order of the ids. Of duplicates the first row counts."""
    # pyarrow ships no types: imported by name it is Any.
    pa: Any = import_module("pyarrow")
    shown = ", ".join(source.paths)
    numbers, words = _Numbers(), _Texts()
    parts: dict[str, list[Any]] = {name: [] for name in source.columns}
    zones = None if source.zone_column is None else _Zones(source.zone_column)
    names = tuple(dict.fromkeys((*source.columns, *(() if zones is None else (zones.column,)))))
    text = None if source.ids is None else source.ids == "text"
    for path in expand(source.paths):
        for ids, batch in read_ids(path, source.column, names, text=text):
            (numbers if isinstance(ids, np.ndarray) else words).add(ids)
            for name, array in zip(names, batch.arrays[1:], strict=True):
                if name in parts:
                    parts[name].append(_as_text(pa, array, path, name))
                if zones is not None and name == zones.column:
                    is_encoded = pa.types.is_dictionary(array.type)
                    encoded = array if is_encoded else _as_text(pa, array, path, name).dictionary_encode()
                    points = encoded.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
                    zones.add(points, encoded.dictionary.to_pylist(), path, batch.first_row)
    if not (numbers.count or words.count):
        raise CampaignError(f"{shown}: an empty audience; name at least one id")
    if numbers.count and words.count:
        raise CampaignError(f"{shown}: ids are numbers in one file and text in another; store them as one of these")
    ids, order = numbers.sorted() if numbers.count else words.sorted()
    repeated = np.concatenate([[False], _repeats(ids)])
    if repeated.any():
        if not source.drop_duplicates:
            raise CampaignError(f"{shown}: {_duplicates(ids, repeated)}")
        kept = np.flatnonzero(~repeated)
        ids, order = ids[kept] if isinstance(ids, np.ndarray) else replace(ids, order=order[kept]), order[kept]
    rows = pa.array(order)
    texts = {name: pa.concat_arrays(parts.pop(name)).take(rows) for name in source.columns}
    return (ids, texts, (None,), None) if zones is None else (ids, texts, *zones.done(order))


def _repeats(ids: Ids | TextIds) -> NDArray[np.bool_]:
    """Which ids, of the second on, are the same as the one before."""
    spans = (ids[start : start + _SLICE + 1] for start in range(0, len(ids) - 1, _SLICE))
    return np.concatenate([np.empty(0, bool), *(np.equal(span[1:], span[:-1]).astype(bool) for span in spans)])


def _duplicates(ids: Ids | TextIds, repeated: NDArray[np.bool_]) -> str:
    again = np.flatnonzero(repeated & ~np.concatenate([[False], repeated[:-1]]))
    surplus = int(repeated.sum())
    listed = ", ".join(map(str, ids[again[:_LISTED]].tolist())) + (", …" if again.size > _LISTED else "")
    return (
        f"{again.size} id{'s come' if again.size > 1 else ' comes'} more than once ({surplus} row"
        f"{'s' if surplus > 1 else ''} too many): {listed}; remove them, or write 'duplicates: drop'"
    )


class _Numbers:
    """Gathers ids that are numbers."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[NDArray[np.uint64]] = []

    def add(self, ids: Any) -> None:
        self.count += ids.size
        self._parts.append(ids)

    def sorted(self) -> tuple[Ids, NDArray[np.intp]]:
        """The ids, ascending, in 32 bits where they fit; and the row of each."""
        ids = np.concatenate(self._parts)
        self._parts.clear()
        if int(ids.max()) <= np.iinfo(np.uint32).max:
            ids = ids.astype(np.uint32)
        order = np.argsort(ids, kind="stable")
        return ids[order], order


class _Texts:
    """Gathers ids that are texts, in one piece of memory that grows."""

    def __init__(self) -> None:
        self.count = 0
        self._data = bytearray()
        self._ends: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]

    def add(self, ids: Any) -> None:
        """Add a column of Arrow's large strings."""
        _, offsets, data = ids.buffers()
        ends = np.frombuffer(offsets, np.int64, len(ids) + 1, 8 * ids.offset)
        self._ends.append(ends[1:] - ends[0] + len(self._data))
        if len(ids):
            self._data += memoryview(data)[ends[0] : ends[-1]]
        self.count += len(ids)

    def sorted(self) -> tuple[TextIds, NDArray[np.intp]]:
        """The ids, ascending; and the row of each."""
        pa: Any = import_module("pyarrow")
        pa.default_memory_pool().release_unused()  # what reading took
        ends = np.concatenate(self._ends)
        self._ends.clear()
        texts = pa.LargeStringArray.from_buffers(self.count, pa.py_buffer(ends), pa.py_buffer(self._data))
        order = import_module("pyarrow.compute").sort_indices(texts).to_numpy().view(np.intp)
        return TextIds(texts, order), order


class _Zones:
    """Gathers the column of zones as codes. Each distinct text is checked once; an empty one is the policy's zone."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._code_of: dict[str, int] = {"": 0}
        self._codes: list[NDArray[np.uint16]] = []

    def add(self, points: NDArray[np.int32], texts: Sequence[object], path: Input, first_row: int) -> None:
        """Add rows, the first of them `first_row`: `points` are indices into `texts`, -1 for an empty cell.

        Raises `CampaignError` with the row of an unknown zone.
        """
        names = [*(str(text or "") for text in texts), ""]
        # Only texts that rows use are checked.
        used: list[int] = np.unique(points).tolist()
        for name, place in ((names[place], place) for place in used if names[place] not in self._code_of):
            try:
                check_zone(name)
            except UnknownNameError as error:
                row = first_row + int(np.argmax(points == place))
                raise CampaignError(
                    f"{path}, row {row}: {self.column}: {error}; leave it empty for the policy's zone"
                ) from None
            if len(self._code_of) > MOST_ZONES:
                raise CampaignError(f"{path}: column {self.column!r} has more than {MOST_ZONES} different zones")
            self._code_of[name] = len(self._code_of)
        self._codes.append(np.array([self._code_of.get(name, 0) for name in names], np.uint16)[points])

    def done(self, rows: NDArray[np.intp]) -> tuple[tuple[str | None, ...], NDArray[np.uint16]]:
        """The zones, sorted by name, and the code of each of these rows."""
        codes = np.concatenate(self._codes)[rows]
        names = sorted(self._code_of)
        rank = np.empty(len(names), np.uint16)
        rank[[self._code_of[name] for name in names]] = np.arange(len(names))
        return (None, *names[1:]), rank[codes]


def _as_text(pa: Any, array: Any, path: Input, name: str) -> Any:
    try:
        plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        return plain.cast(pa.large_string())
    except pa.ArrowException:
        raise CampaignError(f"{path}: column {name!r} holds {array.type}, which is not text; leave it out") from None
