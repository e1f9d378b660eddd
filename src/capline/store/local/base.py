"""The verbs of every store on this machine, written once: load logs, decide, save what changed, in one transaction.

A store adds only where logs live. `_transact(work)` runs `work(transaction)` as one atomic step, and may run it
again after a map has grown. So `work` changes logs through the transaction alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from capline.model.decision import Decision, Joint
from capline.model.errors import CaplineError, IdConflictError, InvalidValueError
from capline.model.late import LateModule
from capline.model.override import override
from capline.model.policy import BoundPolicy, LogLimits
from capline.model.subject import Subject, check_subject
from capline.store.columns import Decisions, plain
from capline.store.local.fast_path import FastRule, fast_rule
from capline.store.protocol import Batch, Merge, Page, ScannedLog, Store, StoreAttempt
from capline.store.receipts import batch_digest, receipt_conflict, receipt_name
from capline.window.bound_log import BoundLog, OpenLog, readers_of, table_of
from capline.window.charge import charge
from capline.window.joint import joint, joint_slot
from capline.window.limit_reader import LimitReader
from capline.window.log import Hit
from capline.window.merge import Merged, merge
from capline.window.refund import refund, settle
from capline.window.rule import attempt as make_attempt
from capline.window.rule import peek
from capline.window.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.clock import Clock
    from capline.model.limit import Limit
else:
    np = LateModule("numpy")

__all__ = ["LocalRule", "LocalStore", "LogRef", "LogTransaction", "StoredLog", "rows_of"]

_T = TypeVar("_T")
ROWS_A_TRANSACTION = 8192
"""Rows of a batch in one transaction; other processes get their turn between two."""
HITS_A_SAVE = 1000
"""Hits merged into a log between two saves: a long log moves the hits of its tail at each page that it seals."""
LOGS_A_PAGE, HITS_A_PAGE = 512, 20_000
"""Bounds of a page of a scan, which takes some milliseconds."""


class StoredLog(OpenLog, Protocol):
    """A log that can be changed and read as a whole; `capline.store.local.log.ColumnLog` says more on each call."""

    def recorded(self) -> Iterator[tuple[int, int, int]]:
        """Each hit as (stamp, units, fingerprint), oldest first."""
        ...


class LogRef(msgspec.Struct):
    """One log of a rule, with the store's own handle of it (`place`)."""

    log_limits: LogLimits
    readers: tuple[LimitReader, ...]
    place: object = None

    @property
    def name(self) -> str:
        """The log's."""
        return self.log_limits.log

    @property
    def retention_us(self) -> int:
        """How long its hits are kept."""
        return self.log_limits.retention_us


class LocalRule(msgspec.Struct):
    """A rule with the handles of its logs; `unit` is its form for the fast path, None where that does not apply."""

    rule: BoundPolicy
    refs: tuple[LogRef, ...]
    channel_refs: tuple[LogRef, ...]
    unit: FastRule | None
    decide_one: Callable[[Subject], Decision]


class LogTransaction(Protocol):
    """The logs as one transaction sees them."""

    __slots__ = ()

    @abstractmethod
    def load(self, ref: LogRef, subject: Subject) -> StoredLog:
        """The subject's log, empty if it has none."""
        ...

    @abstractmethod
    def save(self, ref: LogRef, subject: Subject, log: StoredLog) -> None:
        """Keep the changed log."""
        ...

    @abstractmethod
    def remove(self, ref: LogRef, subject: Subject) -> bool:
        """Forget the subject's log; whether there was one."""
        ...

    @abstractmethod
    def receipt(self, name: bytes) -> bytes | None:
        """The answers kept under this name; None if there are none or they expired."""
        ...

    @abstractmethod
    def keep_receipt(self, name: bytes, value: bytes, expires_us: int) -> None:
        """Keep the value under this name until then."""
        ...


class LocalStore(Store, ABC):
    """Every verb of `Store`, over `_transact`, `_ref`, `sweep` and `close`, which a store adds."""

    may_lose_answers = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @abstractmethod
    def _transact(self, work: Callable[[LogTransaction], _T]) -> _T: ...

    @abstractmethod
    def _fast_path(
        self,
        compiled: LocalRule,
        unit: FastRule,
        ref: LogRef,
    ) -> Callable[[Subject], Decision]:
        """`decide` for one unit without an id on one log, as a function of the subject alone."""

    @abstractmethod
    def _walk(
        self, transaction: LogTransaction, ref: LogRef, after: object
    ) -> Iterator[tuple[object, Subject | None, StoredLog | CaplineError]]:
        """The logs of this name after that place (None: from the first on), each with its place."""

    @override
    @abstractmethod
    def sweep(self) -> int: ...

    @override
    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _handle(self, name: str, retention_us: int) -> object:
        """The store's own handle of a log whose hits are kept so long."""

    @override
    def stats(self) -> dict[str, int]:
        return {}

    def now_us(self) -> int:
        """The clock's now."""
        return self._clock.now_us()

    @override
    def compiled(self, rule: BoundPolicy) -> LocalRule:
        """Raises `InvalidValueError` for a rule that waits for replicas, as there are none here."""
        if rule.wait_replicas:
            raise InvalidValueError(
                f"policy {rule.policy!r}: wait_replicas needs a redis store, which has replicas; leave it out here"
            )
        retention_us = rule.logs[0].retention_us

        compiled = LocalRule(
            rule,
            tuple(
                LogRef(log_limits, readers, self._handle(log_limits.log, log_limits.retention_us))
                for log_limits, readers in zip(rule.logs, readers_of(rule), strict=True)
            ),
            tuple(
                LogRef(LogLimits(name, (), retention_us), (), self._handle(name, retention_us))
                for name in rule.channel_logs
            ),
            fast_rule(rule),
            lambda subject: self.decide(compiled, check_subject(subject), 1, 0),
        )
        if compiled.unit is not None:
            compiled.decide_one = self._fast_path(compiled, compiled.unit, compiled.refs[0])
        return compiled

    @override
    def decide(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return self._transact(
            lambda transaction: self._step(transaction, StoreAttempt(compiled, subject, cost, fingerprint))
        )

    @override
    def peek(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return self._transact(
            lambda transaction: self._peek(transaction, StoreAttempt(compiled, subject, cost, fingerprint))
        )

    @override
    def charge(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return self._transact(
            lambda transaction: self._charge(transaction, StoreAttempt(compiled, subject, cost, fingerprint))
        )

    @override
    def settle(self, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int) -> bool:
        return self._transact(lambda transaction: self._of_hit(settle, transaction, compiled, subject, stamp_us, cost))

    @override
    def place(
        self,
        compiled: LocalRule,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        attempt, slot = StoreAttempt(compiled, subject, cost, fingerprint), Slot(max_wait_us, not_before_us)
        return self._transact(lambda transaction: self._step(transaction, attempt, slot))

    @override
    def refund(self, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        return self._transact(lambda transaction: self._refund(transaction, compiled, subject, stamp_us, cost))

    @override
    def decide_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """One transaction."""
        return self._transact(lambda transaction: self._joint(transaction, attempts, record=True))

    @override
    def peek_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        return self._transact(lambda transaction: self._joint(transaction, attempts, record=False))

    @override
    def place_all(self, attempts: Sequence[StoreAttempt], max_wait_us: int | None, not_before_us: int = 0, /) -> Joint:
        """One transaction."""
        slot = Slot(max_wait_us, not_before_us)
        return self._transact(lambda transaction: self._joint(transaction, attempts, slot=slot))

    @override
    def decide_batch(self, attempts: Sequence[StoreAttempt], /) -> list[Decision | CaplineError]:
        """One transaction for every few thousand items."""
        answers: list[Decision | CaplineError] = []
        for first in range(0, len(attempts), ROWS_A_TRANSACTION):
            part = attempts[first : first + ROWS_A_TRANSACTION]
            answers += self._transact(
                lambda transaction, part=part: [self._caught(transaction, attempt) for attempt in part]
            )
        return answers

    @override
    def decide_many(self, batch: Batch) -> Decisions:
        """With a receipt one transaction for all, else one for every few thousand rows."""
        if batch.receipt is not None:
            return self._with_receipt(batch, batch.receipt)
        return self._columns(batch, record=True)

    @override
    def peek_many(self, batch: Batch) -> Decisions:
        return self._columns(batch, record=False)

    @override
    def refund_many(
        self, compiled: LocalRule, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        """One transaction."""
        return self._transact(
            lambda transaction: np.fromiter(
                (
                    self._refund(transaction, compiled, subject, stamp, cost)
                    for subject, stamp in zip(subjects, stamps_us, strict=True)
                ),
                np.bool_,
                len(subjects),
            ),
        )

    @override
    def recorded(self, compiled: LocalRule, subject: Subject) -> list[list[Hit]]:
        return self._transact(
            lambda transaction: [self._recorded(transaction, ref, subject) for ref in compiled.refs],
        )

    @override
    def erase(self, compiled: Sequence[LocalRule], subject: Subject) -> int:
        refs = {ref.name: ref for bound in compiled for ref in (*bound.refs, *bound.channel_refs)}
        return self._transact(lambda transaction: sum([transaction.remove(ref, subject) for ref in refs.values()]))

    @override
    def merge(self, merges: Sequence[Merge], /) -> list[Merged | CaplineError]:
        """One transaction an item."""
        answers: list[Merged | CaplineError] = []
        for one in merges:
            try:
                answers.append(self._transact(lambda transaction, one=one: self._merge(transaction, one)))
            except CaplineError as error:
                answers.append(error)
        return answers

    @override
    def scan(self, compiled: Sequence[LocalRule], after: tuple[str, object] | None = None) -> Page:
        """One transaction a page."""
        refs = {ref.name: ref for bound in compiled for ref in (*bound.refs, *bound.channel_refs)}
        return self._transact(lambda transaction: self._page(transaction, refs, after))

    def _merge(self, transaction: LogTransaction, one: Merge) -> Merged:
        refs: tuple[LogRef, ...] = one.compiled.refs
        logs = [transaction.load(ref, one.subject) for ref in refs]
        time_us = max([self._clock.now_us(), *(log.high_water_us for log in logs)])
        horizon_us = time_us - refs[0].retention_us
        kept = [[hit for hit in log.recorded() if hit[0] > horizon_us] for log in logs]
        added, merged = merge(kept, one.hits, time_us, refs[0].retention_us)
        for i, (ref, log, hits) in enumerate(zip(refs, logs, kept, strict=True) if added else ()):
            rows = added if not i else [(stamp_us, units, 0) for stamp_us, units, _ in added]
            if hits and hits[-1][0] > added[0][0]:
                # Rewrite the log: inserting hits between others one by one would move the later ones each time.
                rows = sorted((*hits, *rows))
                transaction.remove(ref, one.subject)
            high_water_us = max(log.high_water_us, added[-1][0])
            for first in range(0, len(rows), HITS_A_SAVE):
                log = transaction.load(ref, one.subject)  # noqa: PLW2901 - the same log, as it is now
                log.trim(horizon_us)
                for stamp_us, units, mark in rows[first : first + HITS_A_SAVE]:
                    log.record(stamp_us, units, high_water_us, mark)
                transaction.save(ref, one.subject, log)
        return merged

    def _page(self, transaction: LogTransaction, refs: dict[str, LogRef], after: tuple[str, object] | None) -> Page:
        names = list(refs)
        name, place = (names[0], None) if after is None else after
        now_us = self._clock.now_us()
        found: list[ScannedLog] = []
        logs = hits = 0
        while True:
            ref = refs[name]
            for at, subject, log in self._walk(transaction, ref, place):
                logs += 1
                try:
                    if isinstance(log, CaplineError):
                        raise log
                    counted = _counted(log, now_us, ref.retention_us)
                    hits += len(counted)
                    if counted:
                        found.append(ScannedLog(name, subject, counted))
                except CaplineError as error:
                    found.append(ScannedLog(name, subject, error=error))
                if logs >= LOGS_A_PAGE or hits >= HITS_A_PAGE:
                    return Page(found, (name, at))
            rest = names[names.index(name) + 1 :]
            if not rest:
                return Page(found)
            name, place = rest[0], None

    def _caught(self, transaction: LogTransaction, attempt: StoreAttempt) -> Decision | CaplineError:
        try:
            return self._step(transaction, attempt)
        except IdConflictError as error:
            return error

    def _bound_logs(self, transaction: LogTransaction, attempt: StoreAttempt, now_us: int) -> list[BoundLog]:
        compiled: LocalRule = attempt.compiled
        table = table_of(compiled.rule, now_us)
        return [
            BoundLog(transaction.load(ref, attempt.subject), ref.log_limits, ref.readers, attempt.cost, table)
            for ref in compiled.refs
        ]

    def _save(self, transaction: LogTransaction, attempt: StoreAttempt, bound_logs: Sequence[BoundLog]) -> None:
        for ref, bound in zip(attempt.compiled.refs, bound_logs, strict=True):
            if bound.changed:
                transaction.save(ref, attempt.subject, bound.log)  # pyright: ignore[reportArgumentType] - it came from `load`

    def _step(self, transaction: LogTransaction, attempt: StoreAttempt, slot: Slot | None = None) -> Decision:
        """One attempt, on stored logs."""
        now_us = self._clock.now_us()
        bound_logs = self._bound_logs(transaction, attempt, now_us)
        decision = make_attempt(bound_logs, now_us, attempt.fingerprint, slot, attempt.compiled.rule.denied_units)
        self._save(transaction, attempt, bound_logs)
        return decision

    def _peek(self, transaction: LogTransaction, attempt: StoreAttempt) -> Decision:
        """What `_step` would answer; nothing is changed."""
        now_us = self._clock.now_us()
        return peek(self._bound_logs(transaction, attempt, now_us), now_us, attempt.fingerprint)

    def _joint(
        self,
        transaction: LogTransaction,
        attempts: Sequence[StoreAttempt],
        *,
        record: bool = True,
        slot: Slot | None = None,
    ) -> Joint:
        """One attempt over the logs of all parts, or one slot in them."""
        now_us = self._clock.now_us()
        parts = [self._bound_logs(transaction, attempt, now_us) for attempt in attempts]
        fingerprints = [attempt.fingerprint for attempt in attempts]
        if slot is None:
            decision, hits = joint(parts, now_us, fingerprints, record=record)
        else:
            decision, hits = joint_slot(parts, now_us, fingerprints, slot)
        for attempt, bound_logs in zip(attempts, parts, strict=True):
            self._save(transaction, attempt, bound_logs)
        binds = next((i for i, bound_logs in enumerate(parts) if any(bound.binds for bound in bound_logs)), 0)
        return Joint.of(decision, hits if record else (), binds)

    def _charge(self, transaction: LogTransaction, attempt: StoreAttempt) -> Decision:
        """One charge, on stored logs."""
        now_us = self._clock.now_us()
        bound_logs = self._bound_logs(transaction, attempt, now_us)
        decision = charge(bound_logs, now_us, attempt.fingerprint)
        self._save(transaction, attempt, bound_logs)
        return decision

    def _refund(
        self, transaction: LogTransaction, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int
    ) -> bool:
        return self._of_hit(
            lambda logs, hit_us, now_us: refund(logs, hit_us, cost, now_us),
            transaction,
            compiled,
            subject,
            stamp_us,
            cost,
        )

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
        bound_logs = [BoundLog(transaction.load(ref, subject), ref.log_limits, ref.readers, cost) for ref in refs]
        done = change(bound_logs, stamp_us, self._clock.now_us())
        for ref, bound in zip(refs, bound_logs, strict=True):
            if bound.changed:
                transaction.save(ref, subject, bound.log)  # pyright: ignore[reportArgumentType] - it came from `load`
        return done

    def _recorded(self, transaction: LogTransaction, ref: LogRef, subject: Subject) -> list[Hit]:
        """The hits that still count; a log may hold older ones."""
        return _counted(transaction.load(ref, subject), self._clock.now_us(), ref.retention_us)

    def _rows(self, transaction: LogTransaction, batch: Batch, rows: slice, *, record: bool) -> list[Decision]:
        """Decide these rows of a batch in this transaction, or with `record` off only peek."""
        answer = self._step if record else self._peek
        compiled, cost = batch.compiled, batch.cost
        return [
            answer(transaction, StoreAttempt(compiled[code], subject, cost)) for code, subject in rows_of(batch, rows)
        ]

    def _columns(self, batch: Batch, *, record: bool) -> Decisions:
        """The answers part by part, each turned into columns at once: ten million row objects would fill the memory."""
        limits = _limits_of(batch)
        return Decisions.joined(
            [
                Decisions.of(
                    self._transact(lambda transaction, part=part: self._rows(transaction, batch, part, record=record)),
                    limits,
                )
                for part in _parts(batch)
            ],
            limits,
        )

    def _with_receipt(self, batch: Batch, receipt: str) -> Decisions:
        name, asked = receipt_name(batch, receipt), batch_digest(batch)
        limits = _limits_of(batch)

        def work(transaction: LogTransaction) -> Decisions:
            kept = transaction.receipt(name)
            if kept is not None:
                if kept[: len(asked)] != asked:
                    raise receipt_conflict(receipt)
                return Decisions.unpack(kept[len(asked) :], limits)
            answers = Decisions.joined(
                [Decisions.of(self._rows(transaction, batch, part, record=True), limits) for part in _parts(batch)],
                limits,
            )
            retention_us = max(compiled.refs[0].retention_us for compiled in batch.compiled)
            transaction.keep_receipt(name, asked + answers.pack(), self._clock.now_us() + retention_us)
            return answers

        return self._transact(work)


def rows_of(batch: Batch, rows: slice) -> Iterable[tuple[int, Subject]]:
    """The code and the subject of each of these rows of a batch, as Python integers and text."""
    codes = repeat(0) if batch.codes is None else plain(batch.codes[rows])
    return zip(codes, plain(batch.subjects[rows]), strict=False)


def _parts(batch: Batch) -> list[slice]:
    n = len(batch.subjects)
    return [slice(first, first + ROWS_A_TRANSACTION) for first in range(0, n, ROWS_A_TRANSACTION)]


def _counted(log: StoredLog, now_us: int, retention_us: int) -> list[Hit]:
    horizon_us = max(now_us, log.high_water_us) - retention_us
    return [Hit(*hit) for hit in log.recorded() if hit[0] > horizon_us]


def _limits_of(batch: Batch) -> tuple[Limit, ...]:
    """Every limit that can bind a row, each object once."""
    seen = {id(limit): limit for compiled in batch.compiled for ref in compiled.refs for limit in ref.log_limits.limits}
    return tuple(seen.values())
