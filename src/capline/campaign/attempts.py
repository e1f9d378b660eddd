"""The attempts of a batch: who makes one, and what the limiter says. A run decides or charges, a plan peeks.

excluded      never asked, never sent
held out      not sent; what `peek` says is kept, so that those who would have been refused can be told apart
the others    decided; of a transactional campaign charged, whatever the limits say
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capline.campaign.prepare import limiter_kinds
from capline.campaign.store.packed import subjects
from capline.campaign.store.rows import EXCLUDED, HELD_OUT, BatchRows
from capline.model.errors import CampaignError, StoreError
from capline.store.columns import Decisions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.campaign.file import CampaignFile
    from capline.campaign.part import Part
    from capline.limiter.limiter import Limiter
    from capline.model.policy import Policy

AGAIN = "nothing is lost: fix it and run the same command again"


@dataclass(frozen=True, slots=True)
class Attempts:
    """Makes the attempts of a batch at its limiter; `segments` and `zones` are what the codes of a part stand for."""

    limiter: Limiter
    file: CampaignFile
    policy: Policy
    segments: tuple[str | None, ...]
    zones: tuple[str | None, ...]

    def begin(self, part: Part) -> BatchRows:
        """The rows of a batch that is to be decided, less those who are excluded or held out."""
        rows = BatchRows.undecided(part.number, self.limiter.now_us(), part.ids, part.codes)
        excluded, held_out = self.file.left_out(part.ids)
        rows.state[excluded], rows.state[held_out] = EXCLUDED, HELD_OUT
        if (peeked := np.flatnonzero(held_out)).size:
            rows.take_decisions(peeked, self.peek(part, peeked))
        return rows

    def decide(
        self, part: Part, rows: NDArray[np.intp], receipt: str, keep_free: NDArray[np.int64] | None = None
    ) -> Decisions:
        """Decide these rows, once under a receipt; `CampaignError` where one cannot be.

        `keep_free`: units for each row and limit.
        """
        if self.file.transactional:
            return self._charge(part, rows, receipt)
        answers = self._many(part, rows, receipt, keep_free)
        for row, error in answers.errors.items():
            kind = type(error) if isinstance(error, StoreError) else CampaignError
            raise kind(f"subject {part.ids[rows[row]]} could not be decided: {error}; {AGAIN}")
        return answers

    def peek(self, part: Part, rows: NDArray[np.intp]) -> Decisions:
        """What the limiter would answer for these rows now."""
        return _allowed(np.full(len(rows), -1)) if self.file.transactional else self._many(part, rows, None)

    def kinds(self, part: Part) -> tuple[list[str | None], list[str | None] | None, NDArray[np.integer[Any]]]:
        """The segments and zones of a part as the limiter takes them, and the codes into both."""
        return limiter_kinds(self.policy, part, self.segments, self.zones)

    def _many(
        self, part: Part, rows: NDArray[np.intp], receipt: str | None, keep_free: NDArray[np.int64] | None = None
    ) -> Decisions:
        names, zones, codes = self.kinds(part)
        named: dict[str, Any] = {"segment": names, "codes": codes[rows], "channel": self.file.channel, "zone": zones}
        ids, cost = subjects(part.ids[rows]), self.file.cost
        if receipt is None:
            return self.limiter.peek_many(self.policy.name, ids, cost=cost, **named)
        if keep_free is not None and keep_free.any():
            named["keep_free"] = keep_free
        return self.limiter.decide_many(self.policy.name, ids, cost=cost, receipt=receipt, **named)

    def _charge(self, part: Part, rows: NDArray[np.intp], receipt: str) -> Decisions:
        """One at a time; the receipt is the hit's id, which counts once."""
        channel = self.file.channel
        hits = [
            self.limiter.charge(self.policy.name, subject, self.file.cost, receipt, channel=channel).hit
            for subject in part.ids[rows].tolist()
        ]
        return _allowed(np.array(hits, np.int64))


def _allowed(hits: NDArray[np.int64]) -> Decisions:
    size = len(hits)
    zeros = np.zeros(size, np.int64)
    return Decisions((), np.ones(size, bool), np.full(size, -1, np.int16), zeros, zeros, zeros, hits)
