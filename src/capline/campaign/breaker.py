"""The circuit breaker: stops a campaign when too many messages in a row were not sent.

    closed    fewer than `threshold` messages in a row were not sent
    failing   at least `threshold`: the rest of the batch waits while these messages are retried
    open      the retries have used up their attempts: the campaign stops early and can be resumed, or of a worker its
              batches are due later; messages that were not sent have not failed

The rule: only first tries count, and each message that is sent resets the count. Where a request has many messages it
counts as one, and one of its messages that is sent resets the count. Retries are a selection of the worst,
so they do not count: a batch of 10,000 with 30 full mailboxes is no outage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from capline.campaign.store.rows import DELIVERED
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SenderFailingError(CampaignError):
    """The breaker is open: so many messages in a row were not sent that the campaign stops early, or waits."""

    def __init__(self, why: str, threshold: int) -> None:
        super().__init__(
            f"stopped early: {why}; fix that and run the same command again; the sender's option 'breaker' "
            f"({threshold}, 0 for never) says after how many"
        )
        self.why = why


@dataclass(slots=True)
class Breaker:
    """Counts over all batches of a run; a `threshold` of 0 never fails."""

    threshold: int
    in_a_row: int = 0
    size: int = 1
    """Messages in a request."""

    @property
    def is_failing(self) -> bool:
        """Whether too many messages in a row were not sent."""
        return 0 < self.threshold <= self.in_a_row

    def count(self, states: NDArray[np.uint8], first: NDArray[np.bool_]) -> None:
        """Count a send: its rows' states now, and which rows were tried for the first time."""
        requests = np.arange(len(states)) // self.size
        sent = requests[states == DELIVERED]
        if sent.size:
            self.in_a_row = 0
            first = first & (requests > sent[-1])
        self.in_a_row += np.unique(requests[first]).size
