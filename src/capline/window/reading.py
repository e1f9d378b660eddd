"""What logs say together: the time of an attempt, its stamp, when it fits, and when quiet hours let it be."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from capline.model.limit import Limit
from capline.window.bound_log import BoundLog
from capline.window.limit_reader import QuietReader
from capline.window.log import NEVER

__all__ = [
    "MOST_TURNS",
    "Binding",
    "Stamped",
    "fits_all",
    "newest_of",
    "opens_from",
    "stamp_from",
    "tightest_of",
    "time_of",
]


Binding = tuple[Limit, BoundLog]
"""The binding limit of an answer, and the log that it is on."""


Stamped = Sequence[tuple[Sequence[BoundLog], int]]
"""The logs of each part, and the stamp that its hit would have."""


def time_of(logs: Sequence[BoundLog], now_us: int) -> int:
    """The attempt's time: now, or the latest high-water mark of its logs."""
    return max([now_us, *(bound.log.high_water_us for bound in logs)])


def newest_of(logs: Sequence[BoundLog]) -> int:
    """The newest stamp of a hit with units in any of the logs."""
    return max([bound.log.newest_us() for bound in logs])


def stamp_from(logs: Sequence[BoundLog], time_us: int, newest_us: int) -> int:
    """The first stamp at or after this instant that is later than every hit with units and free in every log."""
    stamp_us = max(time_us, newest_us + 1)
    while True:
        free_us = max([bound.log.free_stamp(stamp_us) for bound in logs])
        if free_us == stamp_us:
            return stamp_us
        stamp_us = free_us


def fits_all(logs: Sequence[BoundLog], time_us: int) -> tuple[int | None, int, Binding | None]:
    """When the attempt fits every limit (None: never), when it is allowed, and the limit that blocks it longest.

    It is allowed earlier than it fits by the stamp shift (`LimitReader.stamp_shift_us`), and stamped when it fits. The
    limit is None if the attempt fits already: an earlier block would depend on which old hits happen to be trimmed.
    """
    latest_us, latest_early_us, binding = NEVER, NEVER, None
    for bound in logs:
        for reader in bound.readers:
            fits_us = reader.fits_us(bound.log, bound.cost, bound.table)
            if fits_us is None:
                return None, NEVER, (reader.limit, bound)
            latest_early_us = max(latest_early_us, fits_us - reader.stamp_shift_us(bound.log, fits_us))
            if fits_us > latest_us:
                latest_us, binding = fits_us, (reader.limit, bound) if fits_us > time_us else None
    return latest_us, latest_early_us, binding


MOST_TURNS = 64
"""After so many quiet hours in a row the answer is that there is no free instant."""


def opens_from(stamped: Stamped, at_us: int = NEVER) -> tuple[int | None, Binding | None]:
    """The first instant at or after `at_us` that no quiet hours forbid for any part, and the last quiet hours that did.

    None if there is no such instant. `at_us` itself (`NEVER`: now) if none forbid it.
    """
    quiet = [
        (reader, bound, stamp_us)
        for logs, stamp_us in stamped
        for bound in logs
        for reader in bound.readers
        if isinstance(reader, QuietReader)
    ]
    binding = None
    for _ in range(MOST_TURNS if quiet else 0):
        before_us = at_us
        for reader, bound, stamp_us in quiet:
            asked_us = max(at_us, stamp_us)
            opens_us = reader.opens_us(asked_us, bound.table)
            if opens_us > asked_us:
                at_us, binding = opens_us, (reader.limit, bound)
        if at_us == before_us:
            return at_us, binding
    return (None, binding) if quiet else (at_us, None)


def tightest_of(logs: Sequence[BoundLog], stamp_us: int) -> Binding | None:
    """The limit of this part with the fewest units left."""
    found = [
        (reader.left(bound.log, stamp_us, bound.table), (reader.limit, bound))
        for bound in logs
        for reader in bound.readers
    ]
    return min(found, key=itemgetter(0))[1] if found else None
