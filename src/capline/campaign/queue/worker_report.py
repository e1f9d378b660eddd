"""What a worker did: batch by batch, and in all."""

from collections.abc import Sequence

import msgspec
import numpy as np

from capline.campaign.store.rows import DELIVERED, NOT_KNOWN, REFUNDED, REFUSED, STATES, BatchRows


class DeliveredBatch(msgspec.Struct, frozen=True):
    """A batch that this worker delivered."""

    campaign: str
    batch: int
    rows: int
    sent: int
    refused: int
    failed: int
    not_known: int
    elapsed_s: float
    delays: dict[str, list[int]]
    """By segment, as in `BatchRows.delays`."""


class WorkerReport(msgspec.Struct):
    """What a worker did. `sent`, `refused`, `failed` and `not_known` count the subjects of the batches it delivered.

    `lost` batches went to another worker, `aside` became dead letters; `trouble` counts campaigns that did not open.
    """

    worker: str
    settled: int = 0
    subjects: int = 0
    sent: int = 0
    refused: int = 0
    failed: int = 0
    not_known: int = 0
    lost: int = 0
    aside: int = 0
    trouble: int = 0

    def add(self, batch: DeliveredBatch) -> None:
        """Count a batch."""
        self.settled += 1
        self.subjects += batch.rows
        for count in ("sent", "refused", "failed", "not_known"):
            setattr(self, count, getattr(self, count) + getattr(batch, count))


def delivered_batch(campaign: str, rows: BatchRows, elapsed_s: float, segments: Sequence[str | None]) -> DeliveredBatch:
    """What became of the subjects of a batch that took so long."""
    states: list[int] = np.bincount(rows.state, minlength=STATES).tolist()
    return DeliveredBatch(
        campaign,
        rows.number,
        len(rows),
        states[DELIVERED],
        states[REFUSED],
        states[REFUNDED],
        states[NOT_KNOWN],
        round(elapsed_s, 3),
        {segments[code] or "": counts for code, counts in rows.delays.items()},
    )
