"""A snapshot: one versioned, immutable set of disjoint segments; in memory an object that answers, on disk a directory.

    segments/2025-03-01/      the snapshot; the name is the publisher's choice
    ├── manifest.json         format, version, instant; of each segment name, file, cardinality, bytes, SHA-256; a seal
    ├── active.roaring        one file per segment: roaring's portable format, nothing before or after it
    ├── churned.roaring
    └── new.roaring

    manifest.json    {"format": "capline-segments", "format_version": 1, "version": "20250301T120000.000000Z",
                      "created_us": 1740830400000000, "exclusive": true,
                      "segments": [{"name": "active", "file": "active.roaring", "cardinality": 2000000,
                                    "bytes": 250012, "sha256": "9f86…"}, …],
                      "sha256": "<over every byte before this field>"}

The rule: a snapshot is served whole and proven, or not at all. Loading checks the manifest against its seal, each
file's size before reading it, its SHA-256, that it is exactly one bitmap of the stated cardinality, and that no id is
in two segments. Whatever fails is a `SegmentError`; there is no such thing as an empty segment because a file was
short.

Cost: a segment takes what its bitmap takes (270M ids in 4 segments: about 135 MB). Loading hashes and copies every byte
once.
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from capline.model.clock import SystemClock
from capline.model.errors import SegmentError, UnknownNameError
from capline.segment import files
from capline.segment.expression import Expression, parse_expression
from capline.segment.idset import LARGEST_SET_BYTES, LARGEST_UINT32, IdArray, IdSet, check_uint32, id_array
from capline.segment.manifest import (
    LARGEST_MANIFEST_BYTES,
    MANIFEST,
    SegmentEntry,
    check_names,
    decode_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Snapshot", "describe_overlap", "load_snapshot"]

Codes = npt.NDArray[np.uint8 | np.uint16]

_FEW = 256
"""Ids below which asking one by one beats setting up a table."""

_WINDOW_BITS = 26
"""Codes are looked up in a table for 2^26 ids at a time: 64 MiB (128 for uint16), whatever the ids are."""

_DENSE = 16
"""Ids in a window for each id asked, above which it pays to sort what was asked and look at those alone."""


class Snapshot:
    """Disjoint named sets of ids, in a fixed order; immutable, and safe for any number of reading threads.

    >>> snapshot = Snapshot({"new": IdSet([1, 2]), "active": IdSet([7])})
    >>> snapshot.segment_of(7), snapshot.segment_of(8)
    ('active', None)

    `version` is any text of up to 128 characters that names this state of the segments; left out, it is `created_us`,
    the instant of making in microseconds since 1970, written in UTC. Raises `SegmentError` for names that policies
    could not use, and for ids that are in two of the sets.
    """

    __slots__ = ("_probes", "_sets", "created_us", "names", "version")

    version: str
    created_us: int
    names: tuple[str, ...]

    def __init__(self, sets: Mapping[str, IdSet], version: str | None = None, created_us: int | None = None) -> None:
        self.created_us = SystemClock().now_us() if created_us is None else created_us
        self.version = _version(self.created_us) if version is None else version
        self.names = check_names(tuple(sets))
        self._sets = MappingProxyType(dict(sets))
        overlap = describe_overlap(self._sets)
        if overlap:
            raise SegmentError(overlap)
        # The largest first: most ids are found at the first look.
        largest_first = sorted(sets.items(), key=lambda item: -len(item[1]))
        self._probes = tuple((ids.probe(), name) for name, ids in largest_first)

    @property
    def sets(self) -> Mapping[str, IdSet]:
        """Each segment's ids by name, in order; read only."""
        return self._sets

    def cardinality(self, name: str) -> int:
        """How many ids the segment has."""
        return len(self._of(name))

    def contains(self, name: str, id: SupportsIndex) -> bool:
        """Whether the id is in this segment."""
        return id in self._of(name)

    def segment_of(self, id: SupportsIndex) -> str | None:
        """Name the segment that the id is in, None for none. 100 to 400 ns: a look at each segment.

        An id that is not 0 to 2^32-1 raises, and is never "in no segment": it cannot have been classified.
        """
        number = id if type(id) is int else check_uint32(id)
        try:
            for holds, name in self._probes:
                if holds(number):
                    return name
        except OverflowError:
            raise SegmentError(f"id {number} is not 0 to {LARGEST_UINT32}") from None
        return None

    def codes(self, ids: npt.NDArray[np.integer[Any]]) -> Codes:
        """Give the segment of each id, in any order, repeated or not: 0 for none, i for `names[i - 1]`.

        uint8 for up to 255 segments, else uint16. Raises like `segment_of`, for any one id. Cost: some 15 to 100 ns an
        id, and a table of at most 64 MiB (128 for uint16) while it runs.
        """
        wanted = id_array(ids)
        found = np.zeros(wanted.size, dtype=np.uint8 if len(self.names) <= np.iinfo(np.uint8).max else np.uint16)
        if wanted.size <= _FEW:
            code = {name: number for number, name in enumerate(self.names, start=1)}
            found[:] = [code.get(self.segment_of(one) or "", 0) for one in wanted.tolist()]
            return found
        first, last = int(wanted.min()) >> _WINDOW_BITS, int(wanted.max()) >> _WINDOW_BITS
        if first == last:
            return self._look_up(wanted, found.dtype)
        window = wanted >> _WINDOW_BITS
        for number in range(first, last + 1):
            places = np.flatnonzero(window == number)
            if places.size:
                found[places] = self._look_up(wanted[places], found.dtype)
        return found

    def _look_up(self, wanted: IdArray, dtype: np.dtype[Any]) -> Codes:
        """Codes of ids that lie in one window: write the segments into a table, then read it at the ids."""
        low, high = int(wanted.min()), int(wanted.max())
        near = IdSet.from_range(low, high)
        population = sum(ids.overlap(near) for ids in self._sets.values())
        if population > _DENSE * wanted.size:
            near = IdSet.from_array(wanted)
        table = np.zeros(high - low + 1, dtype=dtype)
        for code, ids in enumerate(self._sets.values(), start=1):
            table[(ids & near).to_array() - np.uint32(low)] = code
        return table[wanted - np.uint32(low)]

    def classify(self, audience: IdSet) -> dict[str | None, IdSet]:
        """Split the audience by segment, in the order of `names`; last, under None, those in no segment.

        Every name is there, empty or not. The parts are disjoint and their union is the audience. About 10 ns an id.
        """
        parts: dict[str | None, IdSet] = {name: audience & ids for name, ids in self._sets.items()}
        parts[None] = audience - IdSet.union(tuple(parts.values()))
        return parts

    def members(self, name: str, after: int | None = None, limit: int = 1000) -> list[int]:
        """Return a page of the segment's ids, ascending: at most `limit` above `after`; see `IdSet.page`."""
        return self._of(name).page(after, limit)

    def evaluate(self, expression: str | Expression) -> IdSet:
        """Return the ids that an expression such as `(active | new) - churned` names; see its module."""
        parsed = parse_expression(expression) if not isinstance(expression, Expression) else expression
        return parsed.evaluate(self._sets)

    def __repr__(self) -> str:
        return f"<Snapshot {self.version}: {', '.join(f'{name} {len(ids)}' for name, ids in self._sets.items())}>"

    def _of(self, name: str) -> IdSet:
        try:
            return self._sets[name]
        except KeyError:
            raise UnknownNameError(f"no segment {name!r}; there are: {', '.join(self.names)}") from None


def load_snapshot(path: str | Path) -> Snapshot:
    """Read and verify the snapshot in this directory; `SegmentError` for anything that is not exactly what was written.

    A directory that is replaced while it is being read is read again: the answer is the old snapshot or the new one.
    """
    while True:
        directory = files.open_directory(path)
        try:
            return _read(directory, Path(path))
        except SegmentError:
            if _is_still(directory, path):
                raise
        finally:
            os.close(directory)


def describe_overlap(sets: Mapping[str, IdSet]) -> str | None:
    """None where the sets are disjoint, else how many ids are in two or more, and the first ten with their segments."""
    # One union instead of every pair: it stays linear for a thousand segments.
    if sum(map(len, sets.values())) == len(IdSet.union(tuple(sets.values()))):
        return None
    seen, twice = IdSet(), IdSet()
    for ids in sets.values():
        twice |= seen & ids
        seen |= ids
    first = twice.page(limit=10)
    listed = ", ".join(f"{one} ({' and '.join(name for name, ids in sets.items() if one in ids)})" for one in first)
    return f"{len(twice)} id{'s are' if len(twice) > 1 else ' is'} in two segments or more: {listed}" + (
        ", …" if len(twice) > len(first) else ""
    )


def _read(directory: int, path: Path) -> Snapshot:
    where = str(path / MANIFEST)
    manifest = decode_manifest(files.read(MANIFEST, LARGEST_MANIFEST_BYTES, directory=directory, shown=where), where)
    sets = {entry.name: _read_segment(directory, path, entry) for entry in manifest.segments}
    try:
        return Snapshot(sets, manifest.version, manifest.created_us)
    except SegmentError as error:
        raise SegmentError(f"{path}: {error}") from None


def _read_segment(directory: int, path: Path, entry: SegmentEntry) -> IdSet:
    where = str(path / entry.file)
    data = files.read(entry.file, min(entry.bytes, LARGEST_SET_BYTES), directory=directory, shown=where)
    if len(data) != entry.bytes:
        raise SegmentError(f"{where}: {len(data)} bytes, and the manifest says {entry.bytes}; it is cut short")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise SegmentError(
            f"{where}: does not match the SHA-256 in the manifest; it is damaged: build the snapshot again"
        )
    ids = IdSet.from_bytes(data, where)
    if len(ids) != entry.cardinality:
        raise SegmentError(f"{where}: {len(ids)} ids, and the manifest says {entry.cardinality}")
    return ids


def _is_still(directory: int, path: str | Path) -> bool:
    try:
        return os.path.samestat(os.fstat(directory), Path(path).stat())
    except OSError:
        return True


def _version(created_us: int) -> str:
    second, micros = divmod(created_us, 1_000_000)
    return f"{datetime.fromtimestamp(second, UTC):%Y%m%dT%H%M%S}.{micros:06d}Z"
