"""The verbs of every store on this machine, written once: which operations make one transaction.

A store adds only where logs live. `_transact(work)` runs `work(transaction)` as one atomic step, and may run it
again after LMDB's map has grown. So `work` changes logs through the transaction alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from capline.model.errors import CaplineError, IdConflictError
from capline.model.policy import LOGS, RESERVED, BoundPolicy, LogLimits, check_no_replicas
from capline.model.subject import Subject, check_subject
from capline.store.local.batches import NO_ANSWER, decided_once, in_parts, parts_of, rows_of
from capline.store.local.damage import past_damage
from capline.store.local.fast_path import FastRule, fast_rule
from capline.store.local.operations import Operations
from capline.store.local.reservations import commit_hit
from capline.store.local.transaction import LocalRule, LogRef, LogTransaction, StoredLog
from capline.store.local.whole_logs import merged, next_page
from capline.store.protocol import Batch, Merge, Page, Store, StoreAttempt
from capline.support.lazy import LazyModule
from capline.support.override import override
from capline.window.bound_log import readers_of
from capline.window.charge import NoRoomError
from capline.window.rule import Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.server_state import ServerState
    from capline.store.columns import Decisions
    from capline.window.log import Hit
    from capline.window.merge import Merged
else:
    np = LazyModule("numpy")

__all__ = ["LocalStore"]

_T = TypeVar("_T")
_Item = TypeVar("_Item")


class LocalStore(Store, ABC):
    """Every verb of `Store`; a store adds `_transact`, `_handle`, `_fast_path`, `_walk`, `sweep` and `close`."""

    may_lose_answers = False
    keeps_rows = False
    """Whether all numbers of a policy are one value."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._operations = Operations(clock)

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
    def sweep(self, compiled: Sequence[LocalRule], /) -> int: ...

    @override
    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _handle(self, name: str, retention_us: int) -> object:
        """The store's own handle of a log whose hits are kept so long."""

    @abstractmethod
    def _beside(self, name: str) -> list[str]:
        """The logs whose names go on from this one after a slash, whichever policy they were made for."""

    @override
    def stats(self) -> dict[str, int]:
        return {}

    @override
    def servers(self) -> list[ServerState]:
        return []

    @override
    def try_write(self) -> None:
        """There is always room."""

    def now_us(self) -> int:
        """The clock's now."""
        return self._clock.now_us()

    @override
    def compiled(self, rule: BoundPolicy) -> LocalRule:
        """Raises `InvalidValueError` for a rule that waits for replicas, as there are none here."""
        check_no_replicas(rule)
        own, retention_us = rule.logs[0].log, rule.logs[0].retention_us
        # Of channels, reservations and numbers that the policy had before it was changed.
        decides = rule.algorithm in LOGS and any(one.limits for one in rule.logs)
        record, beside = f"{own}/{RESERVED}", self._beside(own) if decides else []
        has_numbers = rule.numbers in beside or (rule.algorithm not in LOGS and self.keeps_rows)
        channels = {*rule.channel_logs, *(beside if rule.algorithm == "sliding_log" else ())} - {record, rule.numbers}

        def ref_of(name: str) -> LogRef:
            return LogRef(LogLimits(name, (), retention_us), (), self._handle(name, retention_us))

        compiled = LocalRule(
            rule,
            tuple(
                LogRef(log_limits, readers, self._handle(log_limits.log, log_limits.retention_us))
                for log_limits, readers in zip(rule.logs, readers_of(rule), strict=True)
            ),
            tuple(map(ref_of, sorted(channels))),
            fast_rule(rule),
            lambda subject: self.decide(compiled, check_subject(subject), 1, 0),
        )
        if has_numbers:
            compiled.numbers, compiled.unit = ref_of(rule.numbers), None
        if rule.reserved:
            compiled.record = ref_of(rule.reserved)
        elif record in beside and self._transact(
            lambda transaction: any(self._walk(transaction, ref_of(record), None))
        ):
            compiled.record, compiled.unit = ref_of(record), None
        if compiled.unit is not None and not rule.logs[0].grain_us:
            compiled.decide_one = self._fast_path(compiled, compiled.unit, compiled.refs[0])
        return compiled

    @override
    def decide(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return self._transact(
            lambda transaction: self._operations.decide(transaction, StoreAttempt(compiled, subject, cost, fingerprint))
        )

    @override
    def peek(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return self._transact(
            lambda transaction: self._operations.peek(transaction, StoreAttempt(compiled, subject, cost, fingerprint))
        )

    @override
    def charge(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return self._transact(
            lambda transaction: self._operations.charge(transaction, StoreAttempt(compiled, subject, cost, fingerprint))
        )

    @override
    def settle(self, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int) -> bool:
        return self._transact(
            lambda transaction: self._operations.settle(transaction, compiled, subject, stamp_us, cost)
        )

    @override
    def reserve(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int, ttl_us: int) -> Decision:
        attempt = StoreAttempt(compiled, subject, cost, fingerprint)
        return self._transact(lambda transaction: self._operations.reserve(transaction, attempt, ttl_us))

    @override
    def commit(self, compiled: LocalRule, subject: Subject, stamp_us: int) -> bool:
        return self._transact(
            lambda transaction: commit_hit(transaction, compiled, subject, stamp_us, self._clock.now_us())
        )

    @override
    def schedule(
        self,
        compiled: LocalRule,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        attempt, slot = StoreAttempt(compiled, subject, cost, fingerprint), Slot(max_wait_us, not_before_us)
        return self._transact(lambda transaction: self._operations.decide(transaction, attempt, slot))

    @override
    def refund(self, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        return self._transact(
            lambda transaction: self._operations.refund(transaction, compiled, subject, stamp_us, cost)
        )

    @override
    def decide_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """One transaction."""
        return self._transact(lambda transaction: self._operations.joint(transaction, attempts, record=True))

    @override
    def peek_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        return self._transact(lambda transaction: self._operations.joint(transaction, attempts, record=False))

    @override
    def schedule_all(
        self, attempts: Sequence[StoreAttempt], max_wait_us: int | None, not_before_us: int = 0, /
    ) -> Joint:
        """One transaction."""
        slot = Slot(max_wait_us, not_before_us)
        return self._transact(lambda transaction: self._operations.joint(transaction, attempts, slot=slot))

    @override
    def decide_batch(self, attempts: Sequence[StoreAttempt], /) -> list[Decision | CaplineError]:
        """One transaction for every few hundred items."""
        return self._each(attempts, self._caught)

    @override
    def decide_many(self, batch: Batch) -> Decisions:
        """With a receipt one transaction for all, else one for every few thousand rows."""
        receipt = batch.receipt
        if receipt is None:
            return self._in_parts(batch, record=True)
        return self._sound(
            batch,
            slice(0, len(batch.subjects)),
            lambda damaged: self._transact(
                lambda transaction: decided_once(
                    transaction,
                    batch,
                    receipt,
                    self._clock.now_us,
                    lambda: in_parts(
                        batch, lambda part: self._rows_but(damaged, transaction, batch, part, record=True), damaged
                    ),
                )
            ),
            record=True,
        )

    @override
    def peek_many(self, batch: Batch) -> Decisions:
        return self._in_parts(batch, record=False)

    @override
    def refund_many(
        self, compiled: LocalRule, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        """One transaction for every few hundred hits; raises the first error after all were tried."""
        given = self._each(
            [*zip(subjects, stamps_us, strict=True)],
            lambda transaction, hit: self._operations.refund(transaction, compiled, *hit, cost),
        )
        failed = next((one for one in given if isinstance(one, CaplineError)), None)
        if failed is not None:
            raise failed
        return np.array(given, np.bool_)

    @override
    def recorded(self, compiled: LocalRule, subject: Subject) -> list[list[Hit]]:
        return self._transact(
            lambda transaction: self._operations.recorded(transaction, compiled, subject, self._clock.now_us()),
        )

    @override
    def erase(self, compiled: Sequence[LocalRule], subject: Subject) -> int:
        refs = _all_refs(compiled)
        records = {bound.record.name: bound.record for bound in compiled if bound.record is not None}

        def forget(transaction: LogTransaction) -> int:
            transaction.remove_all(records.values(), subject)
            return transaction.remove_all(refs.values(), subject)

        return self._transact(forget)

    @override
    def merge(self, merges: Sequence[Merge], /) -> list[Merged | CaplineError]:
        """One transaction an item."""
        answers: list[Merged | CaplineError] = []
        for one in merges:
            try:
                answers.append(
                    self._transact(lambda transaction, one=one: merged(transaction, one, self._clock.now_us()))
                )
            except CaplineError as error:
                answers.append(error)
        return answers

    @override
    def scan(self, compiled: Sequence[LocalRule], after: tuple[str, object] | None = None) -> Page:
        """One transaction a page."""
        refs = _all_refs(compiled)
        return self._transact(
            lambda transaction: next_page(partial(self._walk, transaction), refs, after, self._clock.now_us())
        )

    def _caught(self, transaction: LogTransaction, attempt: StoreAttempt) -> Decision | CaplineError:
        try:
            return self._operations.decide(transaction, attempt)
        except (IdConflictError, NoRoomError) as error:
            return error

    def _rows(
        self, transaction: LogTransaction, batch: Batch, rows: slice, failed: dict[int, CaplineError], *, record: bool
    ) -> list[Decision]:
        """Decide these rows of a batch in this transaction, or with `record` off only peek."""
        answer = self._operations.decide if record else self._operations.peek
        compiled, cost = batch.compiled, batch.cost
        answers: list[Decision] = []
        for row, (code, subject) in enumerate(rows_of(batch, rows), rows.start):
            try:
                answers.append(answer(transaction, StoreAttempt(compiled[code], subject, cost)))
            except NoRoomError as error:
                failed[row] = error
                answers.append(NO_ANSWER)
        return answers

    def _in_parts(self, batch: Batch, *, record: bool) -> Decisions:
        """A transaction a part."""
        errors: dict[int, CaplineError] = {}

        def answers(part: slice) -> list[Decision]:
            def but(damaged: dict[int, CaplineError]) -> list[Decision]:
                found = self._transact(
                    lambda transaction: self._rows_but(damaged, transaction, batch, part, record=record)
                )
                errors.update(damaged)
                return found

            return self._sound(batch, part, but, record=record)

        return in_parts(batch, answers, errors)

    def _rows_but(
        self,
        damaged: dict[int, CaplineError],
        transaction: LogTransaction,
        batch: Batch,
        rows: slice,
        *,
        record: bool,
    ) -> list[Decision]:
        """`_rows` without the damaged ones, which have no answer."""
        answers: list[Decision] = []
        first = rows.start
        for row in sorted(row for row in damaged if rows.start <= row < rows.stop):
            answers += self._rows(transaction, batch, slice(first, row), damaged, record=record)
            answers.append(NO_ANSWER)
            first = row + 1
        return answers + self._rows(transaction, batch, slice(first, rows.stop), damaged, record=record)

    def _sound(self, batch: Batch, rows: slice, decide: Callable[[dict[int, CaplineError]], _T], *, record: bool) -> _T:
        """What `decide` answers, given which of these rows of the batch are damaged."""
        return past_damage(
            self._transact,
            decide,
            range(*rows.indices(len(batch.subjects))),
            lambda transaction, row: self._rows(transaction, batch, slice(row, row + 1), {}, record=record),
        )

    def _each(self, items: Sequence[_Item], work: Callable[[LogTransaction, _Item], _T]) -> list[_T | CaplineError]:
        """One transaction for every few hundred items; one whose log is damaged is its error."""

        def answers(rows: range) -> list[_T | CaplineError]:
            return past_damage(
                self._transact,
                lambda damaged: self._transact(
                    lambda transaction: [
                        damaged[row] if row in damaged else work(transaction, items[row]) for row in rows
                    ]
                ),
                rows,
                lambda transaction, row: work(transaction, items[row]),
            )

        given: list[_T | CaplineError] = []
        for part in parts_of(len(items)):
            given += answers(range(part.start, part.stop))
        return given


def _all_refs(compiled: Sequence[LocalRule]) -> dict[str, LogRef]:
    """The logs of these rules by name, and where their numbers are."""
    refs = {ref.name: ref for bound in compiled for ref in (*bound.refs, *bound.channel_refs)}
    return refs | {bound.numbers.name: bound.numbers for bound in compiled if bound.numbers is not None}
