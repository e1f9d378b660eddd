"""How one limit reads a log: the only thing in which the algorithms differ.

    sliding_log       the rule itself: units of the hits within the window, or since midnight
    bucketed          the same rule; hits of one sub-window are kept as one, stamped just behind the newest
    the others        see `counters.py`

A reader is asked when a cost fits (`fits_us`), and read once for an answer (`read`): how many units are left, when more
are, when all are, and when nothing counts any more. Both are pure functions of a log. All numbers are whole and below
2^53, so a script on a server, which has only doubles, computes the same.
"""

# ruff: noqa: ARG002 - all readers have one signature, whatever each needs

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capline.model.limit import LARGEST_QUOTA, Limit, QuietHours
from capline.support.override import override
from capline.window.calendar import ends_us, open_us, starts_us
from capline.window.log import NEVER

if TYPE_CHECKING:
    from capline.model.zone import ZoneTable
    from capline.window.log import LogView

MOST_SHIFTED_US = 64
"""The longest run of neighbouring stamps that is walked back: by `stamp_shift_us`, and by a refusal, for the first
instant that is allowed where stamps were given back."""


class Reading(NamedTuple):
    """What an answer says of one limit.

    `left`      units left; negative if the quota is exceeded
    `more_us`   from when on more is left; `NEVER` if all is left
    `full_us`  from when on all is left, if nothing more is recorded
    `empty_us`  from when on nothing counts in any of the attempt's logs, as far as this limit reaches; it may be over
    """

    left: int
    more_us: int
    full_us: int
    empty_us: int


class LimitReader(msgspec.Struct, frozen=True):
    """One limit, as an algorithm reads it. `table` is the time zone's; it is empty if no limit needs a zone.

    The defaults are for algorithms that keep no single hits; every algorithm adds `fits_us`, `left` and `_more_us`.
    """

    limit: Limit

    def fits_us(self, log: LogView, cost: int, table: ZoneTable) -> int | None:
        """The instant from which this cost fits, if nothing more is recorded; None: never.

        If the cost fits already, the answer is some instant up to the newest hit, no particular one.
        """
        raise NotImplementedError

    def stamp_shift_us(self, log: LogView, fits_us: int) -> int:
        """How much earlier than `fits_us` an attempt is allowed; it is stamped `fits_us` all the same."""
        return 0

    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        """Units left at this instant, which is not before the newest hit; negative if the quota is exceeded."""
        raise NotImplementedError

    def read(self, log: LogView, at_us: int, cost: int, last_us: int, table: ZoneTable) -> Reading:
        """Read the limit at this instant, which is not before the newest hit, just after a hit of `cost` (0: no hit).

        `last_us` is the newest stamp of all the attempt's logs, with this hit's; `NEVER` for none. Nothing but `left`
        means anything for a quota of 0, which never has more.
        """
        left = self.left(log, at_us, table)
        more_us = self._more_us(log, at_us, left, cost, table)
        empty_us = NEVER if last_us == NEVER else self._empty_us(log, last_us, cost, table)
        newest_us = max(at_us if cost else NEVER, log.newest_us())
        full_us = empty_us if newest_us == last_us else self._empty_us(log, newest_us, cost, table)
        return Reading(left - cost, more_us, NEVER if more_us == NEVER else full_us, empty_us)

    def read_then(self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable) -> Reading:
        """Read the limit as it was when the hit with this stamp was recorded, counting hits later than the horizon.

        Times are how long after the hit, at least 0. An algorithm that keeps no single hits reads what is left now.
        """
        left, more_us = self._left_then(log, stamp_us, horizon_us, now_us, table)
        empty_us = max(0, self._empty_us(log, stamp_us, 0, table) - stamp_us)
        return Reading(left, more_us, empty_us if more_us else 0, empty_us)

    def fits_in(self, log: LogView, at_us: int, units: int, horizon_us: int) -> bool:
        """Whether the log, charged these units at this instant, can still be counted exactly."""
        return log.units_after(horizon_us) + units <= self.most_units

    @property
    def most_units(self) -> int:
        """The most units in one log: what is computed from them stays below 2^53."""
        return LARGEST_QUOTA

    def _more_us(self, log: LogView, at_us: int, left: int, cost: int, table: ZoneTable) -> int:
        """`Reading.more_us`; so many units are left before the hit."""
        raise NotImplementedError

    def _empty_us(self, log: LogView, last_us: int, cost: int, table: ZoneTable) -> int:
        """The instant from which nothing counts; the newest hit, of `cost` (0: no hit), has the stamp `last_us`."""
        return self.frees_us(last_us, table)

    def _left_then(
        self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable
    ) -> tuple[int, int]:
        at_us = max(now_us, log.newest_us())
        left = self.left(log, at_us, table)
        return left, max(0, self._more_us(log, at_us, left, 0, table) - at_us)

    def frees_us(self, stamp_us: int, table: ZoneTable) -> int:
        """The instant from which a hit with this stamp no longer counts; `NEVER` if hits are not kept singly."""
        return NEVER


class WindowReader(LimitReader, frozen=True):
    """Counts the units of the hits later than a cutoff."""

    def cutoff_us(self, at_us: int, table: ZoneTable) -> int:
        """Hits with this stamp or an earlier one do not count at `at_us`."""
        raise NotImplementedError

    @override
    def fits_us(self, log: LogView, cost: int, table: ZoneTable) -> int | None:
        """By position: one look at the unit that must leave the window first."""
        quota = self.limit.quota
        if cost > quota:
            return None
        oldest_us = log.stamp_of_unit(quota - cost + 1)
        return NEVER if oldest_us == NEVER else self.frees_us(oldest_us, table)

    @override
    def left(self, log: LogView, at_us: int, table: ZoneTable) -> int:
        return self.limit.quota - log.units_after(self.cutoff_us(at_us, table))

    @override
    def _more_us(self, log: LogView, at_us: int, left: int, cost: int, table: ZoneTable) -> int:
        """When one unit more than is left fits; if this hit is the only one, when it leaves the window."""
        left = max(0, left)
        if left < self.limit.quota:
            fits_us = self.fits_us(log, left + 1, table)
            return NEVER if fits_us is None else fits_us
        return self.frees_us(max(at_us, log.newest_us()), table) if cost else NEVER

    @override
    def _left_then(
        self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable
    ) -> tuple[int, int]:
        later = log.units_after(stamp_us)
        used = log.units_after(max(self.cutoff_us(stamp_us, table), horizon_us)) - later
        oldest = min(used, self.limit.quota)
        more_us = self.frees_us(log.stamp_of_unit(later + oldest), table) - stamp_us if oldest > 0 else 0
        return self.limit.quota - used, more_us


class RollingReader(WindowReader, frozen=True):
    """The last `window_us` microseconds; a hit exactly that old is out.

    Hits of one instant have stamps a microsecond apart, so some are stamped a little late. They also leave the window a
    little late, just when the next attempt of their instant is stamped. With `count_denied` refusals take stamps
    between them and this no longer holds: `stamp_shift_us` is how much earlier than its stamp a hit may really be.
    """

    denied_units: int = 0

    @override
    def cutoff_us(self, at_us: int, table: ZoneTable) -> int:
        return at_us - self.limit.window_us

    @override
    def frees_us(self, stamp_us: int, table: ZoneTable) -> int:
        return stamp_us + self.limit.window_us

    @override
    def stamp_shift_us(self, log: LogView, fits_us: int) -> int:
        if not self.denied_units or fits_us == NEVER:
            return 0
        first_us = last_us = fits_us - self.limit.window_us
        # Older refusals are forgotten, sooner or later.
        end_us = max(last_us - MOST_SHIFTED_US, log.stamp_of_unit(self.denied_units))
        while first_us > end_us and log.next_stamp(first_us - 1) == first_us - 1:
            first_us -= 1
        return last_us - first_us


class CalendarReader(WindowReader, frozen=True):
    """Since the day or the week began; a hit at midnight belongs to the new day."""

    @override
    def cutoff_us(self, at_us: int, table: ZoneTable) -> int:
        return starts_us(table, self.limit.window_us, at_us) - 1

    @override
    def frees_us(self, stamp_us: int, table: ZoneTable) -> int:
        return ends_us(table, self.limit.window_us, stamp_us)


class QuietReader(LimitReader, frozen=True):
    """Quiet hours depend on the clock alone: `opens_us` is checked after all other limits."""

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
    def read(self, log: LogView, at_us: int, cost: int, last_us: int, table: ZoneTable) -> Reading:
        opens_us = self.opens_us(at_us, table)
        if opens_us == at_us:
            return Reading(LARGEST_QUOTA - cost, NEVER, NEVER, NEVER)
        return Reading(-cost, opens_us, opens_us, NEVER)

    @override
    def read_then(self, log: LogView, stamp_us: int, horizon_us: int, now_us: int, table: ZoneTable) -> Reading:
        """Nothing is recorded during quiet hours."""
        return Reading(LARGEST_QUOTA, 0, 0, 0)
