"""What numbers take over where a policy kept hits before: its limits begin with what its log shows.

The algorithms that keep numbers have a log for each limit, beside the policy's own log, which was that of the hits. A
limit whose log has nothing yet takes over what the hits within its window add up to, at most its quota: as one sum at
their newest stamp, or at this instant where that is in an earlier window and would count for less; as a level, now.
Nothing is written for that alone: until an attempt is recorded, the next one reads the hits again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.window.counters import LevelReader
from capline.window.log import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capline.window.bound_log import BoundLog, OpenLog

__all__ = ["carry_hits"]


def carry_hits(logs: Sequence[BoundLog], now_us: int, empty: Callable[[], OpenLog]) -> None:
    """Give the logs of single limits what the policy's own log, the first, shows, where none of them has anything.

    `empty` makes a log of its own. A log that several policies have shows hits of the others too, so there nothing is
    taken over.
    """
    own = logs[0]
    if (
        own.log_limits.keeps != "ids"
        or own.log_limits.shared
        or any(bound.log.last_us() != NEVER for bound in logs[1:])
    ):
        return
    newest_us = own.log.newest_us()
    at_us = max(now_us, own.log.high_water_us, newest_us)
    for bound in logs[1:] if newest_us != NEVER else ():
        reader, window_us = bound.readers[0], bound.readers[0].limit.window_us
        units = min(reader.limit.quota, own.log.units_after(at_us - window_us))
        if units <= 0:
            continue
        bound.log, bound.rewrites = empty(), True
        if isinstance(reader, LevelReader):
            bound.log.record(at_us, units * reader.rise, 0)
        else:
            bound.log.record(newest_us if newest_us // window_us == at_us // window_us else at_us, units, 0)
