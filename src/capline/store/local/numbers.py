"""The numbers of a policy on a store of this machine: all rows of a subject in one value beside its logs.

The rule: what a step takes over after a change is worked out on logs of its own, and kept by the step if it may write,
whatever it answers. So a look changes nothing stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from capline.model.clock import LATEST_US
from capline.store.local.log import ColumnLog
from capline.window.carry import NumberRow, carry_hits, carry_numbers, rows_of, take_over

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capline.model.subject import Subject
    from capline.store.local.transaction import LocalRule, LogTransaction, StoredLog
    from capline.window.bound_log import BoundLog
    from capline.window.merge import Row

__all__ = ["OpenNumbers", "StoredNumbers"]


class StoredNumbers(msgspec.Struct):
    """The value: what a store asks of any log, and the rows."""

    rows: Sequence[NumberRow]

    @property
    def high_water_us(self) -> int:
        """The latest instant that any row has seen."""
        return max(row.log.high_water_us for row in self.rows)

    def last_us(self) -> int:
        """The last stamp of any row."""
        return max(row.log.last_us() for row in self.rows)

    def recorded(self, first_us: int = 0, last_us: int = LATEST_US) -> Iterator[Row]:
        """What all rows have, as (stamp, units, fingerprint)."""
        for row in self.rows:
            yield from cast("StoredLog", row.log).recorded(first_us, last_us)


class OpenNumbers:
    """The numbers of one subject, within a transaction; nothing for a rule that has none and had none."""

    __slots__ = ("_compiled", "_rows", "_subject", "_took", "_transaction")

    def __init__(self, transaction: LogTransaction, compiled: LocalRule, subject: Subject) -> None:
        self._transaction, self._compiled, self._subject = transaction, compiled, subject
        self._took = False
        stored = None if compiled.numbers is None else transaction.load(compiled.numbers, subject)
        self._rows: Sequence[NumberRow] = stored.rows if isinstance(stored, StoredNumbers) else []

    def take_over(self, logs: Sequence[BoundLog], now_us: int, *, carries: bool) -> None:
        """Bind these logs, the policy's own first, to the rows, or to what they take over.

        Where each number has a log of its own these take over from hits if this step `carries`.
        """
        own = logs[0]
        if own.log_limits.keeps != "ids":
            if self._rows:
                carry_numbers(self._rows, own, now_us, ColumnLog.copy_of)  # pyright: ignore[reportArgumentType] - it came from `load`
                self._took = True
        elif self._rows:
            self._took = take_over(self._rows, logs, now_us, ColumnLog)
        elif carries or self._compiled.numbers is not None:
            self._took = carry_hits(logs, now_us, ColumnLog)

    def save(self, logs: Sequence[BoundLog]) -> Sequence[BoundLog]:
        """Keep the rows if one was changed or took over, or no rows where hits took over; the logs still to be kept."""
        ref, own = self._compiled.numbers, logs[0]
        if ref is None:
            return logs
        if own.log_limits.keeps != "ids":
            if self._took:
                own.changed = True
                self._transaction.remove(ref, self._subject)
            return logs
        if self._took or any(bound.changed for bound in logs[1:]):
            rows = StoredNumbers(rows_of(self._rows, logs))
            self._transaction.save(ref, self._subject, cast("StoredLog", rows))
        return logs[:1]
