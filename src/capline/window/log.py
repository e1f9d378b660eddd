"""The log of one subject as a plain value: the specification's own form, written for reading, not for speed.

A log is its hits in the order of their stamps, and a high-water mark: the latest instant that the log has seen. Its
time never falls below that. A refunded hit stays, with 0 units, until it is trimmed by age like any other: its stamp is
its identity, and must never become another hit's.

Every question about limits is one of two, which any other form of log can answer as well:

    units_after(cutoff)      units of hits with a stamp later than the cutoff
    stamp_of_unit(k)         the stamp of the hit that holds the k-th newest unit: the check by position
"""

from bisect import bisect_right
from operator import attrgetter
from typing import Any, Protocol

import msgspec

NEVER = -1
"""The newest stamp of a log that has no hit."""

DENIED = (1 << 64) - 1
"""In place of an id: the hit is a refusal that counts."""
REFUNDED = DENIED - 1
"""In place of an id: the hit had one, and was refunded."""
CARRIED = REFUNDED - 62
"""From here up to `REFUNDED`, in place of an id: units taken over from numbers, which are no hit to be given back."""


class LogView(Protocol):
    """What the rule reads of a log."""

    @property
    def high_water_us(self) -> int:
        """The latest instant that the log has seen; 0 for none."""
        ...

    def newest_us(self) -> int:
        """The latest stamp of a hit with units, which may lie in the future (a slot); `NEVER` where there is none."""
        ...

    def units_after(self, cutoff_us: int) -> int:
        """Units of hits with a stamp later than the cutoff."""
        ...

    def stamp_of_unit(self, k: int) -> int:
        """The stamp of the hit that holds the k-th newest unit (k >= 1); `NEVER` where the log has fewer units."""
        ...

    def free_stamp(self, stamp_us: int) -> int:
        """The first instant at or after this one that is no hit's stamp, not even a refunded hit's."""
        ...

    def next_stamp(self, stamp_us: int) -> int:
        """The first stamp from this instant on, refunded or not; `NEVER` for none."""
        ...

    def last_us(self) -> int:
        """The last stamp, refunded or not; `NEVER` where the log is empty."""
        ...

    def name_of(self, stamp_us: int) -> int:
        """The fingerprint of the hit with this stamp, or its mark (`DENIED`, `REFUNDED`); 0 for none."""
        ...


class Hit(msgspec.Struct, frozen=True):
    """What was recorded: a stamp, its units (0: refunded), and 64 bits of the attempt's id (0: none) or a mark."""

    stamp_us: int
    units: int
    fingerprint: int = 0


class Log(msgspec.Struct, frozen=True):
    """The hits of one subject, stamps strictly increasing, and the high-water mark of its time."""

    hits: tuple[Hit, ...] = ()
    high_water_us: int = 0

    def newest_us(self) -> int:
        """The latest stamp of a hit with units; `NEVER` where there is none."""
        return next((hit.stamp_us for hit in reversed(self.hits) if hit.units), NEVER)

    def units_after(self, cutoff_us: int) -> int:
        """Units of hits with a stamp later than the cutoff."""
        return sum(hit.units for hit in _later(self.hits, cutoff_us))

    def stamp_of_unit(self, k: int) -> int:
        """The stamp of the hit that holds the k-th newest unit (k >= 1); `NEVER` where the log has fewer units."""
        for hit in reversed(self.hits):
            k -= hit.units
            if k <= 0:
                return hit.stamp_us
        return NEVER

    def free_stamp(self, stamp_us: int) -> int:
        """The first instant at or after this one that is no hit's stamp, not even a refunded hit's."""
        taken = {hit.stamp_us for hit in self.hits}
        while stamp_us in taken:
            stamp_us += 1
        return stamp_us

    def next_stamp(self, stamp_us: int) -> int:
        """The first stamp from this instant on, refunded or not; `NEVER` for none."""
        return next((hit.stamp_us for hit in self.hits if hit.stamp_us >= stamp_us), NEVER)

    def last_us(self) -> int:
        """The last stamp, refunded or not; `NEVER` where the log is empty."""
        return self.hits[-1].stamp_us if self.hits else NEVER

    def name_of(self, stamp_us: int) -> int:
        """The fingerprint of the hit with this stamp, or its mark; 0 for none."""
        return sum(hit.fingerprint for hit in self.hits if hit.stamp_us == stamp_us)

    def is_carried(self, stamp_us: int) -> bool:
        """Whether what has this stamp was taken over from numbers."""
        return CARRIED <= self.name_of(stamp_us) < REFUNDED

    def units_at(self, stamp_us: int) -> int:
        """The units of the hit with this stamp; 0 where there is none, or it was refunded."""
        return sum(hit.units for hit in self.hits if hit.stamp_us == stamp_us)


def _later(hits: tuple[Hit, ...], cutoff_us: int) -> tuple[Hit, ...]:
    """Those with a stamp later than the cutoff."""
    return hits[bisect_right(hits, cutoff_us, key=attrgetter("stamp_us")) :]


def record(log: Log, hit: Hit, high_water_us: int) -> Log:
    """The log with one more hit, and its high-water mark raised to this one."""
    later = _later(log.hits, hit.stamp_us)
    hits = (*log.hits[: len(log.hits) - len(later)], hit, *later)
    return Log(hits, max(log.high_water_us, high_water_us))


def extend(log: Log, stamp_us: int, units: int, high_water_us: int) -> Log:
    """The log with its last hit moved to this stamp, and so many units added (may be negative)."""
    *others, last = log.hits
    hits = (*others, Hit(stamp_us, last.units + units, last.fingerprint))
    return Log(hits, max(log.high_water_us, high_water_us))


def give_back(log: Log, stamp_us: int, units: int) -> tuple[Log, bool]:
    """The log with so many units taken off the hit with this stamp, and whether it had them.

    Its id is free again, but the hit stays marked: else where sums are kept a later hit would be added to it, and a
    repeated refund would take that one's units.
    """
    if not units or log.units_at(stamp_us) < units:
        return log, False
    mark = REFUNDED if log.name_of(stamp_us) else 0
    hits = tuple(Hit(stamp_us, hit.units - units, mark) if hit.stamp_us == stamp_us else hit for hit in log.hits)
    return Log(hits, log.high_water_us), True


def amend(log: Log, stamp_us: int, units: int) -> Log:
    """The log with so many units, above 0, in the hit with this stamp, which keeps its id."""
    hits = tuple(Hit(stamp_us, units, hit.fingerprint) if hit.stamp_us == stamp_us else hit for hit in log.hits)
    return Log(hits, log.high_water_us)


def find(log: Log, fingerprint: int, cutoff_us: int) -> int:
    """The stamp that this id was recorded under, later than the cutoff; `NEVER` where the log has none."""
    stamps = [hit.stamp_us for hit in log.hits if hit.fingerprint == fingerprint and hit.stamp_us > cutoff_us]
    return stamps[-1] if stamps else NEVER


def trim(log: Log, cutoff_us: int) -> Log:
    """The log without the hits that are as old as the cutoff or older: by age, never by count."""
    return Log(_later(log.hits, cutoff_us), log.high_water_us)


def forget(log: Log, cutoff_us: int) -> Log:
    """The log without the refusals that are as old as the cutoff or older."""
    kept = tuple(hit for hit in log.hits if hit.stamp_us > cutoff_us or hit.fingerprint != DENIED)
    return Log(kept, log.high_water_us)


class _LogAs:
    """A log that is read otherwise; a change of it is one of the log itself."""

    def __init__(self, log: LogView, stamp_us: int) -> None:
        self._log, self._stamp_us = log, stamp_us

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class LogBefore(_LogAs):
    """The log as if no hit had this stamp or a later one, so that the rule can look for a place in front of them."""

    def __init__(self, log: LogView, stamp_us: int) -> None:
        super().__init__(log, stamp_us)
        self._behind = log.units_after(stamp_us - 1)

    def newest_us(self) -> int:
        """The latest stamp of a hit with units in front; `NEVER` where there is none."""
        return self.stamp_of_unit(1)

    def units_after(self, cutoff_us: int) -> int:
        """Units of hits in front with a stamp later than the cutoff."""
        return max(0, self._log.units_after(cutoff_us) - self._behind)

    def stamp_of_unit(self, k: int) -> int:
        """The stamp of the hit in front that holds the k-th newest unit there."""
        return self._log.stamp_of_unit(self._behind + k)


class LogJoined(_LogAs):
    """The log as it is once a hit has joined its last hit, a sum that has this stamp from then on."""

    def newest_us(self) -> int:
        """The stamp of the sum."""
        return self._stamp_us

    def units_after(self, cutoff_us: int) -> int:
        """Units of hits later than the cutoff, of which the sum is one: also where a day has begun since."""
        return self._log.units_after(min(cutoff_us, self._log.last_us() - 1))

    def stamp_of_unit(self, k: int) -> int:
        """The stamp of the hit that held the k-th newest unit before."""
        stamp_us = self._log.stamp_of_unit(k)
        return self._stamp_us if stamp_us == self._log.last_us() else stamp_us


class Draft:
    """A mutable log over a plain one, so that the rule can run on plain values; `log` is its current value."""

    def __init__(self, log: Log) -> None:
        self.log = log

    @property
    def high_water_us(self) -> int:
        """The latest instant that the log has seen."""
        return self.log.high_water_us

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def record(self, stamp_us: int, units: int, high_water_us: int, fingerprint: int = 0) -> None:
        """One more hit; the high-water mark is raised to this one."""
        self.log = record(self.log, Hit(stamp_us, units, fingerprint), high_water_us)

    def extend(self, stamp_us: int, units: int, high_water_us: int) -> None:
        """The last hit moved to this stamp, with so many units added."""
        self.log = extend(self.log, stamp_us, units, high_water_us)

    def give_back(self, stamp_us: int, units: int) -> bool:
        """So many units taken off the hit with this stamp; whether it had them."""
        self.log, done = give_back(self.log, stamp_us, units)
        return done

    def amend(self, stamp_us: int, units: int) -> None:
        """So many units, above 0, in the hit with this stamp, which keeps its id."""
        self.log = amend(self.log, stamp_us, units)

    def find(self, fingerprint: int, cutoff_us: int) -> int:
        """The stamp that this id was recorded under, later than the cutoff; `NEVER` for none."""
        return find(self.log, fingerprint, cutoff_us)

    def trim(self, cutoff_us: int) -> None:
        """Without the hits that are as old as the cutoff or older."""
        self.log = trim(self.log, cutoff_us)

    def forget(self, cutoff_us: int) -> None:
        """Without the refusals that are as old as the cutoff or older."""
        self.log = forget(self.log, cutoff_us)
