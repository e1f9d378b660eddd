"""The log of one subject as a plain value: the specification's own, written to be read rather than to be fast.

A log is its hits in order of their stamps, and a floor: the latest instant that the log has witnessed, below which its
time never falls again. A refunded hit stays, with 0 units, until it is trimmed by age like any other: its stamp is its
identity, and must not come back as another hit's.

Every question about limits is one of two looks, which any other form of log can answer as well:

    units_after(cutoff)      units of hits with a stamp later than the cutoff
    stamp_of_unit(k)         the stamp of the hit that holds the k-th newest unit: the check by position
"""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ["NEVER", "Hit", "Log", "LogView", "find", "record", "refund", "trim"]

NEVER = -1
"""The newest stamp of a log that has no hit."""


class LogView(Protocol):
    """What a log must answer to be judged. `floor_us` is the latest instant it has witnessed (0: none)."""

    @property
    def floor_us(self) -> int:
        """The latest instant that the log has witnessed."""
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
        """The first instant from this one on that no hit, not even a refunded one, is stamped with."""
        ...


class Hit(msgspec.Struct, frozen=True):
    """What was recorded: a stamp, its units (0: refunded), and the id of the attempt if it had one."""

    stamp_us: int
    units: int
    id: bytes = b""


class Log(msgspec.Struct, frozen=True):
    """The hits of one subject, stamps strictly increasing, and the floor of its time."""

    hits: tuple[Hit, ...] = ()
    floor_us: int = 0

    def newest_us(self) -> int:
        """See `LogView`."""
        return max((hit.stamp_us for hit in self.hits if hit.units), default=NEVER)

    def units_after(self, cutoff_us: int) -> int:
        """See `LogView`."""
        return sum(hit.units for hit in self.hits if hit.stamp_us > cutoff_us)

    def stamp_of_unit(self, k: int) -> int:
        """See `LogView`."""
        for hit in reversed(self.hits):
            k -= hit.units
            if k <= 0:
                return hit.stamp_us
        return NEVER

    def free_stamp(self, stamp_us: int) -> int:
        """See `LogView`."""
        taken = {hit.stamp_us for hit in self.hits}
        while stamp_us in taken:
            stamp_us += 1
        return stamp_us


def record(log: Log, hit: Hit, floor_us: int) -> Log:
    """The log with one more hit, its time lifted to at least this floor."""
    hits = tuple(sorted((*log.hits, hit), key=lambda one: one.stamp_us))
    return Log(hits, max(log.floor_us, floor_us))


def refund(log: Log, stamp_us: int) -> tuple[Log, bool]:
    """The log with this one hit given back, and whether there was one, not yet refunded. Its id is free again."""
    if not any(hit.stamp_us == stamp_us and hit.units for hit in log.hits):
        return log, False
    hits = tuple(Hit(stamp_us, 0) if hit.stamp_us == stamp_us else hit for hit in log.hits)
    return Log(hits, log.floor_us), True


def find(log: Log, attempt_id: bytes) -> Hit | None:
    """The hit that this id was recorded under, if it is still in the log."""
    return next((hit for hit in log.hits if hit.id == attempt_id), None)


def trim(log: Log, cutoff_us: int) -> Log:
    """The log without the hits that are as old as the cutoff or older: by age, never by count."""
    return Log(tuple(hit for hit in log.hits if hit.stamp_us > cutoff_us), log.floor_us)
