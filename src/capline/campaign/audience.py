"""The audience of a campaign: sorted ids with their segments and zones, and the columns that messages need.

    file, bitmap or expression ─> ids, sorted, each once ─> codes by snapshot ─┐
    file, a second time        ─> columns in the order of the ids ─────────────┴─> Audience

All as arrays: 5 bytes a subject for ids and codes, 2 for zones, and the texts of the columns. 10 million ids are 50 MB.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from capline.model.errors import CampaignError, UnknownNameError
from capline.model.zone import check_zone
from capline.segment import expand, read_audience

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from capline.campaign.file import AudienceSource
    from capline.segment import Snapshot

MOST_ZONES = 1024
"""Distinct zones in one audience; some 600 names exist."""


@dataclass(frozen=True, slots=True)
class Audience:
    """Subject i is `ids[i]` (ascending), in the segment `segments[codes[i]]`; the first segment is None, for none.

    `texts` holds the further columns as Arrow arrays; `columns` returns rows of them. Subject i is in the time zone
    `zones[zone_codes[i]]`; the first zone is None, for the policy's. Without a column of zones, `zone_codes` is None.
    """

    ids: NDArray[np.uint32]
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

    def digest(self) -> str:
        """SHA-256 over everything but the segments, which are an input of their own."""
        digest = hashlib.sha256(self.ids.astype("<u4", copy=False).data)
        for name, values in self.texts.items():
            digest.update(f"\0{name}\0".encode())
            for start in range(0, len(values), 1 << 16):
                digest.update("\0".join(text or "" for text in values.slice(start, 1 << 16).to_pylist()).encode())
        if self.zone_codes is not None:
            digest.update("\0".join(("", "", *(zone or "" for zone in self.zones))).encode())
            digest.update(self.zone_codes.astype("<u2", copy=False).data)
        return digest.hexdigest()


def read(source: AudienceSource, snapshot: Snapshot | None) -> Audience:
    """Read an audience and its segments; raises a `CaplineError` for a bad id, and for an empty audience."""
    if source.kind == "segments":
        if snapshot is None:
            raise CampaignError("an expression over segments needs a snapshot")
        ids = snapshot.evaluate(source.expression).to_array()
        if not ids.size:
            raise CampaignError(f"audience {source.expression!r}: an empty audience; nobody is in it")
    else:
        ids = read_audience(source.paths, source.column, source.drop_duplicates).to_array()
    texts, zones, zone_codes = _read_columns(source, ids)
    if snapshot is None:
        return Audience(ids, np.zeros(len(ids), np.uint8), (None,), texts, zones, zone_codes)
    return Audience(ids, snapshot.codes(ids), (None, *snapshot.names), texts, zones, zone_codes)


def _read_columns(
    source: AudienceSource, ids: NDArray[np.uint32]
) -> tuple[dict[str, Any], tuple[str | None, ...], NDArray[np.uint16] | None]:
    """Read texts, zones and zone codes, in the order of the ids. Of duplicates the first row counts."""
    if not source.columns and source.zone_column is None:
        return {}, (None,), None
    # pyarrow ships no types: imported by name it is Any.
    pa: Any = import_module("pyarrow")
    table = import_module("capline.segment.build.table")
    found: list[NDArray[np.integer[Any]]] = []
    parts: dict[str, list[Any]] = {name: [] for name in source.columns}
    zones = None if source.zone_column is None else _Zones(source.zone_column)
    names = tuple(dict.fromkeys((*source.columns, *(() if zones is None else (zones.column,)))))
    for path in expand(source.paths):
        with table.read_columns(path, (source.column, *names)) as batches:
            for batch in batches:
                found.append(table.numbers(batch.arrays[0]))
                for name, array in zip(names, batch.arrays[1:], strict=True):
                    if name in parts:
                        parts[name].append(_as_text(pa, array, path, name))
                    if zones is not None and name == zones.column:
                        is_encoded = pa.types.is_dictionary(array.type)
                        encoded = array if is_encoded else _as_text(pa, array, path, name).dictionary_encode()
                        points = encoded.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
                        zones.add(points, encoded.dictionary.to_pylist(), path, batch.first_row)
    unique, first = np.unique(np.concatenate(found), return_index=True)
    if not np.array_equal(unique, ids):
        raise CampaignError(f"{', '.join(source.paths)}: changed while it was read; run again when it is at rest")
    rows = pa.array(first)
    texts = {name: pa.concat_arrays(arrays).take(rows) for name, arrays in parts.items()}
    if zones is None:
        return texts, (None,), None
    return texts, *zones.done(first)


class _Zones:
    """Gathers the column of zones as codes. Each distinct text is checked once; an empty one is the policy's zone."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._code_of: dict[str, int] = {"": 0}
        self._codes: list[NDArray[np.uint16]] = []

    def add(self, points: NDArray[np.int32], texts: Sequence[object], path: Path, first_row: int) -> None:
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


def _as_text(pa: Any, array: Any, path: Path, name: str) -> Any:
    try:
        plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        return plain.cast(pa.large_string())
    except pa.ArrowException:
        raise CampaignError(f"{path}: column {name!r} holds {array.type}, which is no text; leave it out") from None
