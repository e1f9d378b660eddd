"""`memory://`: logs in this process, one lock, gone with the process. For tests, simulations, single-process services.

A decision of one unit on an existing log takes the fast path: one lock, one dictionary look-up, `decide_one`.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from capline.model.attempt import Attempt
from capline.model.clock import LATEST_US, SystemClock
from capline.model.decision import Decision, Joint
from capline.model.errors import CaplineError, InvalidValueError
from capline.model.limit import LARGEST_QUOTA
from capline.model.subject import Subject, check_subject
from capline.store.columns import NO_HIT, Decisions
from capline.store.local.base import LocalStore
from capline.store.local.batches import NO_ANSWER, Work, decided_once, limits_of, parts_of, rows_of
from capline.store.local.fast_path import decide_one, first_decision, states_of_each, states_of_logs
from capline.store.local.log import ColumnLog
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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np

    from capline.model.clock import Clock
    from capline.model.limit import Limit
    from capline.store.local.fast_path import FastRule, Quick
else:
    from capline.model.arrays import np

_T = TypeVar("_T")
_ZERO, _ONE = 0, 1
ROWS_A_TURN = 64
"""Rows of a batch under one lock: some 50 us, as long as a thread that finds it locked sleeps."""


class _LogTable(msgspec.Struct, weakref=True):
    """All logs of this name, by subject, and the longest that any rule keeps them."""

    name: str
    logs: dict[Subject, ColumnLog] = {}
    retention_us: int = 0
    unswept: list[Subject] = []


def _logs(ref: LogRef) -> dict[Subject, Any]:
    return ref.handle.logs  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType] - what `_handle` put there


def _parts(compiled: LocalRule, named: Callable[[Limit], Any]) -> list[tuple[Any, ...]]:
    """Each log of a rule for `MemoryStore._unit`: its table, its widest window, its limits, what must stay free."""
    return [
        (
            _logs(ref),
            ref,
            unit[1],
            [(edge, quota, window_us, named(limit)) for edge, window_us, limit, quota in unit[0]],
            unit[4].keep_free,
        )
        for ref, unit in zip(compiled.refs, compiled.units or (), strict=True)
    ]


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
        self.units = self._joint_path()

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
        now_us_of, wall_ns = self._clock.now_us, time_ns if type(self._clock) is SystemClock else None
        try_acquire, wait, release = self._lock.try_acquire, self._lock.wait, self._lock.release

        def of_rule(compiled: LocalRule, unit: FastRule) -> Callable[[Subject], Decision]:
            ref = compiled.refs[0]
            logs, retention_us = _logs(ref), ref.retention_us

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

    def _joint_path(self) -> Callable[[Mapping[Any, LocalRule], Sequence[Attempt]], Joint | None]:  # noqa: C901 - one flat step
        now_us_of, wall_ns = self._clock.now_us, time_ns if type(self._clock) is SystemClock else None
        try_acquire, wait, release = self._lock.try_acquire, self._lock.wait, self._lock.release

        def units(rules: Mapping[Any, LocalRule], attempts: Sequence[Attempt]) -> Joint | None:  # noqa: C901, PLR0911, PLR0912 - as above
            """Each judged as by `decide_one`, on logs that are there and in one piece, and one answer for all."""
            left, limit, binds, reset_us, stale = LARGEST_QUOTA + 1, None, 0, 0, False
            found: dict[Any, tuple[Any, ...]] = {}
            at, last = 0, attempts[-1]
            if type(last) is not Attempt or (rule := rules.get(last.policy)) is None or rule.single is None:
                return None  # before the others are judged
            if not try_acquire(False):
                wait()
            try:
                now_us = now_us_of() if wall_ns is None else wall_ns() // 1000
                for attempt in attempts:
                    if type(attempt) is not Attempt or not (attempt.cost is _ONE and attempt.keep_free is _ZERO):
                        return None
                    if not attempt.id is attempt.segment is attempt.channel is attempt.zone is attempt.limits is None:
                        return None
                    rule, subject = rules.get(attempt.policy), attempt.subject
                    kind, unit = type(subject), None if rule is None else rule.single
                    if rule is None or unit is None or (kind is not str and kind is not int):
                        return None
                    table: Any = rule.refs[0].handle
                    log = table.logs.get(subject)
                    if log is None or log.before is not None or log.reserved:
                        return None
                    stamps, start, stamp_us = log.stamps, log.start, log.high_water_us
                    n = len(stamps)
                    if n == start or stamps[-1] != stamp_us:
                        return None
                    oldest_us = stamps[start]
                    stamp_us = now_us if now_us > stamp_us else stamp_us + 1
                    limits, widest_us, _, _, _ = unit
                    for edge, window_us, of, quota in limits:
                        i, cutoff_us = n - edge, stamp_us - window_us
                        if i >= start and stamps[i] > cutoff_us:
                            return None
                        free = quota - n + (start if oldest_us > cutoff_us else bisect_right(stamps, cutoff_us, start))
                        if free < left:
                            left, limit, binds = free, of, at
                    empty_us = stamp_us + widest_us
                    if empty_us > reset_us:  # noqa: PLR1730 - a call of `max` takes as long as the look-up
                        reset_us = empty_us
                    if oldest_us + widest_us <= stamp_us:
                        stale = True
                    found[log] = unit, stamps, start, n, stamp_us, now_us, True
                    at += 1
                if reset_us >= LATEST_US or len(found) < at:  # a log that is asked for twice
                    return None
                hits: list[int] = []
                for log, (unit, _, _, _, stamp_us, _, _) in found.items():
                    if stale:
                        log.trim(max(now_us, log.high_water_us) - unit[4].retention_us)
                    log.high_water_us = stamp_us
                    log.stamps.append(stamp_us)
                    hits.append(stamp_us)
            finally:
                release()
            seen = states_of_each, found.values()
            return Joint(True, limit, left - 1, 0, reset_us - now_us, (*hits,), binds, "store", 0, 0, seen)

        return units

    @override
    def ask_path(self, compiled: LocalRule, quick: Quick) -> Callable[..., Decision]:  # noqa: C901 - one flat step
        """One lock, one look-up, the fast path; the general rule where it has no answer."""
        own, numbers = compiled.refs[0], compiled.numbers
        if numbers is None and len(compiled.refs) > 1:
            return self._ask_several(compiled, quick)
        # A subject who has hits with an id has a log beside the numbers, one with reservations has a record of them.
        beside = own if numbers else compiled.record
        values, others = _logs(numbers or own), {} if beside is None else _logs(beside)
        now_us_of = self._clock.now_us
        wall_ns = time_ns if type(self._clock) is SystemClock else None
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
        tables, pending = [_logs(ref) for ref in refs], {} if record is None else _logs(record)
        units, parts = compiled.units, _parts(compiled, lambda limit: limit) if compiled.units else ()
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
                    answer = self._unit(subject, parts, now_us, records=kind == "decide")
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
        parts = [self._units(batch, mode, rows, errors) for rows in parts_of(len(batch.subjects))]
        decided = Decisions.joined(parts, limits_of(batch))
        decided.errors = errors
        return decided

    def _units(  # noqa: C901, PLR0912, PLR0915 - one flat step
        self, batch: Batch, mode: Mode, rows: slice, errors: dict[int, CaplineError]
    ) -> Decisions:
        """Single units, a few under one lock and at one instant, without an object each.

        A log with fewer hits than the least edge has room. What the rule is asked for comes after the few, one by one.
        """
        limits, attempts = limits_of(batch), [*rows_of(batch, rows)]
        others: dict[int, Decision] = {}

        def alone(late: Iterable[int]) -> None:
            for row in late:
                code, subject = attempts[row]
                compiled = batch.compiled[code]
                try:
                    ask = compiled.ask
                    others[row] = ask(subject, 1, 0, mode) if ask else self.step(Operation(mode, compiled, subject))
                except InvalidValueError as error:
                    self._clock.now_us()  # raises where the clock is what is wrong: then no row has an answer
                    errors[rows.start + row], others[row] = error, NO_ANSWER

        if any(compiled.units is None for compiled in batch.compiled):
            alone(range(len(attempts)))  # two rules may be of one log: its rows stay in order
            return Decisions.of([*others.values()], limits)
        place_of = {id(limit): place for place, limit in enumerate(limits)}
        bound = [_parts(compiled, lambda limit: place_of[id(limit)]) for compiled in batch.compiled]
        firsts = [(len(parts) == 1, *parts[0][:4], min(parts[0][3])[0]) for parts in bound]
        hits, lefts, places, resets_us = list[int](), list[int](), list[int](), list[int]()
        refused: dict[int, int] = {}
        most, records = LARGEST_QUOTA + 1, mode == "decide"
        for first in range(0, len(attempts), ROWS_A_TURN):
            late: dict[int, Subject] = {}
            with self._lock:
                now_us = self._clock.now_us()
                for code, subject in attempts[first : first + ROWS_A_TURN]:
                    single, logs, ref, widest_us, windows, least_edge = firsts[code]
                    log = logs.get(subject) if single and not late else None
                    if log is not None:
                        stamps, start = log.stamps, log.start
                        n = len(stamps)
                        if (
                            start < n < least_edge + start
                            and stamps[-1] == log.high_water_us < now_us
                            and log.before is None
                            and not log.reserved
                        ):
                            oldest_us, left, place = stamps[start], most, 0
                            for _, quota, window_us, limit in windows:
                                cutoff_us, free = now_us - window_us, quota - n
                                free += start if oldest_us > cutoff_us else bisect_right(stamps, cutoff_us, start)
                                if free < left:
                                    left, place = free, limit
                            if records:
                                if oldest_us <= now_us - ref.retention_us:
                                    log.trim(now_us - ref.retention_us)
                                log.stamps.append(now_us)
                                log.high_water_us = now_us
                            hits.append(now_us)
                            lefts.append(left - 1)
                            places.append(place)
                            resets_us.append(widest_us)
                            continue
                    answer = None
                    if not late or subject not in late.values():
                        answer = self._unit(subject, bound[code], now_us, records=records)
                    if answer is None:
                        late[len(hits)] = subject
                        answer = 0, 0, 0, 0, 0, 0, ()
                    hit_us, left, place, reset_us, wait_us, _, _ = answer
                    if wait_us:
                        refused[len(hits)] = wait_us
                    hits.append(hit_us)
                    lefts.append(left - 1)
                    places.append(place)
                    resets_us.append(reset_us)
            alone(late)
        decided = Decisions(
            limits,
            np.ones(len(attempts), np.bool_),
            np.array(places, np.int16),
            np.array(lefts, np.int64),
            np.zeros(len(attempts), np.int64),
            np.array(resets_us, np.int64),
            np.array(hits, np.int64) if records else np.full(len(attempts), NO_HIT),
        )
        if refused:
            rows_refused = [*refused]
            decided.allowed[rows_refused] = False
            decided.retry_after_us[rows_refused] = [*refused.values()]
        if others:
            decided.put(np.array([*others]), Decisions.of([*others.values()], limits))
        return decided

    def _unit(  # noqa: C901, PLR0912 - one flat step
        self, subject: Subject, parts: Sequence[tuple[Any, ...]], now_us: int, *, records: bool
    ) -> tuple[Any, ...] | None:
        """What `decide_one` says, on several logs if they are all behind now, and records; None: ask the rule.

        As (hit, units left before it, place of the limit that binds, when all is empty, wait), then the stamp, and of
        each log (itself, its stamps, the places of the first and behind the last).
        """
        found: list[tuple[ColumnLog, array[int], int, int]] = []
        fresh: list[tuple[LogRef, ColumnLog]] = []
        fits_us: Any = now_us
        stamp_us = now_us
        left, place, binds, newest_us, longest_us, keeps = LARGEST_QUOTA + 1, None, None, 0, 0, None
        windows: list[tuple[int, int, int, int]]
        for logs, ref, widest_us, windows, keep_free in parts:
            log: Any = logs.get(subject)
            if log is None:
                log = ColumnLog()
                fresh.append((ref, log))
            stamps, start, time_us = log.stamps, log.start, log.high_water_us
            n = len(stamps)
            if log.before is not None or log.reserved or (n > start and stamps[-1] != time_us):
                return None
            if time_us >= now_us:
                if len(parts) > 1 or time_us >= LATEST_US - 1:
                    return None
                stamp_us = fits_us = time_us + (n > start)
            if n > start and time_us > newest_us:
                newest_us = time_us
            for edge, quota, window_us, limit in windows:
                i, cutoff_us = n - edge, stamp_us - window_us
                if i >= start and (at_us := stamps[i]) > cutoff_us:
                    if at_us + window_us > fits_us:
                        fits_us, binds = at_us + window_us, limit
                elif binds is None:
                    free = quota - n
                    free += start if n == start or stamps[start] > cutoff_us else bisect_right(stamps, cutoff_us, start)
                    if free < left:
                        left, place = free, limit
            longest_us, keeps = max(longest_us, widest_us), keeps or keep_free
            found.append((log, stamps, start, n))
        if binds is not None:
            if fits_us >= LATEST_US or keeps:
                return None
            reset_us = newest_us + longest_us - now_us
            return NO_HIT, 1, binds, reset_us, fits_us - now_us, stamp_us, found
        if records:
            retention_us = parts[0][1].retention_us
            for log, _, _, _ in found:
                log.trim(max(now_us, log.high_water_us) - retention_us)
                log.stamps.append(stamp_us)
                log.high_water_us = stamp_us
            for ref, log in fresh:  # when all are recorded: a sweep takes what is old
                self.save(ref, subject, log)
        return stamp_us, left, place, stamp_us + longest_us - now_us, 0, stamp_us, found

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
