"""What each verb does within a transaction: load a subject's logs, apply the rule, save what changed.

    load every log of the attempt  ->  end its reservations  ->  `capline.window`  ->  save the logs that changed

The rule: an operation changes logs through its transaction alone, so one that is aborted changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from capline.model.decision import Decision, Joint
from capline.store.local.fast_path import decide_units
from capline.store.local.reservations import OpenRecord, save_changed
from capline.store.local.whole_logs import counted
from capline.store.protocol import StoreAttempt
from capline.window.bound_log import BoundLog, table_of
from capline.window.charge import charge, refund, settle
from capline.window.joint import joint, joint_slot
from capline.window.log import NEVER
from capline.window.recording import record_hit
from capline.window.reservation import forget, reserve, take_along
from capline.window.rule import attempt as make_attempt
from capline.window.rule import peek

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from capline.model.clock import Clock
    from capline.model.subject import Subject
    from capline.store.local.transaction import LocalRule, LogRef, LogTransaction, StoredLog
    from capline.window.log import Hit
    from capline.window.rule import Slot

__all__ = ["Operations"]


class Operations:
    """The operations of a store whose time is this clock's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def _open(
        self, transaction: LogTransaction, attempt: StoreAttempt, now_us: int
    ) -> tuple[list[BoundLog], OpenRecord]:
        compiled: LocalRule = attempt.compiled
        table = table_of(compiled.rule, now_us)
        logs = [
            BoundLog(transaction.load(ref, attempt.subject), ref.log_limits, ref.readers, attempt.cost, table)
            for ref in compiled.refs
        ]
        record = OpenRecord(transaction, compiled, attempt.subject)
        record.open(logs, now_us)
        return logs, record

    def _save(
        self,
        transaction: LogTransaction,
        attempt: StoreAttempt,
        bound_logs: Sequence[BoundLog],
        record: OpenRecord,
    ) -> None:
        save_changed(transaction, attempt.compiled.refs, attempt.subject, bound_logs, record)
        if bound_logs[0].changed:
            record.save()

    @staticmethod
    def _quick(transaction: LogTransaction, attempt: StoreAttempt, now_us: int) -> tuple[StoredLog, Decision] | None:
        """The log and the answer where `decide_units` has it; nothing is changed."""
        compiled: LocalRule = attempt.compiled
        if compiled.unit is None:
            return None
        log = transaction.load(compiled.refs[0], attempt.subject)
        if attempt.fingerprint and log.find(attempt.fingerprint, NEVER) != NEVER:
            return None
        decision = decide_units(log, compiled.unit, attempt.cost, now_us)
        return None if decision is None else (log, decision)

    def decide(self, transaction: LogTransaction, attempt: StoreAttempt, slot: Slot | None = None) -> Decision:
        """One attempt, or the slot that it takes."""
        now_us = self._clock.now_us()
        quick = self._quick(transaction, attempt, now_us) if slot is None else None
        if quick is not None:
            log, decision = quick
            if decision.hit is not None:
                ref: LogRef = attempt.compiled.refs[0]
                bound = BoundLog(log, ref.log_limits, ref.readers, attempt.cost)
                record_hit(bound, max(now_us, log.high_water_us), decision.hit, attempt.fingerprint)
                transaction.save(ref, attempt.subject, log)
            return decision
        bound_logs, record = self._open(transaction, attempt, now_us)
        decision = make_attempt(bound_logs, now_us, attempt.fingerprint, slot, attempt.compiled.rule.denied_units)
        self._save(transaction, attempt, bound_logs, record)
        return decision

    def peek(self, transaction: LogTransaction, attempt: StoreAttempt) -> Decision:
        """What `decide` would answer; nothing is changed."""
        now_us = self._clock.now_us()
        quick = self._quick(transaction, attempt, now_us)
        if quick is not None:
            return replace(quick[1], hit=None)
        return peek(self._open(transaction, attempt, now_us)[0], now_us, attempt.fingerprint)

    def joint(
        self,
        transaction: LogTransaction,
        attempts: Sequence[StoreAttempt],
        *,
        record: bool = True,
        slot: Slot | None = None,
    ) -> Joint:
        """One attempt over the logs of all parts, or one slot in them."""
        now_us = self._clock.now_us()
        opened = [self._open(transaction, attempt, now_us) for attempt in attempts]
        parts = [bound_logs for bound_logs, _ in opened]
        fingerprints = [attempt.fingerprint for attempt in attempts]
        if slot is None:
            decision, hits = joint(parts, now_us, fingerprints, record=record)
        else:
            decision, hits = joint_slot(parts, now_us, fingerprints, slot)
        for attempt, (bound_logs, pending) in zip(attempts, opened, strict=True):
            self._save(transaction, attempt, bound_logs, pending)
        binds = next((i for i, bound_logs in enumerate(parts) if any(bound.binds for bound in bound_logs)), 0)
        return Joint.of(decision, hits if record else (), binds)

    def charge(self, transaction: LogTransaction, attempt: StoreAttempt) -> Decision:
        """One charge."""
        now_us = self._clock.now_us()
        bound_logs, record = self._open(transaction, attempt, now_us)
        decision = charge(bound_logs, now_us, attempt.fingerprint)
        self._save(transaction, attempt, bound_logs, record)
        return decision

    def refund(
        self, transaction: LogTransaction, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int
    ) -> bool:
        """Give the hit of this stamp back."""
        return self._of_hit(
            lambda logs, hit_us, now_us: refund(logs, hit_us, cost, now_us),
            transaction,
            compiled,
            subject,
            stamp_us,
            cost,
        )

    def settle(
        self, transaction: LogTransaction, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int
    ) -> bool:
        """Give the hit of this stamp these units."""
        return self._of_hit(settle, transaction, compiled, subject, stamp_us, cost)

    def _of_hit(
        self,
        change: Callable[[Sequence[BoundLog], int, int], bool],
        transaction: LogTransaction,
        compiled: LocalRule,
        subject: Subject,
        stamp_us: int,
        cost: int,
    ) -> bool:
        """Refund or settle a hit.

        It is named by its stamp alone, so every channel's log is searched for it; at most one has it.
        """
        refs = (
            (*compiled.refs, *compiled.channel_refs)
            if compiled.rule.algorithm != "sliding_log"
            else (compiled.refs[0], *compiled.channel_refs)
        )
        now_us = self._clock.now_us()
        table = table_of(compiled.rule, now_us)
        bound_logs = [
            BoundLog(transaction.load(ref, subject), ref.log_limits, ref.readers, cost, table) for ref in refs
        ]
        record = OpenRecord(transaction, compiled, subject)
        record.open(bound_logs, now_us, carries=False)
        done = change(bound_logs, stamp_us, now_us)
        take_along(bound_logs)
        save_changed(transaction, refs, subject, bound_logs, record)
        if any(bound.changed for bound in bound_logs):
            forget(bound_logs, record.pending, stamp_us)
            record.save()
        return done

    def reserve(self, transaction: LogTransaction, attempt: StoreAttempt, ttl_us: int) -> Decision:
        """One attempt that holds for so long, unless it is committed."""
        now_us = self._clock.now_us()
        bound_logs, record = self._open(transaction, attempt, now_us)
        decision = reserve(bound_logs, record.pending, now_us, ttl_us, attempt.fingerprint)
        self._save(transaction, attempt, bound_logs, record)
        return decision

    def recorded(
        self, transaction: LogTransaction, compiled: LocalRule, subject: Subject, now_us: int
    ) -> list[list[Hit]]:
        """The hits of each log of the rule, as they count now."""
        bound_logs, _ = self._open(transaction, StoreAttempt(compiled, subject), now_us)
        return [
            counted(bound.log, now_us, ref.retention_us)  # pyright: ignore[reportArgumentType] - it came from `load`
            for bound, ref in zip(bound_logs, compiled.refs, strict=True)
        ]
