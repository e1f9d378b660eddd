"""What one limit reads from a log, and how a hit is put into it: all that the algorithms differ in.

    sliding_log       the rule itself: units of the hits within the window, or since midnight
    bucketed          the same rule; hits of one sub-window are kept as one, stamped with the newest of them
    the others        see `counters.py`

A reader answers four questions, each a pure function of a log: from when on a cost fits, how many units are left, when
there are more, and when nothing counts any more. All arithmetic is in whole numbers below 2^53, so that a script on a
server, which has only doubles, comes to the same answer.
"""

# ruff: noqa: ARG002 - every reader is asked alike, whatever it needs

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capline.model.limit import LARGEST_QUOTA, Limit, QuietHours
from capline.model.override import override
from capline.window.calendar import ends_us, open_us, starts_us
from capline.window.log import NEVER

if TYPE_CHECKING:
    from capline.model.zone import ZoneTable
    from capline.window.log import LogView

__all__ = [
    "CalendarReader",
    "LimitReader",
    "QuietReader",
    "RollingReader",
]

MOST_SHIFTED_US = 64
"""So many hits of one instant are told apart from hits of neighbouring instants, where refusals count."""


class LimitReader(msgspec.Struct, frozen=True):
    """One limit, as an algorithm reads it. `table` is the zone's, and empty where no limit asks for one.

    What is written here fits an algorithm that keeps no hits; each adds `fits_us`, `left` and `more_us`.
    """

    limit: Limit

    def fits_us(self, log: LogView, cost: int, table: ZoneTable) -> int | None:
        """From when on this cost fits, given that nothing more is recorded; None: never.

        Where that is not later than the newest hit, it says only so.
        """
        raise NotImplementedError

    def stamp_shift_us(self, log: LogView, fits_us: int) -> int:
        """How much earlier than this answer of `fits_us` an attempt is let in, to be stamped with it."""
        return 0

    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        """Units that are left at this instant, which is not before the newest hit; may be negative."""
        raise NotImplementedError

    def left_then(self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable) -> int:
        """Units that were left when the hit of this stamp was recorded, as far as the log tells: up to the horizon.

        Without hits the log tells of now only.
        """
        return self.left(log, max(now_us, log.newest_us()), table)

    def fits_in(self, log: LogView, at_us: int, units: int, horizon_us: int) -> bool:
        """Whether a log that is charged these units at this instant holds no more than can be counted exactly."""
        return log.units_after(horizon_us) + units <= self.most_units

    @property
    def most_units(self) -> int:
        """The most units of one log: numbers stay whole below 2^53 in all that is computed from them."""
        return LARGEST_QUOTA

    def more_us(self, log: LogView, at_us: int, cost: int, table: ZoneTable) -> int:
        """From when on more is left than at this instant, right after a hit of this cost there (0: none).

        `NEVER` where all is left. It says something else where the quota is 0, which never has more.
        """
        raise NotImplementedError

    def more_then_us(self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable) -> int:
        """How long after the instant that `left_then` tells of there was more left than then."""
        at_us = max(now_us, log.newest_us())
        return max(0, self.more_us(log, at_us, 0, table) - at_us)

    def empty_us(self, log: LogView, last_us: int, cost: int, table: ZoneTable) -> int:
        """From when on nothing counts, where the newest hit, this one of `cost` (0: none), is stamped `last_us`."""
        return self.frees_us(last_us, table)

    def frees_us(self, stamp_us: int, table: ZoneTable) -> int:
        """From when on a hit of this stamp does not count; `NEVER` where hits are not counted one by one."""
        return NEVER


class _LogReader(LimitReader, frozen=True):
    """Units of the hits that are later than a cutoff."""

    def cutoff_us(self, at_us: int, table: ZoneTable) -> int:
        """Hits as old as this do not count at that instant."""
        raise NotImplementedError

    @override
    def fits_us(self, log: LogView, cost: int, table: ZoneTable) -> int | None:
        """One look by position."""
        quota = self.limit.quota
        if cost > quota:
            return None
        oldest_us = log.stamp_of_unit(quota - cost + 1)
        return NEVER if oldest_us == NEVER else self.frees_us(oldest_us, table)

    @override
    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        return self.limit.quota - log.units_after(self.cutoff_us(at_us, table))

    @override
    def left_then(self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable) -> int:
        since_us = max(self.cutoff_us(stamp_us, table), horizon_us)
        return self.limit.quota - log.units_after(since_us) + log.units_after(stamp_us)

    @override
    def more_us(self, log: LogView, at_us: int, cost: int, table: ZoneTable) -> int:
        """When one unit more than is left would fit, or this hit is out, if it is the only one."""
        left = max(0, self.left(log, at_us, table))
        if left < self.limit.quota:
            fits_us = self.fits_us(log, left + 1, table)
            return NEVER if fits_us is None else fits_us
        return self.frees_us(at_us, table) if cost else NEVER

    @override
    def more_then_us(self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable) -> int:
        later = log.units_after(stamp_us)
        used = log.units_after(max(self.cutoff_us(stamp_us, table), horizon_us)) - later
        oldest = min(used, self.limit.quota)
        return self.frees_us(log.stamp_of_unit(later + oldest), table) - stamp_us if oldest > 0 else 0


class RollingReader(_LogReader, frozen=True):
    """The last so many microseconds; a hit exactly as old as the window is out.

    Hits of one instant are stamped a microsecond apart, and each next attempt of another instant as well: so they make
    room for each other just in time. Where refusals are stamped among them that does not come out, and
    `stamp_shift_us` tells how much earlier than its stamp a hit may really have been.
    """

    shifted: bool = False

    @override
    def cutoff_us(self, at_us: int, table: ZoneTable) -> int:
        return at_us - self.limit.window_us

    @override
    def frees_us(self, stamp_us: int, table: ZoneTable) -> int:
        return stamp_us + self.limit.window_us

    @override
    def stamp_shift_us(self, log: LogView, fits_us: int) -> int:
        if not self.shifted or fits_us == NEVER:
            return 0
        first_us = last_us = fits_us - self.limit.window_us
        while last_us - first_us < MOST_SHIFTED_US and log.next_stamp(first_us - 1) == first_us - 1:
            first_us -= 1
        return last_us - first_us


class CalendarReader(_LogReader, frozen=True):
    """Since the day or the week began; a hit at midnight itself is the new day's."""

    @override
    def cutoff_us(self, at_us: int, table: ZoneTable) -> int:
        return starts_us(table, self.limit.window_us, at_us) - 1

    @override
    def frees_us(self, stamp_us: int, table: ZoneTable) -> int:
        return ends_us(table, self.limit.window_us, stamp_us)


class QuietReader(LimitReader, frozen=True):
    """Quiet hours ask the clock alone: `opens_us` is looked at once all else is settled."""

    limit: QuietHours

    def opens_us(self, at_us: int, table: ZoneTable) -> int:
        """The first instant from this one on that is not quiet."""
        return open_us(table, self.limit.from_us, self.limit.until_us, at_us)

    @override
    def fits_us(self, log: LogView, cost: int, table: ZoneTable) -> int | None:
        return NEVER

    @override
    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        return LARGEST_QUOTA if self.opens_us(at_us, table) == at_us else 0

    @override
    def left_then(self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable) -> int:
        return LARGEST_QUOTA

    @override
    def more_us(self, log: LogView, at_us: int, cost: int, table: ZoneTable) -> int:
        """When they end."""
        opens_us = self.opens_us(at_us, table)
        return NEVER if opens_us == at_us else opens_us

    @override
    def more_then_us(self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable) -> int:
        """What was recorded was so while they did not hold."""
        return 0
