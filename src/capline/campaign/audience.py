"""The audience of a campaign: sorted ids, the segment of each, and the further columns that messages need.

    file, bitmap or expression ─> ids, sorted, each once ─> codes by snapshot ─┐
    file, a second time        ─> columns in the order of the ids ─────────────┴─> Audience

Arrays, not objects: 5 bytes a subject for ids and codes, and the bytes of the texts where columns are asked for. 10
million ids are 50 MB.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from capline.model.errors import CampaignError
from capline.segment import expand, read_audience

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from capline.campaign.file import AudienceSource
    from capline.segment import Snapshot

__all__ = ["Audience", "read"]


@dataclass(frozen=True, slots=True)
class Audience:
    """Subject i is `ids[i]` (ascending), in the segment `segments[codes[i]]`; the first segment is None, for none.

    `texts` holds the further columns as Arrow arrays; `columns` gives a part of them.
    """

    ids: NDArray[np.uint32]
    codes: NDArray[np.integer[Any]]
    segments: tuple[str | None, ...]
    texts: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.ids)

    def sizes(self) -> tuple[tuple[str | None, int], ...]:
        """Each segment's name and number of subjects."""
        counts = np.bincount(self.codes, minlength=len(self.segments)).tolist()
        return tuple(zip(self.segments, counts, strict=True))

    def columns(self, rows: slice) -> dict[str, Sequence[str]]:
        """The further columns of some subjects, as texts; a null is an empty text."""
        count = rows.stop - rows.start
        return {
            name: [text or "" for text in values.slice(rows.start, count).to_pylist()]
            for name, values in self.texts.items()
        }

    def digest(self) -> str:
        """SHA-256 over everything in it but the segments, which the snapshot's version stands for."""
        digest = hashlib.sha256(self.ids.astype("<u4", copy=False).data)
        for name, values in self.texts.items():
            digest.update(f"\0{name}\0".encode())
            for start in range(0, len(values), 1 << 16):
                digest.update("\0".join(text or "" for text in values.slice(start, 1 << 16).to_pylist()).encode())
        return digest.hexdigest()


def read(source: AudienceSource, snapshot: Snapshot | None) -> Audience:
    """Read an audience and classify it; a `CaplineError` for anything in it that is no id, and where it is empty."""
    if source.kind == "segments":
        if snapshot is None:
            raise CampaignError("an expression over segments needs a snapshot")
        ids = snapshot.evaluate(source.expression).to_array()
        if not ids.size:
            raise CampaignError(f"audience {source.expression!r}: an empty audience; nobody is in it")
    else:
        ids = read_audience(source.paths, source.column, source.drop_duplicates).to_array()
    texts = _read_texts(source, ids) if source.columns else {}
    if snapshot is None:
        return Audience(ids, np.zeros(len(ids), np.uint8), (None,), texts)
    return Audience(ids, snapshot.codes(ids), (None, *snapshot.names), texts)


def _read_texts(source: AudienceSource, ids: NDArray[np.uint32]) -> dict[str, Any]:
    """Read the columns, in the order of the ids; of an id that comes twice (and may) the first row is taken."""
    # pyarrow ships no types: imported by name it is Any.
    pa: Any = import_module("pyarrow")
    table = import_module("capline.segment.table")
    found: list[NDArray[np.integer[Any]]] = []
    parts: dict[str, list[Any]] = {name: [] for name in source.columns}
    for path in expand(source.paths):
        for batch in table.read_columns(path, (source.column, *source.columns)):
            found.append(table.numbers(batch.arrays[0]))
            for name, array in zip(source.columns, batch.arrays[1:], strict=True):
                parts[name].append(_as_text(pa, array, path, name))
    unique, first = np.unique(np.concatenate(found), return_index=True)
    if not np.array_equal(unique, ids):
        raise CampaignError(f"{', '.join(source.paths)}: changed while it was read; run again when it is at rest")
    rows = pa.array(first)
    return {name: pa.concat_arrays(arrays).take(rows) for name, arrays in parts.items()}


def _as_text(pa: Any, array: Any, path: Path, name: str) -> Any:
    try:
        plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        return plain.cast(pa.large_string())
    except pa.ArrowException:
        raise CampaignError(f"{path}: column {name!r} holds {array.type}, which is no text; leave it out") from None
