"""Reservations on a store of this machine: `capline.window.reservation` on stored logs, in one transaction.

The rule: what has ended is taken out of a copy of the log, and the copy is kept only where a hit is recorded in it. So
a look and a refusal change nothing stored. Costs O(pending) an attempt, and a copy of the log, O(hits), where something
has ended since the last hit.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from capline.model.errors import InvalidValueError
from capline.model.limit import LARGEST_QUOTA
from capline.store.local.log import ColumnLog
from capline.store.local.numbers import OpenNumbers
from capline.window.bound_log import BoundLog
from capline.window.log import NEVER
from capline.window.reservation import Pending, commit, end_and_carry, ended, mark_of, pending_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.model.subject import Subject
    from capline.store.local.transaction import LocalRule, LogRef, LogTransaction, StoredLog
    from capline.store.protocol import Operation


class OpenRecord:
    """What lies beside the logs of one subject, within a transaction: its numbers, and what is pending.

    Nothing is for a rule without reservations.
    """

    __slots__ = ("_others", "_ref", "_stored", "_subject", "_transaction", "numbers", "pending")

    def __init__(self, transaction: LogTransaction, compiled: LocalRule, subject: Subject, own: StoredLog) -> None:
        if compiled.record is None and own.reserved:
            transaction.learn(compiled)
        self._transaction, self._ref, self._subject = transaction, compiled.record, subject
        self.numbers = OpenNumbers(transaction, compiled, subject)
        others = {*compiled.left, *compiled.before} - {0}
        self._others = {place: OpenNumbers(transaction, compiled, subject, place) for place in others}
        self._stored: list[Pending] = []
        if self._ref is not None:
            self._stored = pending_in(transaction.load(self._ref, subject).recorded())
        self.pending = self._stored

    def open(self, logs: Sequence[BoundLog], now_us: int, *, carries: bool = True) -> None:
        """Bind these logs, the policy's own first, to its numbers, and take out hits whose reservation has ended."""

        def carry() -> None:
            self.numbers.take_over(logs, now_us, carries=carries)
            for place, numbers in self._others.items() if carries else ():
                numbers.take_over(logs[place:], now_us, carries=False)

        self.pending = end_and_carry(logs, self._stored, now_us, ColumnLog.copy_of, carry)  # pyright: ignore[reportArgumentType] - the logs came from `load`

    def save_numbers(self, logs: Sequence[BoundLog]) -> Sequence[BoundLog]:
        """As `OpenNumbers.save`."""
        for place, numbers in self._others.items():
            numbers.save(logs[place:])
        return self.numbers.save(logs)

    def save(self) -> None:
        """Keep what is pending now: one entry for each, so that no dead one stands in the way. O(pending)."""
        if self._ref is None or self.pending == self._stored:
            return
        keep_pending(self._transaction, self._ref, self._subject, self.pending)


def keep_pending(transaction: LogTransaction, ref: LogRef, subject: Subject, pending: Sequence[Pending]) -> None:
    """Make this all that the record says of the subject."""
    transaction.remove(ref, subject)
    if pending:
        log = ColumnLog()
        for stamp_us, holds_us, mark in pending:
            log.record(stamp_us, holds_us, stamp_us, mark)
        transaction.save(ref, subject, log)


def save_changed(
    transaction: LogTransaction, refs: Sequence[LogRef], subject: Subject, logs: Sequence[BoundLog], record: OpenRecord
) -> None:
    """Keep the logs that were changed, and the numbers; the policy's own log says whether anything is pending."""
    if logs[0].changed:  # else it stays as it is, and so does the record
        logs[0].log.reserved = bool(record.pending)  # pyright: ignore[reportAttributeAccessIssue] - it came from `load`
    for ref, bound in zip(refs, record.save_numbers(logs), strict=False):
        if bound.changed:
            if bound.rewrites:
                transaction.remove(ref, subject)
            transaction.save(ref, subject, bound.log)  # pyright: ignore[reportArgumentType] - it came from `load`


def all_hold(transaction: LogTransaction, compiled: LocalRule, subject: Subject, time_us: int) -> bool:
    """Whether nothing that is pending has ended, so that the logs are as they count; O(pending)."""
    record = compiled.record
    return record is not None and not ended(pending_in(transaction.load(record, subject).recorded()), time_us)


def may_reserve(transaction: LogTransaction, operation: Operation) -> bool:
    """Whether the record can count one more."""
    record: LogRef = operation.compiled.record
    return transaction.load(record, operation.subject).units_after(NEVER) + operation.ttl_us <= LARGEST_QUOTA


def keep_reserved(transaction: LogTransaction, compiled: LocalRule, subject: Subject, hit_us: int, ttl_us: int) -> None:
    """Note that this hit, just recorded in all the logs, is reserved."""
    record: Any = compiled.record
    log, mark = transaction.stored(record, subject), mark_of(compiled.refs[-1].log_limits.log, hit_us)
    if log is None:
        log = ColumnLog(array("Q", (hit_us,)), 0, array("Q", (0,)), ttl_us, hit_us, {mark: hit_us})
    else:
        log.record(hit_us, ttl_us, hit_us, mark)
    transaction.save(record, subject, log)


def commit_hit(transaction: LogTransaction, operation: Operation, now_us: int) -> bool:
    """Commit the hit with this stamp."""
    compiled: LocalRule = operation.compiled
    record, ref, subject = compiled.record, compiled.refs[0], operation.subject
    if record is None:
        raise InvalidValueError(f"policy {compiled.rule.policy!r} has no reservations; give it reservations=True")
    log, kept, stamp_us = transaction.load(ref, subject), transaction.load(record, subject), operation.stamp_us
    holds_us = kept.units_at(stamp_us)
    pending = [Pending(stamp_us, holds_us, 0)] if holds_us else []
    committed = commit(BoundLog(log, ref.log_limits, (), 1), pending, stamp_us, now_us)
    if holds_us and not pending:
        others = pending_in(kept.recorded()) if kept.units_after(NEVER) > holds_us else []
        keep_pending(transaction, record, subject, [entry for entry in others if entry.stamp_us != stamp_us])
    return committed
