"""One subject's log as the stores hold it: sorted columns of integers, read by position or by bisection.

    stamps   s0 < s1 < ... < sn-1            microseconds, one for each hit
    before   units of all hits before each   only once a hit has other than 1 unit (a cost above 1, a refund);
             (total: units of all hits)      until then a hit's position is its units: a read by index
    ids      fingerprint -> stamp            only once an attempt had an id; under `REFUNDED` the newest stamp of such
    denied   stamps of refusals              only once one was counted
    reserved whether a reservation may be pending: no fast path takes it unless the record says that all hold

Trimming moves `start` forward and gives the memory back in strides, so that it costs O(1) a hit whatever the log's
length.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from capline.model.clock import LATEST_US
from capline.window.bound_log import OpenLog
from capline.window.log import CARRIED, DENIED, NEVER, REFUNDED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from capline.window.merge import Row
else:
    from capline.model.arrays import np

_STRIDE = 64
_REBASE_AT = 1 << 62
_LIFT = 1 << 40
"""Units before a log that gets hits in front of others, so that those before these can be less."""


class StoredLog(OpenLog, Protocol):
    """A log that can be changed and read as a whole; `ColumnLog` says more on each call."""

    reserved: bool

    def recorded(self, first_us: int = 0, last_us: int = LATEST_US) -> Iterator[Row]:
        """Each hit from the first instant to the last as (stamp, units, fingerprint), oldest first."""
        ...

    def insert(self, rows: Sequence[Row], high_water_us: int) -> None:
        """Add hits, by stamp, with stamps that no other has, in one pass over those behind the first of them."""
        ...


class ColumnLog(msgspec.Struct, gc=False, eq=False):
    """A mutable `LogView` (see `capline.window.log`); a read costs at most O(log n), recording O(1) amortised."""

    stamps: array[int] = msgspec.field(default_factory=partial(array, "Q"))
    start: int = 0
    before: array[int] | None = None
    total: int = 0
    high_water_us: int = 0
    ids: dict[int, int] | None = None
    _named: dict[int, int] | None = None  # ids by stamp, once one was looked for
    denied: set[int] | None = None
    reserved: bool = False

    def __len__(self) -> int:
        return len(self.stamps) - self.start

    def newest_us(self) -> int:
        """As in `LogView`; O(1) but for refunded hits at the end."""
        stamps, before, i = self.stamps, self.before, len(self.stamps) - 1
        if before is not None:
            end = self.total
            while i >= self.start and before[i] == end:
                i -= 1
        return stamps[i] if i >= self.start else NEVER

    def last_us(self) -> int:
        """The last stamp, refunded or not; `NEVER` where the log is empty."""
        return self.stamps[-1] if len(self.stamps) > self.start else NEVER

    def units_after(self, cutoff_us: int) -> int:
        """As in `LogView`; O(log n), O(1) where nothing is that old."""
        stamps, i = self.stamps, self.start
        n = len(stamps)
        if i < n and stamps[i] <= cutoff_us:
            i = bisect_right(stamps, cutoff_us, i)
        if self.before is None:
            return n - i
        return self.total - self.before[i] if i < n else 0

    def stamp_of_unit(self, k: int) -> int:
        """As in `LogView`; O(1) by position while every hit is one unit, else O(log n)."""
        before = self.before
        i = len(self.stamps) - k if before is None else bisect_right(before, self.total - k, self.start) - 1
        return self.stamps[i] if i >= self.start else NEVER

    def free_stamp(self, stamp_us: int) -> int:
        """As in `LogView`; O(1) at the end of the log."""
        stamps, n = self.stamps, len(self.stamps)
        if n == self.start or stamps[-1] < stamp_us:
            return stamp_us
        i = bisect_left(stamps, stamp_us, self.start)
        while i < n and stamps[i] == stamp_us:
            stamp_us, i = stamp_us + 1, i + 1
        return stamp_us

    def record(self, stamp_us: int, units: int, high_water_us: int, fingerprint: int = 0) -> None:
        """Add one hit, with a stamp that no other has; at the end in O(1), else in O(hits in front, or behind)."""
        if units != 1 and self.before is None:
            self._count_units()
        stamps, before = self.stamps, self.before
        if len(stamps) == self.start or stamps[-1] < stamp_us:
            stamps.append(stamp_us)
            if before is not None:
                before.append(self.total)
                self.total += units
        elif not self._record_in_front(stamp_us, units):
            i = bisect_left(stamps, stamp_us, self.start)
            self.stamps = stamps[:i] + array("Q", (stamp_us,)) + stamps[i:]
            if before is not None:
                before.insert(i, before[i])
                self._shift(i + 1, units)
                self.total += units
        if self.total > _REBASE_AT:
            self._rebase()
        if high_water_us > self.high_water_us:  # noqa: PLR1730 - a call of `max` takes as long as the look-up
            self.high_water_us = high_water_us
        if fingerprint:
            self.name(stamp_us, fingerprint)

    def _record_in_front(self, stamp_us: int, units: int) -> bool:
        """Add a hit where few are in front of it: they move onto trimmed ones, and count its units less.

        False, and nothing recorded, where the later ones are to move. O(hits in front of it), but once in a while O(n).
        """
        in_front = bisect_left(self.stamps, stamp_us, self.start) - self.start
        if in_front + _STRIDE > len(self) - in_front:
            return False
        if self.before is None:
            self._count_units()
        if not self.start:
            self.start = len(self) >> 5 or 1
            self.stamps = array("Q", bytes(8 * self.start)) + self.stamps
            counted = np.frombuffer(self.before or b"", np.uint64) + np.uint64(_LIFT)
            self.before, self.total = array("Q", bytes(8 * self.start) + counted.tobytes()), self.total + _LIFT
        stamps, before, first = self.stamps, self.before or array("Q"), self.start
        if before[first] < units:
            return False
        i = first + in_front
        stamps[first - 1 : i] = stamps[first:i] + array("Q", (stamp_us,))
        before[first - 1 : i] = array("Q", [at - units for at in (*before[first:i], before[i])])
        self.start = first - 1
        return True

    def name(self, stamp_us: int, fingerprint: int) -> None:
        """Give the hit with this stamp a fingerprint or a mark."""
        if fingerprint == DENIED:
            self.denied = self.denied or set()
            self.denied.add(stamp_us)
            return
        if self.ids is None:
            self.ids = {}
        # Of refunded hits only the last hit's mark is asked for.
        self.ids[fingerprint] = max(stamp_us, self.ids.get(fingerprint, 0)) if fingerprint == REFUNDED else stamp_us
        if self._named is not None:
            self._named[stamp_us] = fingerprint

    def extend(self, stamp_us: int, units: int, high_water_us: int) -> None:
        """Move the last hit, with its mark, to this stamp, not before its own, with so many units more; O(1)."""
        if self.before is None:
            self._count_units()
        if self.denied and self.stamps[-1] in self.denied:
            self.denied.remove(self.stamps[-1])
            self.denied.add(stamp_us)
        self.stamps[-1] = stamp_us
        self.total += units
        self.high_water_us = max(self.high_water_us, high_water_us)

    def next_stamp(self, stamp_us: int) -> int:
        """As in `LogView`; O(log n)."""
        i = bisect_left(self.stamps, stamp_us, self.start)
        return self.stamps[i] if i < len(self.stamps) else NEVER

    def name_of(self, stamp_us: int) -> int:
        """As in `LogView`; O(1), but for the first time and after `pack`."""
        if self.denied and stamp_us in self.denied:
            return DENIED
        if not self.ids:
            return 0
        if self._named is None:
            self._named = {us: name for name, us in self.ids.items()}
        name = self._named.get(stamp_us, 0)
        return name if self.ids.get(name) == stamp_us else 0

    def is_carried(self, stamp_us: int) -> bool:
        """Whether what has this stamp was taken over from numbers; O(1)."""
        ids = self.ids
        return bool(ids) and any(ids.get(mark) == stamp_us for mark in range(CARRIED, REFUNDED))

    def units_at(self, stamp_us: int) -> int:
        """The units of the hit with this stamp; 0 where there is none, or it was refunded."""
        i = bisect_left(self.stamps, stamp_us, self.start)
        if i == len(self.stamps) or self.stamps[i] != stamp_us:
            return 0
        if self.before is None:
            return 1
        end = self.before[i + 1] if i + 1 < len(self.before) else self.total
        return end - self.before[i]

    def give_back(self, stamp_us: int, units: int) -> bool:
        """Take so many units off the hit with this stamp, which stays; False where it has fewer. O(n)."""
        if not 0 < units <= self.units_at(stamp_us):
            return False
        if self.before is None:
            self._count_units()
        self._shift(bisect_left(self.stamps, stamp_us, self.start) + 1, -units)
        self.total -= units
        if (self.ids or self.denied) and (name := self.name_of(stamp_us)):
            (self.denied or set()).discard(stamp_us)
            (self.ids or {}).pop(name, None)
            self.name(stamp_us, REFUNDED)
        return True

    def amend(self, stamp_us: int, units: int) -> None:
        """Give the hit with this stamp so many units, above 0; its id stays. O(n)."""
        more = units - self.units_at(stamp_us)
        if self.before is None:
            self._count_units()
        self._shift(bisect_left(self.stamps, stamp_us, self.start) + 1, more)
        self.total += more

    def find(self, fingerprint: int, cutoff_us: int) -> int:
        """The stamp recorded under this id, if later than the cutoff; else `NEVER`."""
        stamp_us = self.ids.get(fingerprint, NEVER) if self.ids else NEVER
        # Of a hit that was trimmed the id may be there still.
        holds = self.start < len(self.stamps) and stamp_us >= self.stamps[self.start]
        return stamp_us if holds and stamp_us > cutoff_us else NEVER

    def trim(self, cutoff_us: int) -> None:
        """Forget the hits that are as old as the cutoff or older."""
        stamps, start = self.stamps, self.start
        if start < len(stamps) and stamps[start] <= cutoff_us:
            self.start = start = bisect_right(stamps, cutoff_us, start)
            if start >= _STRIDE and start * 2 >= len(stamps):
                self.pack()

    def forget(self, cutoff_us: int) -> None:
        """Forget the refusals that are as old as the cutoff or older; O(n) if there are such."""
        if not self.denied or min(self.denied) > cutoff_us:
            return
        self.pack()
        stamps, before, denied = self.stamps, self.before, self.denied or set()
        cut = bisect_right(stamps, cutoff_us)
        kept = [i for i in range(cut) if stamps[i] not in denied]
        self.denied = {us for us in denied if us > cutoff_us} or None
        if before is not None:
            units = before[cut] if cut < len(before) else self.total
            front: list[int] = []
            for i in reversed(kept):
                units -= self.units_at(stamps[i])
                front.append(units)
            self.before = array("Q", reversed(front)) + before[cut:]
        self.stamps = array("Q", (stamps[i] for i in kept)) + stamps[cut:]

    def recorded(self, first_us: int = 0, last_us: int = LATEST_US) -> Iterator[Row]:
        """Each hit from the first instant to the last as (stamp, units, fingerprint), oldest first."""
        stamps, before = self.stamps, self.before
        first = bisect_left(stamps, first_us, self.start)
        last = bisect_right(stamps, last_us, first)
        names = self.names() if first < last and (self.ids or self.denied) else {}
        for i in range(first, last):
            units = 1 if before is None else (before[i + 1] if i + 1 < len(before) else self.total) - before[i]
            yield stamps[i], units, names.get(stamps[i], 0)

    def insert(self, rows: Sequence[Row], high_water_us: int) -> None:
        """Add hits, by stamp, with stamps that no other has; O(1) each at the end, else O(n) for all of them."""
        if rows[0][0] > self.last_us():
            for row in rows:
                self.record(row[0], row[1], high_water_us, row[2])
            return
        self.pack()
        if self.before is None and any(units != 1 for _, units, _ in rows):
            self._count_units()
        new, old = (np.array([row[0] for row in rows], np.uint64), np.frombuffer(self.stamps, np.uint64))
        places = np.searchsorted(old, new)
        self.stamps = array("Q", np.insert(old, places, new).tobytes())
        if self.before is not None:
            units = np.diff(np.frombuffer(self.before, np.uint64), append=np.uint64(self.total))
            ends = np.cumsum(np.insert(units, places, np.array([row[1] for row in rows], np.uint64)), dtype=np.uint64)
            ends += np.uint64(self.before[0])
            self.before, self.total = array("Q", (self.before[0],)) + array("Q", ends[:-1].tobytes()), int(ends[-1])
        self.high_water_us = max(self.high_water_us, high_water_us)
        for stamp_us, _, fingerprint in rows:
            if fingerprint:
                self.name(stamp_us, fingerprint)

    def names(self) -> dict[int, int]:
        """The fingerprint or the mark of each hit that has one, by its stamp."""
        names = {stamp_us: fingerprint for fingerprint, stamp_us in (self.ids or {}).items()}
        return names | dict.fromkeys(self.denied or (), DENIED)

    def part(self, first: int, last: int, names: Mapping[int, int]) -> ColumnLog:
        """A log of the hits at these places; `names` are this log's. Of a packed log."""
        part = ColumnLog()
        part.stamps = self.stamps[first:last]
        part.high_water_us = part.last_us()
        if self.before is not None:
            base = self.before[first]
            part.before = array("Q", (units - base for units in self.before[first:last]))
            part.total = (self.before[last] if last < len(self.before) else self.total) - base
        for stamp_us in part.stamps if names else ():
            if stamp_us in names:
                part.name(stamp_us, names[stamp_us])
        return part

    @staticmethod
    def copy_of(log: StoredLog) -> ColumnLog:
        """The same log, in one piece and apart from the stored one."""
        copy = ColumnLog()
        for stamp_us, units, fingerprint in log.recorded():
            copy.record(stamp_us, units, 0, fingerprint)
        copy.high_water_us = log.high_water_us
        return copy

    @staticmethod
    def joined(parts: Sequence[ColumnLog]) -> ColumnLog:
        """One log of these, each of later hits than the one before it."""
        whole, mixed = ColumnLog(), any(part.before is not None for part in parts)
        before = array("Q")
        for part in parts:
            part.pack()
            whole.stamps.extend(part.stamps)
            if part.before is None:
                before.extend(range(whole.total, whole.total + len(part)) if mixed else ())
                whole.total += len(part)
            else:
                more = whole.total - part.before[0]
                before.extend(units + more for units in part.before)
                whole.total = part.total + more
            for stamp_us, fingerprint in part.names().items():
                whole.name(stamp_us, fingerprint)
        whole.before, whole.total = (before, whole.total) if mixed else (None, 0)
        whole.high_water_us = parts[-1].high_water_us
        return whole

    def pack(self) -> None:
        """Free the memory of trimmed hits; O(n)."""
        start, self._named = self.start, None
        if start:
            # Nothing at the cut or before it is asked for again.
            cut_us = self.stamps[start - 1]
            if self.ids:
                self.ids = {fingerprint: us for fingerprint, us in self.ids.items() if us > cut_us} or None
            if self.denied:
                self.denied = {us for us in self.denied if us > cut_us} or None
            # A new array: decisions may still read the old one (see `capline.store.local.fast_path`).
            self.stamps = self.stamps[start:]
            if self.before is not None:
                del self.before[:start]
            self.start = 0

    def _shift(self, first: int, units: int) -> None:
        """Add so many units (may be negative) to those before each hit from this place on."""
        before = self.before or array("Q")
        if len(before) - first > _STRIDE:
            np.frombuffer(before, np.int64)[first:] += units
            return
        for i in range(first, len(before)):
            before[i] += units

    def _count_units(self) -> None:
        if not self.stamps:
            self.before, self.total = array("Q"), 0
            return
        self.pack()
        self.stamps = self.stamps[:]
        self.total = len(self.stamps)
        long = self.total > _STRIDE
        self.before = array("Q", np.arange(self.total, dtype=np.uint64).tobytes() if long else range(self.total))

    def _rebase(self) -> None:
        self.pack()
        if self.before:
            base = self.before[0]
            self.before = array("Q", (units - base for units in self.before))
            self.total -= base
