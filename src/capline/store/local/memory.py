"""`memory://`: logs in this process, one lock, gone with the process. For tests, simulations, single-process services.

A decision of one unit on an existing log takes the fast path: one lock, one dictionary look-up, `decide_one`.
"""

from __future__ import annotations

import threading
from array import array
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from capline.model.decision import Decision, Joint
from capline.model.errors import CaplineError
from capline.model.subject import Subject, check_subject
from capline.store.columns import Decisions
from capline.store.local.base import LocalStore
from capline.store.local.batches import Work, decided_once, limits_of, parts_of
from capline.store.local.fast_path import decide_one, first_decision, states_of_logs
from capline.store.local.log import ColumnLog
from capline.store.local.memory_units import decide_rows, joint_path, logs_of, unit_parts, unit_step, wall_clock
from capline.store.local.numbers import StoredNumbers
from capline.store.local.numbers_path import first_hit
from capline.store.local.operations import joint_step, step
from capline.store.local.pace import GRACE, Pace
from capline.store.local.reservations import keep_reserved
from capline.store.local.transaction import SWEEP_RECEIPTS, LocalRule, LogRef, LogTransaction, StoredLog, take_up
from capline.store.protocol import Batch, Kind, Mode, Operation, operation_of
from capline.support.fork import wait_at_fork
from capline.support.override import override
from capline.support.polled_lock import PolledLock
from capline.window.carry import NumberRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from capline.model.clock import Clock
    from capline.store.local.fast_path import FastRule, Quick

_T = TypeVar("_T")


class _LogTable(msgspec.Struct, weakref=True):
    """All logs of this name, by subject, and the longest that any rule keeps them."""

    name: str
    logs: dict[Subject, ColumnLog] = {}
    retention_us: int = 0
    unswept: list[Subject] = []


class MemoryStore(LocalStore, LogTransaction):
    """See the module's text. Threads may share it; processes may not."""

    keeps_rows = True

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        # A table lives while a rule names it or it has logs: names that come with the call have no end.
        self._tables: WeakValueDictionary[str, _LogTable] = WeakValueDictionary()
        self._filled: dict[str, _LogTable] = {}
        self._turns: list[_LogTable] = []
        self._pace = Pace()
        self._children: dict[str, set[str]] = {}
        self._begun = 0
        """How often a log was begun beside another."""
        self._receipts: dict[bytes, tuple[int, bytes]] = {}
        self._unswept: list[bytes] = []
        self._lock = PolledLock()
        self._naming = threading.Lock()
        self._keeping = threading.Lock()
        wait_at_fork(self._keeping, self._lock.lock, self._naming)
        self._unit_path = self._unit_paths()
        self.units = joint_path(self._clock, self._lock)

    def _handle(self, name: str, retention_us: int) -> object:
        with self._naming:  # not the lock of the logs, which a batch may hold for seconds
            table = self._tables.setdefault(name, _LogTable(name))
            table.retention_us = max(table.retention_us, retention_us)
        return table

    @override
    def _beside(self, name: str) -> list[str]:
        with self._lock:
            return sorted(self._children.get(name, ()))

    def _transact(self, work: Callable[[LogTransaction], _T]) -> _T:
        with self._lock:
            return work(self)

    @override
    def step(self, operation: Operation, /) -> Any:
        with self._lock:
            return step(self, operation, self._clock.now_us())

    @override
    def joint(self, operations: Sequence[Operation], /) -> Joint:
        with self._lock:
            return joint_step(self, operations, self._clock.now_us())

    @override
    def unit_path(self, compiled: LocalRule, unit: FastRule) -> Callable[[Subject], Decision]:
        return self._unit_path(compiled, unit)

    def _unit_paths(self) -> Callable[[LocalRule, FastRule], Callable[[Subject], Decision]]:
        """`unit_path`; what all rules share is bound here, once: there may be many rules, and each is few objects."""
        now_us_of, wall_ns = self._clock.now_us, wall_clock(self._clock)
        try_acquire, wait, release = self._lock.try_acquire, self._lock.wait, self._lock.release

        def of_rule(compiled: LocalRule, unit: FastRule) -> Callable[[Subject], Decision]:
            ref = compiled.refs[0]
            logs, retention_us = logs_of(ref), ref.retention_us

            def decide(subject: Subject) -> Decision:
                """One lock, one look-up, `decide_one`: some 0.8 µs. Any other log goes to the general rule."""
                kind = type(subject)
                if kind is not str and kind is not int:
                    subject = check_subject(subject)
                if not try_acquire(False):
                    wait()
                try:
                    log = logs.get(subject)
                    now_us = now_us_of() if wall_ns is None else wall_ns() // 1000
                    if log is None:
                        check_subject(subject)
                        self.save(ref, subject, ColumnLog(array("Q", (now_us,)), high_water_us=now_us))
                        return first_decision(unit, now_us)
                    stamps = log.stamps
                    start = log.start
                    n = len(stamps)
                    if log.before is not None or n == start or stamps[-1] != log.high_water_us or log.reserved:
                        quick: Any = compiled.quick
                        decision = quick(log, 1, 0, "decide", None, now_us)
                        return (
                            step(self, Operation("decide", compiled, subject), now_us) if decision is None else decision
                        )
                    oldest_us = stamps[start]
                    last_us = stamps[-1]
                    decision = decide_one(stamps, start, n, oldest_us, last_us, unit, now_us)
                    stamp_us = decision.hit
                    if stamp_us is not None:
                        if oldest_us <= stamp_us - retention_us:
                            log.trim(max(now_us, last_us) - retention_us)
                        log.stamps.append(stamp_us)
                        log.high_water_us = stamp_us
                    return decision
                finally:
                    release()

            return decide

        return of_rule

    @override
    def ask_path(self, compiled: LocalRule, quick: Quick) -> Callable[..., Decision]:  # noqa: C901 - one flat step
        """One lock, one look-up, the fast path; the general rule where it has no answer."""
        own, numbers = compiled.refs[0], compiled.numbers
        if numbers is None and len(compiled.refs) > 1:
            return self._ask_several(compiled, quick)
        # A subject who has hits with an id has a log beside the numbers, one with reservations has a record of them.
        beside = own if numbers else compiled.record
        values, others = logs_of(numbers or own), {} if beside is None else logs_of(beside)
        now_us_of = self._clock.now_us
        wall_ns = wall_clock(self._clock)
        try_acquire, wait, release = self._lock.try_acquire, self._lock.wait, self._lock.release
        meters = compiled.meters
        first_of = first_hit(meters[0], compiled.rule.logs) if len(meters) == 1 else None

        def begun() -> Any:
            if not numbers:
                return ColumnLog()
            return StoredNumbers(tuple([NumberRow(reader, ColumnLog()) for reader in meters]), False, meters)

        # What a peek at a new subject reads, and leaves as it is. A rolling window is the same at every instant.
        nothing = begun()
        first = None if numbers or compiled.rule.zone else quick(nothing, 1, 0, "peek", None, 0)

        def ask(  # noqa: C901 - as above
            subject: Subject, cost: int = 1, fingerprint: int = 0, kind: Kind = "decide", bound_us: int | None = None
        ) -> Decision:
            form = type(subject)
            if form is not str and form is not int:
                subject = check_subject(subject)
            if kind == "peek" and subject not in values and subject not in others:
                check_subject(subject)
                now_us = now_us_of() if wall_ns is None else wall_ns() // 1000
                if first is not None and cost == 1 and not fingerprint:
                    return first
                decision = quick(nothing, cost, fingerprint, kind, bound_us, now_us)
                if decision is not None:
                    return decision
            if not try_acquire(False):
                wait()
            try:
                known = value = values.get(subject)
                now_us = now_us_of() if wall_ns is None else wall_ns() // 1000
                if subject not in others:
                    if value is None:
                        check_subject(subject)
                        began = first_of(cost, now_us) if first_of and not fingerprint and kind != "peek" else None
                        if began is not None:
                            decision, log = began
                            row = NumberRow(meters[0], log)
                            self.save(numbers or own, subject, StoredNumbers((row,), False, meters))  # type: ignore[arg-type]
                            return decision
                        value = begun()
                    decision = quick(value, cost, fingerprint, kind, bound_us, now_us)
                    if decision is not None:
                        hit_us = decision.hit
                        if known is None and hit_us is not None:
                            self.save(numbers or own, subject, value)
                        if kind == "reserve" and hit_us is not None:
                            value.reserved = True
                            keep_reserved(self, compiled, subject, hit_us, bound_us or 0)
                        return decision
                return step(self, operation_of(kind, compiled, subject, cost, fingerprint, bound_us), now_us)
            finally:
                release()

        return ask

    def _ask_several(self, compiled: LocalRule, quick: Quick) -> Callable[..., Decision]:
        """The same on several logs, as the policy's and the channel's."""
        refs, record = compiled.refs, compiled.record
        tables, pending = [logs_of(ref) for ref in refs], {} if record is None else logs_of(record)
        units, parts = compiled.units, unit_parts(compiled, lambda limit: limit) if compiled.units else ()
        now_us_of, lock = self._clock.now_us, self._lock
        try_acquire, wait, release = lock.try_acquire, lock.wait, lock.release

        def ask(
            subject: Subject, cost: int = 1, fingerprint: int = 0, kind: Kind = "decide", bound_us: int | None = None
        ) -> Decision:
            subject = check_subject(subject)
            if not try_acquire(False):
                wait()
            try:
                now_us = now_us_of()
                if units and cost == 1 and not fingerprint and kind != "schedule":
                    answer = unit_step(self, subject, parts, now_us, records=kind == "decide")
                    if answer is not None:
                        hit_us, left, limit, reset_us, wait_us, stamp_us, found = answer
                        seen = states_of_logs, units, found, stamp_us, now_us, not wait_us
                        hit_us = None if wait_us or kind == "peek" else hit_us
                        return Decision(not wait_us, limit, left - 1, wait_us, reset_us, hit_us, "store", 0, 0, seen)
                if subject not in pending:
                    known = [table.get(subject) for table in tables]
                    logs: Any = known if None not in known else [ColumnLog() if log is None else log for log in known]
                    decision = quick(logs, cost, fingerprint, kind, bound_us, now_us)
                    if decision is not None:
                        if decision.hit is not None and logs is not known:
                            for ref, log in zip(refs, logs, strict=True):
                                self.save(ref, subject, log)
                        return decision
                return step(self, operation_of(kind, compiled, subject, cost, fingerprint, bound_us), now_us)
            finally:
                release()

        return ask

    @override
    def learn(self, compiled: LocalRule) -> None:
        """Others may be rules of a limiter that was made `beside`."""
        if compiled.names != self._begun:
            own, compiled.names = compiled.refs[0], self._begun
            names = self._children.get(own.name, ())
            take_up(compiled, [(name, self._handle(name, own.retention_us)) for name in names])

    @override
    def stored(self, ref: LogRef, subject: Subject) -> ColumnLog | None:
        table: _LogTable = ref.handle  # pyright: ignore[reportAssignmentType] - what `_handle` put there
        return table.logs.get(subject)

    @override
    def save(self, ref: LogRef, subject: Subject, log: StoredLog) -> None:
        table: _LogTable = ref.handle  # pyright: ignore[reportAssignmentType] - what `_handle` put there
        logs = table.logs
        known = len(logs)
        logs[subject] = log  # pyright: ignore[reportArgumentType] - it came from `load`
        if len(logs) > known:
            if not known:
                self._filled[table.name] = table
                if "/" in table.name:
                    self._children.setdefault(table.name.rpartition("/")[0], set()).add(table.name)
                    self._begun += 1
            pace = self._pace
            pace.fresh += 1
            if pace.fresh >= pace.every:
                self._sweep_a_little()

    @override
    def filled(self, most: int, /) -> list[str] | None:
        return [*self._filled] if len(self._filled) <= most else None

    def _walk(
        self,
        transaction: LogTransaction,  # noqa: ARG002 - this store is its transaction
        ref: LogRef,
        after: object,
    ) -> Iterator[tuple[object, Subject | None, StoredLog | CaplineError]]:
        """The place is the list of subjects still to visit, taken when the walk began."""
        table: _LogTable = ref.handle  # pyright: ignore[reportAssignmentType] - what `_handle` put there
        left: list[Subject] = list(table.logs) if after is None else after  # pyright: ignore[reportAssignmentType] - this
        while left:
            subject = left.pop()
            log = table.logs.get(subject)
            if log is not None:
                yield left, subject, log

    @override
    def _columns(self, batch: Batch, mode: Mode, work: Work) -> Decisions:
        """Single units are calls of the fast path, each a step of its own."""
        if batch.cost != 1:
            return super()._columns(batch, mode, work)
        errors: dict[int, CaplineError] = {}
        parts = [
            decide_rows(self, self._clock, self._lock, batch, mode, rows, errors)
            for rows in parts_of(len(batch.subjects))
        ]
        decided = Decisions.joined(parts, limits_of(batch))
        decided.errors = errors
        return decided

    @override
    def _decided_once(self, batch: Batch, receipt: str, work: Work) -> Decisions:
        """One batch at a time, so that the logs' lock is free between its parts."""
        with self._keeping:
            return decided_once(self, batch, receipt, self._clock.now_us, lambda: self._columns(batch, "decide", work))

    @override
    def receipt(self, name: bytes) -> bytes | None:
        expires_us, value = self._receipts.get(name, (0, b""))
        return value if expires_us > self._clock.now_us() else None

    @override
    def keep_receipt(self, name: bytes, value: bytes, expires_us: int) -> None:
        self._receipts[name] = (expires_us, value)
        self._sweep_receipts(self._clock.now_us())

    @override
    def remove(self, ref: LogRef, subject: Subject) -> bool:
        table: _LogTable = ref.handle  # pyright: ignore[reportAssignmentType] - what `_handle` put there
        found = table.logs.pop(subject, None) is not None
        if not table.logs:
            self._emptied(table)
        return found

    @override
    def sweep(self, compiled: Sequence[LocalRule], /) -> int:
        now_us = self._clock.now_us()
        removed = 0
        with self._lock:
            for table in list(self._filled.values()):
                removed += self._drop_stale(table, list(table.logs), now_us)
        with self._keeping:
            self._receipts = {name: kept for name, kept in self._receipts.items() if kept[0] > now_us}
        return removed

    def _sweep_a_little(self) -> None:
        """Check a few subjects in turn, table by table, and remove stale logs: memory follows the live subjects."""
        rows = left = self._pace.rows()
        stale, now_us = 0, self._clock.now_us()
        while left > 0 and self._filled:
            if not self._turns:
                self._turns = list(self._filled.values())
            table = self._turns[-1]
            if not table.unswept:
                table.unswept = list(table.logs)
            part = table.unswept[-left:]
            del table.unswept[-left:]
            if not table.unswept:
                self._turns.pop()
            left -= max(len(part), 1)
            stale += self._drop_stale(table, part, now_us - int(GRACE * table.retention_us))
        self._pace.checked(rows, stale)

    def _drop_stale(self, table: _LogTable, subjects: list[Subject], now_us: int) -> int:
        """Remove those of these subjects' logs whose hits are all out of every window and whose time is not ahead."""
        oldest_us = now_us - table.retention_us
        stale = [
            subject
            for subject in subjects
            if (log := table.logs.get(subject)) is not None
            and log.high_water_us <= oldest_us
            and log.last_us() <= oldest_us
        ]
        for subject in stale:
            del table.logs[subject]
        if not table.logs:
            self._emptied(table)
        return len(stale)

    def _emptied(self, table: _LogTable) -> None:
        self._filled.pop(table.name, None)
        parent = table.name.rpartition("/")[0]
        names = self._children.get(parent, set())
        names.discard(table.name)
        if not names:
            self._children.pop(parent, None)

    def _sweep_receipts(self, now_us: int) -> None:
        """Check a few receipts in turn and drop those that have expired: a batch may come without a new subject."""
        if not self._unswept:
            self._unswept = list(self._receipts)
        for name in self._unswept[-SWEEP_RECEIPTS:]:
            if self._receipts.get(name, (now_us + 1, b""))[0] <= now_us:
                del self._receipts[name]
        del self._unswept[-SWEEP_RECEIPTS:]

    def close(self) -> None:
        """Does nothing; the logs live as long as the store object."""
