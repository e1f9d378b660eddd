"""The state of each limit right after an answer: what a decision says of all limits together, limit by limit.

A decision keeps what its atomic step has read; the values here are built from that when a caller reads `limits`. So
they cost next to nothing otherwise, and never change when the log does.
"""

from collections.abc import Sequence
from operator import itemgetter

import msgspec

from capline.model.limit import Limit, QuietHours
from capline.model.policy import LogLimits, places_of

NUMBERS = 3
"""Numbers of one state: units left (below 0: past the quota), microseconds until more are left, until all are left."""


class LimitStatus(msgspec.Struct, frozen=True, gc=False):
    """One limit of a policy, right after an answer.

    `limit`        the limit
    `remaining`    units that it would still allow; for quiet hours 0 while they hold, else 2^53 - 1
    `frees_in_us`  microseconds until it allows more than that: 0 if nothing of it is used, None for never (quota 0)
    `whole_in_us`  microseconds until nothing of it is used any more, if nothing else is recorded; 0 for a quota of 0
    `name`         the policy, or `policy/channel` for a limit of a channel
    `past`         units past its quota: charged whatever the limits say, or used under a larger quota
    `shadow`       whether its policy is in shadow, so that it refuses nobody, and no header tells of it
    """

    limit: Limit
    remaining: int
    frees_in_us: int | None
    whole_in_us: int
    name: str = ""
    past: int = 0
    shadow: bool = False

    @property
    def used(self) -> int:
        """Units of it that are used, which may be more than its quota; for quiet hours 0."""
        return 0 if isinstance(self.limit, QuietHours) else self.limit.quota - self.remaining + self.past

    @property
    def frees_in(self) -> float | None:
        """`frees_in_us` in seconds."""
        return None if self.frees_in_us is None else self.frees_in_us / 1e6

    @property
    def whole_in(self) -> float:
        """`whole_in_us` in seconds."""
        return self.whole_in_us / 1e6


def states_of(logs: Sequence[LogLimits], numbers: Sequence[int]) -> tuple[LimitStatus, ...]:
    """The state of every limit in the policy's order, from three numbers for each limit in the order of the logs."""
    states: list[LimitStatus] = []
    at, moved = 0, False
    for log_limits in logs:
        title = log_limits.title
        moved = moved or bool(log_limits.places)
        for limit in log_limits.limits:
            left, frees_in_us, whole_in_us = numbers[at], numbers[at + 1], numbers[at + 2]
            at += NUMBERS
            if limit.quota == 0 and not isinstance(limit, QuietHours):
                frees_in_us = None
            if left >= 0:
                states.append(LimitStatus(limit, left, frees_in_us, whole_in_us, title))
            else:
                states.append(LimitStatus(limit, 0, frees_in_us, whole_in_us, title, -left))
    if moved:
        states = [state for _, state in sorted(zip(places_of(logs), states, strict=True), key=itemgetter(0))]
    return tuple(states)
