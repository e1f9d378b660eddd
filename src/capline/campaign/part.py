"""A part of an audience: the subjects of one batch, with their segments and columns, in memory and as bytes.

    ids      u32 * rows     ascending, delta-coded: each minus the one before it, so dense ids deflate well
    codes    u16 * rows     segment: 0 for none, i for the i-th one
    zones    u16 * rows     where the audience has a column of them: 0 for the policy's own, i for the i-th one
    columns  for each       u32 * rows, the lengths in bytes of its texts; then the texts, UTF-8, one after the other

One after the other, little-endian, deflated; zlib's checksum (Adler-32) detects damage. Dense ids without columns take
less than a byte a subject.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capline.campaign.store.rows import LARGEST_BATCH, damaged, inflate
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from capline.campaign.store.records import Claimed, StoredRun

LARGEST_PART_BYTES = 64 << 20
"""Before deflating: what a worker holds for one batch."""


@dataclass(frozen=True, slots=True)
class Part:
    """The subjects of batch `number`: subject i is `ids[i]` (ascending), in the segment that `codes[i]` points to.

    `zone_codes[i]` points to its time zone; None where all have the policy's.
    """

    number: int
    ids: NDArray[np.uint32]
    codes: NDArray[np.integer[Any]]
    columns: Mapping[str, Sequence[str]]
    zone_codes: NDArray[np.integer[Any]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def pack(self) -> bytes:
        """As bytes; `CampaignError` where the columns are too large."""
        pieces = [np.diff(self.ids, prepend=np.uint32(0)).astype("<u4").tobytes(), self.codes.astype("<u2").tobytes()]
        if self.zone_codes is not None:
            pieces.append(self.zone_codes.astype("<u2").tobytes())
        for texts in self.columns.values():
            encoded = [text.encode() for text in texts]
            pieces += [np.array([len(text) for text in encoded], "<u4").tobytes(), *encoded]
        size_bytes = sum(map(len, pieces))
        if size_bytes > LARGEST_PART_BYTES:
            raise CampaignError(
                f"batch {self.number} has {size_bytes} bytes with its columns, at most {LARGEST_PART_BYTES} can be "
                "queued; write a smaller 'batch:'"
            )
        return zlib.compress(b"".join(pieces), level=1)

    @classmethod
    def claimed(cls, claimed: Claimed, run: StoredRun) -> Part:
        """The subjects of a batch of this run; `CampaignError` where they are damaged."""
        kinds = len(run.facts.segments), len(run.zones)
        return cls.unpack(claimed.number, claimed.rows, claimed.data, run.columns, *kinds)

    @classmethod
    def unpack(cls, number: int, rows: int, data: bytes, names: Sequence[str], segments: int, zones: int = 0) -> Part:
        """What was packed; `CampaignError` where it is not that.

        `segments`: how many there are, none included; `zones` likewise, the policy's included, and 0 for no column.
        """
        raw = inflate(data, LARGEST_PART_BYTES, number)
        fixed = 8 if zones else 6
        if not 0 < rows <= LARGEST_BATCH or len(raw) < rows * (fixed + 4 * len(names)):
            raise damaged(number)
        deltas = np.frombuffer(raw, "<u4", rows)
        sums = np.cumsum(deltas, dtype=np.uint64)
        codes = np.frombuffer(raw, "<u2", rows, 4 * rows).astype(np.uint16)
        zone_codes = np.frombuffer(raw, "<u2", rows, 6 * rows).astype(np.uint16) if zones else None
        if sums[-1] > np.iinfo(np.uint32).max or not deltas[1:].all() or int(codes.max()) >= segments:
            raise damaged(number)
        if zone_codes is not None and int(zone_codes.max()) >= zones:
            raise damaged(number)
        columns: dict[str, Sequence[str]] = {}
        offset = fixed * rows
        for name in names:
            columns[name], offset = _texts(number, raw, rows, offset)
        if offset != len(raw):
            raise damaged(number)
        return cls(number, sums.astype(np.uint32), codes, columns, zone_codes)


def _texts(number: int, raw: bytes, rows: int, offset: int) -> tuple[list[str], int]:
    if len(raw) < offset + 4 * rows:
        raise damaged(number)
    ends = np.cumsum(np.frombuffer(raw, "<u4", rows, offset), dtype=np.uint64).tolist()
    start = offset + 4 * rows
    if start + ends[-1] > len(raw):
        raise damaged(number)
    try:
        texts = [raw[start + left : start + right].decode() for left, right in zip([0, *ends], ends, strict=False)]
    except UnicodeDecodeError:
        raise damaged(number) from None
    return texts, start + ends[-1]
