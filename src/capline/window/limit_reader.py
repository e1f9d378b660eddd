"""What one limit reads from a log, and how a hit is put into it: all that the algorithms differ in.

    sliding_log       the rule itself: units of the hits within the window, or since midnight
    bucketed          the same rule; hits of one sub-window are kept as one, stamped with the newest of them
    fixed_window      units of this fixed window alone
    sliding_counter   units of this fixed window and, weighted by what of it is still in reach, of the one before
    gcra              a level that rises by each unit and sinks steadily: one number, whatever the quota

A gauge answers four questions, each a pure function of a log: from when on a cost fits, how many units are left, when
there are more, and when nothing counts any more. All arithmetic is in whole numbers below 2^53, so that a script on a
server, which has only doubles, comes to the same answer.

Every algorithm keeps its state as a log, of which it uses little: a counter's hits are one for each fixed window, and
the level of `gcra` is the units of a log's only hit. So each store keeps, expires and protects all of them alike.
"""

# ruff: noqa: ARG002 - every gauge is asked alike, whatever it needs

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import msgspec

from capline.model.clock import LATEST_US
from capline.model.limit import LARGEST_QUOTA, CalendarLimit, Limit, QuietHours
from capline.model.override import override
from capline.window.calendar import ends_us, open_us, starts_us
from capline.window.log import NEVER

if TYPE_CHECKING:
    from capline.model.zone import ZoneTable
    from capline.window.log import LogView

__all__ = [
    "TICKS",
    "CalendarReader",
    "CounterReader",
    "FixedReader",
    "LevelReader",
    "LimitReader",
    "QuietReader",
    "RollingReader",
    "reader_of",
]

TICKS = 1 << 20
"""A counter tells the age of its window in at most so many steps: errs by a millionth of the units, to refusing."""


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
    room for each other just in time. Where refusals are stamped among them that does not come out, and `smeared` tells
    how much earlier than its stamp a hit may really have been.
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


class CounterReader(LimitReader, frozen=True):
    """Two weighted fixed windows: at e into one, its units + those of the one before * (W - e) / W, rounded up."""

    tick_us: int
    ticks: int

    @property
    @override
    def most_units(self) -> int:
        return LARGEST_QUOTA // self.ticks

    @override
    def fits_us(self, log: LogView, cost: int, table: ZoneTable) -> int | None:
        quota, window_us = self.limit.quota, self.limit.window_us
        if cost > quota:
            return None
        newest_us = log.newest_us()
        if newest_us == NEVER:
            return NEVER
        start_us = newest_us - newest_us % window_us
        own, before = self._counts(log, start_us)
        if own + cost <= quota:
            fits_us = self._fades(start_us, before, quota - cost - own)
            if fits_us < start_us + window_us:
                return fits_us
        return self._fades(start_us + window_us, own, quota - cost)

    @override
    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        start_us = at_us - at_us % self.limit.window_us
        own, before = self._counts(log, start_us)
        steps = -(-(start_us + self.limit.window_us - at_us) // self.tick_us)
        return self.limit.quota - own - -(-before * steps // self.ticks)

    @override
    def more_us(self, log: LogView, at_us: int, cost: int, table: ZoneTable) -> int:
        quota, window_us = self.limit.quota, self.limit.window_us
        start_us = at_us - at_us % window_us
        own, before = self._counts(log, start_us)
        used = min(quota, quota - self.left(log, at_us, table) + cost)
        if used <= 0:
            return NEVER
        own += cost
        if own < used:
            more_us = self._fades(start_us, before, used - 1 - own)
            if more_us < start_us + window_us:
                return more_us
        return self._fades(start_us + window_us, own, used - 1)

    @override
    def empty_us(self, log: LogView, last_us: int, cost: int, table: ZoneTable) -> int:
        return last_us - last_us % self.limit.window_us + 2 * self.limit.window_us

    def _counts(self, log: LogView, start_us: int) -> tuple[int, int]:
        """Units of the window that begins here, and of the one before."""
        since = log.units_after(start_us - 1)
        return (
            since - log.units_after(start_us + self.limit.window_us - 1),
            log.units_after(start_us - self.limit.window_us - 1) - since,
        )

    def _fades(self, start_us: int, before: int, room: int) -> int:
        """From when on, in the window that begins here, at most so many of the units before it count."""
        steps = min(self.ticks, room * self.ticks // before) if before else self.ticks
        return start_us + max(0, self.limit.window_us - steps * self.tick_us)


class FixedReader(LimitReader, frozen=True):
    """Windows that begin at whole multiples since 1970, each counted by itself."""

    @override
    def fits_us(self, log: LogView, cost: int, table: ZoneTable) -> int | None:
        if cost > self.limit.quota:
            return None
        newest_us = log.newest_us()
        if newest_us == NEVER:
            return NEVER
        return NEVER if cost <= self.left(log, newest_us, table) else self.frees_us(newest_us, table)

    @override
    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        return self.limit.quota - log.units_after(at_us - at_us % self.limit.window_us - 1)

    @override
    def more_us(self, log: LogView, at_us: int, cost: int, table: ZoneTable) -> int:
        return NEVER if self.left(log, at_us, table) - cost >= self.limit.quota else self.frees_us(at_us, table)

    @override
    def frees_us(self, stamp_us: int, table: ZoneTable) -> int:
        """At the end of its window."""
        return stamp_us - stamp_us % self.limit.window_us + self.limit.window_us


class LevelReader(LimitReader, frozen=True):
    """The generic cell rate algorithm: a unit raises the level by `rise`, each microsecond lowers it by `fall`."""

    rise: int
    fall: int
    brim: int

    def level(self, log: LogView, at_us: int) -> int:
        """The level at this instant, or at the newest hit's where that is later."""
        newest_us = log.newest_us()
        sunk = max(0, at_us - newest_us) * self.fall
        return 0 if newest_us == NEVER else max(0, log.units_after(newest_us - 1) - sunk)

    @override
    def fits_us(self, log: LogView, cost: int, table: ZoneTable) -> int | None:
        if cost > self.limit.quota:
            return None
        newest_us = log.newest_us()
        if newest_us == NEVER:
            return NEVER
        over = log.units_after(newest_us - 1) + cost * self.rise - self.brim
        return newest_us - (-over // self.fall) if over > 0 else NEVER

    @override
    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        level = self.level(log, at_us)
        ahead_us = min(max(0, log.newest_us() - at_us), (LARGEST_QUOTA - level) // self.fall)
        return (self.brim - level - ahead_us * self.fall) // self.rise

    @override
    def more_us(self, log: LogView, at_us: int, cost: int, table: ZoneTable) -> int:
        level = self.level(log, at_us) + cost * self.rise
        if not level:
            return NEVER
        over = level - (self.brim - (max(0, self.brim - level) // self.rise + 1) * self.rise)
        return max(at_us, log.newest_us()) - (-over // self.fall)

    @override
    def fits_in(self, log: LogView, at_us: int, units: int, horizon_us: int) -> bool:
        start_us = max(at_us, log.last_us())
        level = self.level(log, start_us)
        if units > (LARGEST_QUOTA - level) // self.rise:
            return False
        return self._settled(start_us, level + units * self.rise)[0] < LATEST_US

    def raised(self, log: LogView, at_us: int, units: int) -> tuple[int, int]:
        """The stamp and the level of the log's hit after so many more units at this instant.

        A level past the quota is kept as the instant at which it will have sunk to it: so it is not trimmed before.
        """
        start_us = max(at_us, log.last_us())
        return self._settled(start_us, self.level(log, start_us) + units * self.rise)

    def lowered(self, log: LogView, at_us: int, units: int) -> tuple[int, int]:
        """The stamp and the level of the log's hit once so many units are taken off at this instant.

        A stamp ahead moves back, at most to this instant.
        """
        last_us = log.last_us()
        level, off = log.units_after(last_us - 1), units * self.rise
        ahead_us = last_us - at_us
        if ahead_us > 0 and ahead_us <= (LARGEST_QUOTA - level) // self.fall:
            return self._settled(at_us, max(0, level + ahead_us * self.fall - off))
        return last_us, max(0, level - off)

    def _settled(self, stamp_us: int, level: int) -> tuple[int, int]:
        """The same level as of the first instant at which it is not past the quota."""
        later_us = -(-max(0, level - self.brim) // self.fall)
        return stamp_us + later_us, level - later_us * self.fall if later_us else level

    @override
    def empty_us(self, log: LogView, last_us: int, cost: int, table: ZoneTable) -> int:
        level = self.level(log, last_us) + cost * self.rise
        return last_us - (-level // self.fall) if level else NEVER


def reader_of(limit: Limit, algorithm: str, *, counts_denied: bool = False) -> LimitReader:
    """The gauge of a limit, as a policy of this algorithm may have it."""
    if isinstance(limit, QuietHours):
        return QuietReader(limit)
    if isinstance(limit, CalendarLimit):
        return CalendarReader(limit)
    if algorithm == "fixed_window":
        return FixedReader(limit)
    if algorithm == "sliding_counter":
        tick_us = -(-limit.window_us // TICKS)
        return CounterReader(limit, tick_us, -(-limit.window_us // tick_us))
    if algorithm == "gcra":
        common = gcd(limit.quota, limit.window_us)
        rise, fall = limit.window_us // common, limit.quota // common
        return LevelReader(limit, rise, max(1, fall), limit.quota * rise)
    return RollingReader(limit, shifted=counts_denied)
