"""The rate of sending: `rate: 5000/s`, kept together by all campaigns and workers that name the same `rate_key`.

Each hand-over takes a slot by `schedule`, of as many units as it has messages, in the limits' store:

    capline-rate    KEY   a hit for each hand-over
    capline/rates   KEY   one hit a day, whose id is the rate: another rate under the key is refused

The rule: the receiver never sees more. What leaves at its slot arrives up to a jitter later, a 25th of the rate's
window, so the window is widened by that (`Limit.margin`): 96 % of the rate is used. Who is late for a slot takes
another. Messages of one hand-over leave together, so it has at most as many as the sender sends at once.

A slot within a second is waited for; else nothing is taken, and the batch is due later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capline.model.errors import CampaignConflictError
from capline.model.limit import Limit
from capline.model.policy import Policy

if TYPE_CHECKING:
    from capline.campaign.file import CampaignFile
    from capline.limiter.limiter import Limiter

_RATE, _RATES, _ONE_RATE = "capline-rate", "capline/rates", "1/day"
LONGEST_WAIT_S = 1.0
_JITTERS = 25
"""Jitters in a window. Half of one is for the way, a quarter to wake up, a quarter to store what is handed over."""
_PIECES = 10
"""A window has room for at least so many hand-overs, so that its messages do not all come at once."""


def claim_rate(limiter: Limiter, file: CampaignFile) -> None:
    """Make this rate that of its key, or find that it is; `CampaignConflictError` where the key has another."""
    if file.rate is not None and not limiter.decide(_RATES, file.rate_key, id=str(file.rate), limits=[_ONE_RATE]):
        raise CampaignConflictError(
            f"{file.path}: rate_key {file.rate_key!r} has another rate than {file.rate} in the store, of a campaign "
            "of the last day; write that one, or name another key"
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """The slots of a campaign's hand-overs, `most` messages each."""

    limiter: Limiter
    key: str
    most: int
    slack_s: float

    @classmethod
    def of(cls, file: CampaignFile, limiter: Limiter) -> Pace | None:
        """The pace of a campaign; None without a rate."""
        if file.rate is None:
            return None
        quota, jitter_us = file.rate.quota, file.rate.window_us // _JITTERS
        most = max(1, min(file.sender.at_once, quota // _PIECES))
        # So many that they fill the window, but for a hundredth.
        most = next(size for size in range(most, 0, -1) if quota % size <= quota // 100)
        limits = Limit.margin(str(file.rate), jitter=f"{jitter_us}us", cost=most)
        # No limits of its own for each call: those would have a log of their own for each size of a hand-over.
        return cls(limiter.beside([Policy(_RATE, limits)]), file.rate_key, most, jitter_us / 4e6)

    def turn(self, messages: int) -> float:
        """Wait for the slot of so many messages; returns until when they may leave, by `time.monotonic`.

        Raises `LimitExceeded` where there is none within a second.
        """
        with self.limiter.acquire(_RATE, self.key, messages, timeout=LONGEST_WAIT_S, slack=self.slack_s):
            return time.monotonic() + self.slack_s
