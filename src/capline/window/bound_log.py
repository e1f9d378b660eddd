"""The logs of an attempt, each bound to the limits over it: what every function of the rule is given."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from capline.model.limit import CalendarLimit, Limit, QuietHours
from capline.model.policy import BoundPolicy, LogLimits
from capline.model.zone import ZoneTable, zone_table
from capline.window.counters import FixedReader, counter_of, level_of
from capline.window.limit_reader import CalendarReader, LimitReader, QuietReader, RollingReader
from capline.window.log import NEVER, Draft, Log, LogView


class OpenLog(LogView, Protocol):
    """A log that can be changed."""

    def record(self, stamp_us: int, units: int, high_water_us: int, fingerprint: int = 0) -> None:
        """Add one hit, with a stamp that no other has."""
        ...

    def extend(self, stamp_us: int, units: int, high_water_us: int) -> None:
        """Move the last hit, with its mark, to this stamp, not before its own, and add units (may be negative)."""
        ...

    def units_at(self, stamp_us: int) -> int:
        """The units of the hit with this stamp; 0 for none."""
        ...

    def is_carried(self, stamp_us: int) -> bool:
        """Whether what has this stamp was taken over from numbers (`CARRIED`), and is no hit."""
        ...

    def give_back(self, stamp_us: int, units: int) -> bool:
        """Take so many units off the hit with this stamp; False if it has fewer. Its stamp stays; its id is free."""
        ...

    def amend(self, stamp_us: int, units: int) -> None:
        """Give the hit with this stamp so many units, above 0; its id stays."""
        ...

    def find(self, fingerprint: int, cutoff_us: int) -> int:
        """The stamp recorded under this id, later than the cutoff; `NEVER` for none."""
        ...

    def trim(self, cutoff_us: int) -> None:
        """Forget what is as old as the cutoff or older: by age, never by count."""
        ...

    def forget(self, cutoff_us: int) -> None:
        """Forget the refusals (`DENIED`) that are as old as the cutoff or older."""
        ...


class BoundLog(msgspec.Struct):
    """One log of an attempt, with the readers of its limits, the cost and the zone's table.

    `named` is set where the hit to be recorded has an id here; `changed` once something was recorded in the log;
    `binds` if the binding limit of the answer is on this log; `rewrites` if the log is a copy, to be kept in place of
    the one that it was made from. `carried` and `carried_us` are those of a `NumberRow`.
    """

    log: OpenLog
    log_limits: LogLimits
    readers: tuple[LimitReader, ...]
    cost: int
    table: ZoneTable = ()
    named: bool = False
    changed: bool = False
    binds: bool = False
    rewrites: bool = False
    carried: int = 0
    carried_us: int = NEVER


Readers = tuple[tuple[LimitReader, ...], ...]
"""For each log of a rule, the readers of its limits."""


def readers_of(rule: BoundPolicy) -> Readers:
    """The reader of each limit of the rule, by log."""
    return tuple(
        tuple(_reader_of(limit, rule.algorithm, rule.denied_units) for limit in log_limits.limits)
        for log_limits in rule.logs
    )


def former_readers(rule: BoundPolicy) -> list[LimitReader]:
    """The reader of each of the rule's former numbers."""
    return [_reader_of(log_limits.limits[0], log_limits.keeps) for log_limits in rule.former]


def _reader_of(limit: Limit, algorithm: str, denied_units: int = 0) -> LimitReader:
    if isinstance(limit, QuietHours):
        return QuietReader(limit)
    if isinstance(limit, CalendarLimit):
        return CalendarReader(limit)
    if algorithm == "fixed_window":
        return FixedReader(limit)
    if algorithm == "sliding_counter":
        return counter_of(limit)
    if algorithm == "gcra":
        return level_of(limit)
    return RollingReader(limit, denied_units)


def table_of(rule: BoundPolicy, now_us: int) -> ZoneTable:
    """The zone's offsets around now; empty if the rule needs no zone."""
    return zone_table(rule.zone, now_us) if rule.zone else ()


def draft_logs(logs: Sequence[Log], rule: BoundPolicy, cost: int, now_us: int) -> tuple[list[Draft], list[BoundLog]]:
    """Drafts of plain logs, and the bound logs on them: run the rule on these, then read the drafts."""
    drafts, table = [Draft(log) for log in logs], table_of(rule, now_us)
    return drafts, [
        BoundLog(draft, log_limits, readers, cost, table)  # pyright: ignore[reportArgumentType] - a draft has the rest of its log
        for draft, log_limits, readers in zip(drafts, rule.logs, readers_of(rule), strict=True)
    ]
