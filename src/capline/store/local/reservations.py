"""Reservations on a store of this machine: `capline.window.reservation` on stored logs, in one transaction.

The rule: what has ended is taken out of a copy of the log, and the copy is kept only where a hit is recorded in it. So
a look and a refusal change nothing stored. Costs O(pending) an attempt, and a copy of the log, O(hits), where something
has ended since the last hit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.errors import InvalidValueError
from capline.store.local.log import ColumnLog
from capline.window.bound_log import BoundLog
from capline.window.reservation import commit, end_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.model.subject import Subject
    from capline.store.local.transaction import LocalRule, LogRef, LogTransaction, StoredLog

__all__ = ["commit_hit", "end_reservations", "record_of", "save_changed"]


def record_of(compiled: LocalRule) -> LogRef:
    """Where the rule's reservations are; raises `InvalidValueError` for a rule that has none."""
    if compiled.record is None:
        raise InvalidValueError(f"policy {compiled.rule.policy!r} has no reservations; give it reservations=True")
    return compiled.record


def end_reservations(logs: Sequence[BoundLog], record: StoredLog, now_us: int) -> None:
    """Take the hits whose reservation has ended out of these logs, the policy's own first."""
    end_all(logs, record, now_us, _copy_of)  # pyright: ignore[reportArgumentType] - the logs came from `load`


def save_changed(transaction: LogTransaction, ref: LogRef, subject: Subject, bound: BoundLog) -> None:
    """Keep the log if it was changed."""
    if bound.changed:
        if bound.rewrites:
            transaction.remove(ref, subject)
        transaction.save(ref, subject, bound.log)  # pyright: ignore[reportArgumentType] - it came from `load`


def commit_hit(transaction: LogTransaction, compiled: LocalRule, subject: Subject, stamp_us: int, now_us: int) -> bool:
    """Commit the hit with this stamp; see `Store.commit`."""
    ref, own = record_of(compiled), compiled.refs[0]
    record = transaction.load(ref, subject)
    logs = [BoundLog(transaction.load(own, subject), own.log_limits, (), 1)]
    end_reservations(logs, record, now_us)
    pending = record.units_at(stamp_us)
    committed = commit(logs[0], record, stamp_us, now_us)
    if committed and pending:
        transaction.save(ref, subject, record)
    return committed


def _copy_of(log: StoredLog) -> ColumnLog:
    """The same log, in one piece and apart from the stored one."""
    copy = ColumnLog()
    for stamp_us, units, fingerprint in log.recorded():
        copy.record(stamp_us, units, 0, fingerprint)
    copy.high_water_us = log.high_water_us
    return copy
