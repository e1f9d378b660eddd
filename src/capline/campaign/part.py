"""A part of an audience: the subjects of one batch, with their segments and columns, in memory and as bytes.

    ids                     ascending (`store.packed`)
    codes    u16 * rows     segment: 0 for none, i for the i-th one
    zones    u16 * rows     where the audience has a column of them: 0 for the policy's own, i for the i-th one
    columns                 the texts of each

One after the other, little-endian, deflated; zlib's checksum (Adler-32) detects damage.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from capline.campaign.store.packed import damaged, inflate, pack_ids, pack_texts, unpack_ids, unpack_texts
from capline.campaign.store.rows import LARGEST_BATCH
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from capline.campaign.store.packed import Ids
    from capline.campaign.store.records import Claimed, StoredRun

LARGEST_PART_BYTES = 64 << 20
"""Before deflating: what a worker holds for one batch."""


@dataclass(frozen=True, slots=True)
class Part:
    """The subjects of batch `number`: subject i is `ids[i]` (ascending), in the segment that `codes[i]` points to.

    `zone_codes[i]` points to its time zone; None where all have the policy's.
    """

    number: int
    ids: Ids
    codes: NDArray[np.integer[Any]]
    columns: Mapping[str, Sequence[str]]
    zone_codes: NDArray[np.integer[Any]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, which: NDArray[np.bool_]) -> Part:
        """The subjects that a mask selects."""
        columns = {name: [*compress(texts, which)] for name, texts in self.columns.items()}
        zone_codes = None if self.zone_codes is None else self.zone_codes[which]
        return Part(self.number, self.ids[which], self.codes[which], columns, zone_codes)

    def pack(self) -> bytes:
        """As bytes; `CampaignError` where the columns are too large."""
        pieces = [pack_ids(self.ids), self.codes.astype("<u2").tobytes()]
        if self.zone_codes is not None:
            pieces.append(self.zone_codes.astype("<u2").tobytes())
        pieces += [pack_texts(texts) for texts in self.columns.values()]
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
        """Unpack the bytes of a part; `CampaignError` where they are damaged.

        `segments`: how many there are, none included; `zones` likewise, the policy's included, and 0 for no column.
        """
        raw = inflate(data, LARGEST_PART_BYTES, number)
        if not 0 <= rows <= LARGEST_BATCH:
            raise damaged(number)
        ids, end = unpack_ids(raw, rows, number)
        coded: list[NDArray[np.uint16]] = []
        for kinds in filter(None, (segments, zones)):
            if len(raw) < end + 2 * rows:
                raise damaged(number)
            coded.append(np.frombuffer(raw, "<u2", rows, end).astype(np.uint16))
            end += 2 * rows
            if rows and int(coded[-1].max()) >= kinds:
                raise damaged(number)
        columns: dict[str, Sequence[str]] = {}
        for name in names:
            columns[name], end = unpack_texts(raw, end, rows, number)
        if end != len(raw):
            raise damaged(number)
        return cls(number, ids, coded[0], columns, coded[1] if zones else None)
