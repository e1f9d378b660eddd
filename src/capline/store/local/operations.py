"""What each kind of operation does within a transaction: load a subject's logs, apply the rule, save what changed.

    load every log of the operation  ->  end its reservations  ->  `capline.window`  ->  save the logs that changed

The rule: an operation changes logs through its transaction alone, so one that is aborted changes nothing. One that
raises has changed nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capline.model.decision import Decision, Joint
from capline.model.limit import LARGEST_QUOTA
from capline.store.local.fast_path import record
from capline.store.local.log import ColumnLog
from capline.store.local.numbers import StoredNumbers
from capline.store.local.reservations import OpenRecord, all_hold, commit_hit, keep_reserved, may_reserve, save_changed
from capline.store.local.whole_logs import counted
from capline.store.protocol import Kind, Operation
from capline.window.bound_log import BoundLog, table_of
from capline.window.carry import NumberRow
from capline.window.charge import charge, refund, settle
from capline.window.joint import joint, joint_slot
from capline.window.log import NEVER
from capline.window.recording import record_hit
from capline.window.reservation import Pending, forget, reserve, take_along
from capline.window.rule import Slot, attempt, move, peek

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.model.limit_status import LimitStatus
    from capline.model.subject import Subject
    from capline.store.local.transaction import LocalRule, LogRef, LogTransaction
    from capline.window.log import Hit


_Rule = Callable[[list[BoundLog], Operation, int, list[Pending]], Decision]
"""What an operation does with opened logs, at an instant, and with what is pending there."""

_RULES: dict[Kind, _Rule] = {
    "decide": lambda logs, operation, now_us, _: attempt(
        logs, now_us, operation.fingerprint, None, operation.compiled.rule.denied_units
    ),
    "peek": lambda logs, operation, now_us, _: peek(logs, now_us, operation.fingerprint),
    "charge": lambda logs, operation, now_us, _: charge(logs, now_us, operation.fingerprint),
    "reserve": lambda logs, operation, now_us, pending: reserve(
        logs, pending, now_us, operation.ttl_us, operation.fingerprint
    ),
    "schedule": lambda logs, operation, now_us, _: attempt(
        logs,
        now_us,
        operation.fingerprint,
        Slot(operation.max_wait_us, operation.not_before_us),
        operation.compiled.rule.denied_units,
    ),
    "move": lambda logs, operation, now_us, _: move(
        logs, operation.stamp_us, now_us, operation.fingerprint, operation.not_before_us
    ),
}
_QUICK = frozenset[Kind](["decide", "peek", "schedule", "reserve"])


def step(transaction: LogTransaction, operation: Operation, now_us: int) -> Any:
    """One operation; see `Operation` for what each kind does and answers."""
    kind = operation.kind
    compiled = operation.compiled
    if compiled.quick is not None and kind in _QUICK and not operation.not_before_us:
        decision = _quick_step(transaction, operation, now_us)
        if decision is not None:
            return decision
    rule = _RULES.get(kind)
    if rule is None:
        change = commit_hit if kind == "commit" else _change_hit
        return change(transaction, operation, now_us)
    logs, record = _open(transaction, operation, now_us)
    decision = rule(logs, operation, now_us, record.pending)
    if kind != "peek":
        _save(transaction, operation, logs, record)
    return decision


def _quick_step(transaction: LogTransaction, operation: Operation, now_us: int) -> Decision | None:
    """A decision, a peek, a reservation or a slot that is now, where the fast path has the answer."""
    compiled, subject, kind = operation.compiled, operation.subject, operation.kind
    if compiled.numbers is not None:
        return _numbers_step(transaction, operation, kind, now_us)
    logs = _logs_of(transaction, compiled, subject, now_us)
    if logs is None or (kind == "reserve" and not may_reserve(transaction, operation)):
        return None
    decision = compiled.quick(logs, operation.cost, operation.fingerprint, kind, operation.max_wait_us, now_us)
    if decision is not None and decision.hit is not None:
        if kind == "reserve":
            log: Any = logs if len(compiled.refs) == 1 else logs[0]
            log.reserved = True
            keep_reserved(transaction, compiled, subject, decision.hit, operation.ttl_us)
        _keep(transaction, compiled.refs, subject, logs)
    return decision


def _numbers_step(transaction: LogTransaction, operation: Operation, kind: Kind, now_us: int) -> Decision | None:
    """Decide, peek, or take a slot, and record the hit; None, and nothing changed, where the rule is to be asked."""
    compiled: LocalRule = operation.compiled
    subject, cost, fingerprint = operation.subject, operation.cost, operation.fingerprint
    ref, rows_ref = compiled.refs[0], compiled.numbers
    numbers: Any = transaction.stored(rows_ref, subject)  # pyright: ignore[reportArgumentType] - with meters there is one
    own: Any = transaction.stored(ref, subject)
    time_us, last_us = now_us, NEVER
    if own is not None:
        if numbers is None or own.find(fingerprint, NEVER) != NEVER or own.units_after(NEVER) + cost > LARGEST_QUOTA:
            return None
        time_us, last_us = max(now_us, own.high_water_us), own.last_us()
    begun = numbers
    if numbers is None:
        logs = [None if compiled.begins else transaction.stored(ref, subject) for ref in compiled.refs[1:]]
        found = [ColumnLog() if log is None else log for log in logs]
        if any(type(log) is not ColumnLog or log.ids or log.denied for log in found):
            return None
        begun = StoredNumbers(
            [NumberRow(ref.readers[0], log) for ref, log in zip(compiled.refs[1:], found, strict=True)]
        )
    quick: Any = compiled.quick
    times = () if own is None else (time_us, last_us)
    if fingerprint:  # before the step raises it
        time_us = max(time_us, begun.high_water_us)
    decision = quick(begun, cost, 0, kind, operation.max_wait_us, now_us, *times)
    if decision is None or decision.hit is None:
        return decision
    if fingerprint:
        bound = BoundLog(ColumnLog() if own is None else own, ref.log_limits, (), cost)
        record_hit(bound, time_us, decision.hit, fingerprint)
        transaction.save(ref, subject, bound.log)  # pyright: ignore[reportArgumentType] - the same
    if numbers is None and not compiled.begins:
        for row_ref, row in zip(compiled.refs[1:], begun.rows, strict=True):
            transaction.save(row_ref, subject, row.log)  # pyright: ignore[reportArgumentType] - from above
    else:
        transaction.save(rows_ref, subject, begun)  # pyright: ignore[reportArgumentType] - as above
    return decision


def _logs_of(transaction: LogTransaction, compiled: LocalRule, subject: Subject, now_us: int) -> Any:
    """The log, or the logs, as a fast path takes them; None where a reservation may be pending."""
    refs = compiled.refs
    log = transaction.load(refs[0], subject)
    if log.reserved and not all_hold(transaction, compiled, subject, max(now_us, log.high_water_us)):
        return None
    return log if len(refs) == 1 else [log, *[transaction.load(ref, subject) for ref in refs[1:]]]


def _keep(transaction: LogTransaction, refs: Sequence[LogRef], subject: Subject, logs: Any) -> None:
    if len(refs) == 1:
        transaction.save(refs[0], subject, logs)
        return
    for ref, log in zip(refs, logs, strict=True):
        transaction.save(ref, subject, log)


def joint_step(transaction: LogTransaction, operations: Sequence[Operation], now_us: int) -> Joint:
    """One attempt over the logs of all parts, or one slot in them."""
    first = operations[0]
    quick = _quick_joint(transaction, operations, now_us)
    if quick is not None:
        return quick
    opened = [_open(transaction, operation, now_us) for operation in operations]
    parts = [logs for logs, _ in opened]
    fingerprints = [operation.fingerprint for operation in operations]
    if first.kind == "schedule":
        slot = Slot(first.max_wait_us, first.not_before_us)
        decision, hits = joint_slot(parts, now_us, fingerprints, slot)
    else:
        decision, hits = joint(parts, now_us, fingerprints, record=first.kind == "decide")
    if first.kind == "peek":
        hits = []
    else:
        for operation, (logs, record) in zip(operations, opened, strict=True):
            _save(transaction, operation, logs, record)
    binds = next((number for number, logs in enumerate(parts) if any(bound.binds for bound in logs)), 0)
    return Joint.of(decision, hits, binds)


def _quick_joint(transaction: LogTransaction, operations: Sequence[Operation], now_us: int) -> Joint | None:  # noqa: C901 - one way after the other
    """The answer where every part is allowed now by its fast path; else None, and nothing changed.

    All parts but the last are looked at first. What a part answers a peek it answers at the same instant again, and its
    hit is now where its log is behind now: else it is asked again.
    """
    kind, others = operations[0].kind, len(operations) - 1
    if kind == "schedule":
        return None
    answers: list[Any] = []
    found: list[Any] = []
    for number, operation in enumerate(operations):
        answer, log = _part(transaction, operation, None, "peek" if number < others else kind, now_us)
        if answer is None or not answer.allowed:
            return None
        answers.append(answer)
        found.append(log)
    hits: list[Any] = []
    for number, log in enumerate(found if kind != "peek" else ()):
        operation, hit_us = operations[number], answers[number].hit
        refs = operation.compiled.refs
        if number < others:
            if log is not None and len(refs) == 1 and log.high_water_us < now_us:
                record(log, refs[0].log_limits, operation.cost, operation.fingerprint, now_us, now_us)
                hit_us = now_us
            else:
                hit_us = _part(transaction, operation, log, kind, now_us)[0].hit  # type: ignore[union-attr]
        if log is not None:
            _keep(transaction, refs, operation.subject, log)
        hits.append(hit_us)
    least, binds, reset_us = answers[0], 0, 0
    for number, answer in enumerate(answers):
        if answer.remaining < least.remaining:
            least, binds = answer, number
        if answer.reset_after_us > reset_us:  # noqa: PLR1730 - a call of `max` takes as long as the look-up
            reset_us = answer.reset_after_us
    seen = _limits_of, answers
    return Joint(True, least.limit, least.remaining, 0, reset_us, (*hits,), binds, "store", 0, 0, seen)


def _part(
    transaction: LogTransaction, operation: Operation, log: Any, kind: Kind, now_us: int
) -> tuple[Decision | None, Any]:
    """The answer of a fast path, and the log it is on, None where it is on numbers."""
    compiled = operation.compiled
    if compiled.quick is None:
        return None, None
    if compiled.numbers is not None:
        return _numbers_step(transaction, operation, kind, now_us), None
    if log is None and (log := _logs_of(transaction, compiled, operation.subject, now_us)) is None:
        return None, None
    return compiled.quick(log, operation.cost, operation.fingerprint, kind, None, now_us), log


def _limits_of(answers: Sequence[Decision]) -> tuple[tuple[LimitStatus, ...], ...]:
    return tuple([answer.limits for answer in answers])


def recorded_hits(transaction: LogTransaction, compiled: LocalRule, subject: Subject, now_us: int) -> list[list[Hit]]:
    """The hits of each log of the rule, as they count now."""
    logs, _ = _open(transaction, Operation("peek", compiled, subject), now_us)
    return [
        counted(bound.log, now_us, ref.retention_us)  # pyright: ignore[reportArgumentType] - it came from `load`
        for bound, ref in zip(logs, compiled.refs, strict=True)
    ]


def _open(transaction: LogTransaction, operation: Operation, now_us: int) -> tuple[list[BoundLog], OpenRecord]:
    compiled: LocalRule = operation.compiled
    table = table_of(compiled.rule, now_us)
    logs = [
        BoundLog(transaction.load(ref, operation.subject), ref.log_limits, ref.readers, operation.cost, table)
        for ref in compiled.refs
    ]
    record = OpenRecord(transaction, compiled, operation.subject, logs[0].log)  # pyright: ignore[reportArgumentType] - it came from `load`
    record.open(logs, now_us)
    return logs, record


def _save(transaction: LogTransaction, operation: Operation, logs: Sequence[BoundLog], record: OpenRecord) -> None:
    save_changed(transaction, operation.compiled.refs, operation.subject, logs, record)
    if logs[0].changed:
        record.save()


def _change_hit(transaction: LogTransaction, operation: Operation, now_us: int) -> bool:
    """Refund or settle a hit.

    It is named by its stamp alone, so every channel's log is searched for it; at most one has it.
    """
    compiled: LocalRule = operation.compiled
    subject, stamp_us, cost = operation.subject, operation.stamp_us, operation.cost
    transaction.learn(compiled)
    refs = compiled.refs if compiled.rule.algorithm != "sliding_log" else compiled.refs[:1]
    refs += compiled.channel_refs
    table = table_of(compiled.rule, now_us)
    logs = [BoundLog(transaction.load(ref, subject), ref.log_limits, ref.readers, cost, table) for ref in refs]
    record = OpenRecord(transaction, compiled, subject, logs[0].log)  # pyright: ignore[reportArgumentType] - it came from `load`
    record.open(logs, now_us, carries=False)
    done = settle(logs, stamp_us, now_us) if operation.kind == "settle" else refund(logs, stamp_us, cost, now_us)
    take_along(logs)
    forget(logs, record.pending, stamp_us)
    save_changed(transaction, refs, subject, logs, record)
    if any(bound.changed for bound in logs):
        record.save()
    return done
