"""What the algorithms that keep numbers instead of hits read from a log.

    fixed_window      units of this fixed window alone
    sliding_counter   units of this fixed window and, weighted by what of it is still in reach, of the one before
    gcra              a level that rises by each unit and sinks steadily: one number, whatever the quota

Their state is kept as a log, of which they use little: a counter's hits are one for each fixed window, and the level of
`gcra` is the units of a log's only hit. So each store keeps, expires and protects all of them alike.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from capline.model.clock import LATEST_US
from capline.model.limit import LARGEST_QUOTA, Limit
from capline.support.override import override
from capline.window.limit_reader import LimitReader
from capline.window.log import NEVER

if TYPE_CHECKING:
    from capline.model.zone import ZoneTable
    from capline.window.log import LogView

TICKS = 1 << 20
"""A counter tells the age of its window in at most so many steps: errs by a millionth of the units, to refusing."""


class NumberReader(LimitReader, frozen=True):
    """Reads one limit's numbers."""

    @override
    def fits_us(self, log: LogView, cost: int, table: ZoneTable) -> int | None:
        if cost > self.limit.quota:
            return None
        newest_us = log.newest_us()
        return NEVER if newest_us == NEVER else self._fits_after(log, newest_us, cost, table)

    def _fits_after(self, log: LogView, newest_us: int, cost: int, table: ZoneTable) -> int:
        """`fits_us` of a cost that the quota covers, on a log whose newest hit is this one."""
        raise NotImplementedError


class CounterReader(NumberReader, frozen=True):
    """Two weighted fixed windows: at e into one, its units + those of the one before * (W - e) / W, rounded up."""

    tick_us: int
    ticks: int

    @property
    @override
    def most_units(self) -> int:
        return LARGEST_QUOTA // self.ticks

    @override
    def _fits_after(self, log: LogView, newest_us: int, cost: int, table: ZoneTable) -> int:
        quota, window_us = self.limit.quota, self.limit.window_us
        start_us = newest_us - newest_us % window_us
        units, before = self._counts(log, start_us)
        if units + cost <= quota:
            fits_us = self._fades(start_us, before, quota - cost - units)
            if fits_us < start_us + window_us:
                return fits_us
        return self._fades(start_us + window_us, units, quota - cost)

    @override
    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        start_us = at_us - at_us % self.limit.window_us
        units, before = self._counts(log, start_us)
        steps = -(-(start_us + self.limit.window_us - at_us) // self.tick_us)
        return self.limit.quota - units - -(-before * steps // self.ticks)

    @override
    def _more_us(self, log: LogView, at_us: int, left: int, cost: int, table: ZoneTable) -> int:
        quota, window_us = self.limit.quota, self.limit.window_us
        start_us = at_us - at_us % window_us
        used = min(quota, quota - left + cost)
        if used <= 0:
            return NEVER
        units, before = self._counts(log, start_us)
        units += cost
        if units < used:
            more_us = self._fades(start_us, before, used - 1 - units)
            if more_us < start_us + window_us:
                return more_us
        return self._fades(start_us + window_us, units, used - 1)

    @override
    def _empty_us(self, log: LogView, last_us: int, cost: int, table: ZoneTable) -> int:
        return last_us - last_us % self.limit.window_us + 2 * self.limit.window_us

    def after_hit(self, log: LogView, at_us: int, cost: int) -> tuple[int, int, int, int]:
        """`left`, `more_us` and `full_us` just after a hit of `cost`, above 0, later than all; then 0."""
        quota, window_us = self.limit.quota, self.limit.window_us
        start_us = at_us - at_us % window_us
        ends_us = start_us + window_us
        units = log.units_after(start_us - 1)
        before = log.units_after(start_us - window_us - 1) - units
        units += cost
        left = quota - units
        if before:
            left -= -(-before * -(-(ends_us - at_us) // self.tick_us) // self.ticks)
            if 0 <= left < quota - units:
                more_us = self._fades(start_us, before, quota - left - 1 - units)
                if more_us < ends_us:
                    return left, more_us, ends_us + window_us, 0
        return left, self._fades(ends_us, units, quota - left - 1), ends_us + window_us, 0

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


class FixedReader(NumberReader, frozen=True):
    """Windows that begin at whole multiples since 1970, each counted by itself."""

    @override
    def _fits_after(self, log: LogView, newest_us: int, cost: int, table: ZoneTable) -> int:
        return NEVER if cost <= self.left(log, newest_us, table) else self.frees_us(newest_us, table)

    @override
    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        return self.limit.quota - log.units_after(at_us - at_us % self.limit.window_us - 1)

    @override
    def _more_us(self, log: LogView, at_us: int, left: int, cost: int, table: ZoneTable) -> int:
        return NEVER if left - cost >= self.limit.quota else self.frees_us(at_us, table)

    @override
    def frees_us(self, stamp_us: int, table: ZoneTable) -> int:
        """At the end of its window."""
        return stamp_us - stamp_us % self.limit.window_us + self.limit.window_us


class LevelReader(NumberReader, frozen=True):
    """GCRA: a unit raises the level by `rise`, each microsecond lowers it by `fall`; `brim` is a full quota."""

    rise: int
    fall: int
    brim: int

    def level(self, log: LogView, at_us: int) -> int:
        """The level at this instant, or at the newest hit's where that is later."""
        newest_us = log.newest_us()
        sunk = max(0, at_us - newest_us) * self.fall
        return 0 if newest_us == NEVER else max(0, log.units_after(newest_us - 1) - sunk)

    @override
    def _fits_after(self, log: LogView, newest_us: int, cost: int, table: ZoneTable) -> int:
        over = log.units_after(newest_us - 1) + cost * self.rise - self.brim
        return newest_us - (-over // self.fall) if over > 0 else NEVER

    @override
    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        level = self.level(log, at_us)
        ahead_us = min(max(0, log.newest_us() - at_us), (LARGEST_QUOTA - level) // self.fall)
        return (self.brim - level - ahead_us * self.fall) // self.rise

    @override
    def _more_us(self, log: LogView, at_us: int, left: int, cost: int, table: ZoneTable) -> int:
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

        A stamp ahead moves back, at most to this instant; not where there are others before it, of another algorithm.
        """
        last_us = log.last_us()
        level, off = log.units_after(last_us - 1), units * self.rise
        ahead_us = last_us - at_us
        if ahead_us > 0 and ahead_us <= (LARGEST_QUOTA - level) // self.fall and log.next_stamp(0) == last_us:
            return self._settled(at_us, max(0, level + ahead_us * self.fall - off))
        return last_us, max(0, level - off)

    def level_of(self, other: LevelReader, log: LogView, at_us: int) -> int:
        """Another limit's level of the units of this log, rounded up by at most a millionth of one, to its brim.

        By whole units alone, changes that come faster than a unit sinks would never let it.
        """
        units, rest = divmod(self.level(log, at_us), self.rise)
        tick = -(-self.rise // TICKS)
        ticks, steps = -(-rest // tick), -(-self.rise // tick)
        whole, more = divmod(other.rise, steps)
        return min(other.brim, units * other.rise + ticks * whole - (-ticks * more // steps))

    def _settled(self, stamp_us: int, level: int) -> tuple[int, int]:
        """The same level as of the first instant at which it is not past the quota."""
        later_us = -(-max(0, level - self.brim) // self.fall)
        return stamp_us + later_us, level - later_us * self.fall if later_us else level

    @override
    def _empty_us(self, log: LogView, last_us: int, cost: int, table: ZoneTable) -> int:
        level = self.level(log, last_us) + cost * self.rise
        return last_us - (-level // self.fall) if level else NEVER


def counter_of(limit: Limit) -> CounterReader:
    """The reader of a limit under `sliding_counter`."""
    tick_us = -(-limit.window_us // TICKS)
    return CounterReader(limit, tick_us, -(-limit.window_us // tick_us))


def level_of(limit: Limit) -> LevelReader:
    """The reader of a limit under `gcra`."""
    common = gcd(limit.quota, limit.window_us)
    rise, fall = limit.window_us // common, limit.quota // common
    return LevelReader(limit, rise, max(1, fall), limit.quota * rise)
