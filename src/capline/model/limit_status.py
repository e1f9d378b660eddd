"""The state of each limit right after an answer: what a decision names once for all limits, told limit by limit.

A decision carries what its atomic step saw, and the values here are made from that when somebody asks. So they cost a
caller who does not ask next to nothing, and never change when the log does.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from capline.model.limit import Limit, QuietHours

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capline.model.policy import LogLimits

__all__ = ["NUMBERS", "LimitStatus", "states_of"]

NUMBERS = 3
"""Numbers that make one state: units left, microseconds until there are more, microseconds until there are all."""


class LimitStatus(msgspec.Struct, frozen=True, gc=False):
    """One limit of a policy, right after an answer.

    `limit`        the limit
    `remaining`    units that it would still allow; for quiet hours 0 while they hold, else 2^53 - 1
    `frees_in_us`  microseconds until it allows more than that: 0 where nothing of it is used, None for never (a quota
                   of 0)
    `whole_in_us`  microseconds until nothing of it is used any more, were nothing else recorded
    `name`         the policy, or `policy/channel` for a limit of a channel
    """

    limit: Limit
    remaining: int
    frees_in_us: int | None
    whole_in_us: int
    name: str = ""

    @property
    def frees_in(self) -> float | None:
        """`frees_in_us` in seconds."""
        return None if self.frees_in_us is None else self.frees_in_us / 1e6

    @property
    def whole_in(self) -> float:
        """`whole_in_us` in seconds."""
        return self.whole_in_us / 1e6


def states_of(logs: Iterable[LogLimits], numbers: Sequence[int]) -> tuple[LimitStatus, ...]:
    """The state of every limit, in the policy's order, from three numbers for each in the order of the looks."""
    placed: list[tuple[int, LimitStatus]] = []
    for log_limits in logs:
        before = len(placed)
        places = log_limits.places or range(before, before + len(log_limits.limits))
        for limit, place in zip(log_limits.limits, places, strict=True):
            left, frees_in_us, whole_in_us = numbers[NUMBERS * len(placed) : NUMBERS * (len(placed) + 1)]
            never = limit.quota == 0 and not isinstance(limit, QuietHours)
            state = LimitStatus(limit, left, None if never else frees_in_us, whole_in_us, log_limits.title)
            placed.append((place, state))
    return tuple([state for _, state in sorted(placed, key=itemgetter(0))])
