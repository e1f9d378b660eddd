"""The instructions of every store on this machine, written once: which operations make one transaction.

A store adds only where logs live. `_transact(work)` runs `work(transaction)` as one atomic step, and may run it
again after LMDB's map has grown. So `work` changes logs through the transaction alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from capline.model.errors import CaplineError, IdConflictError, InvalidValueError
from capline.model.policy import LOGS, NUMBERS, RESERVED, BoundPolicy, LogLimits, check_no_replicas
from capline.store.columns import plain
from capline.store.local.batches import (
    NO_ANSWER,
    ROWS_A_TRANSACTION,
    Work,
    as_columns,
    decided_once,
    parts_of,
    past_damage,
    rows_of,
    undamaged,
)
from capline.store.local.fast_path import FastRule, Quick
from capline.store.local.operations import joint_step, recorded_hits, step
from capline.store.local.transaction import LocalRule, LogRef, LogTransaction, StoredLog
from capline.store.local.whole_logs import merged, next_page
from capline.store.protocol import Batch, Merge, Mode, Operation, Page, Store
from capline.support.override import override
from capline.window.bound_log import former_readers, readers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np

    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.window.log import Hit
    from capline.window.merge import Merged
else:
    from capline.model.arrays import np

_T = TypeVar("_T")


class LocalStore(Store, ABC):
    """Every instruction of `Store`; a store adds `_transact`, `_handle`, `_walk`, `sweep`, `close`, and fast paths."""

    may_lose_answers = False
    keeps_rows = False

    def __init__(self, clock: Clock, *, next_forms: bool = False) -> None:
        self._clock = clock
        self._next_forms = next_forms

    @abstractmethod
    def _transact(self, work: Callable[[LogTransaction], _T]) -> _T: ...

    def unit_path(self, compiled: LocalRule, unit: FastRule) -> Callable[[Subject], Decision] | None:  # noqa: ARG002 - for stores
        """See `Paths`."""
        return None

    def ask_path(self, compiled: LocalRule, quick: Quick) -> Callable[..., Decision] | None:  # noqa: ARG002 - for stores
        """See `Paths`."""
        return None

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
    def servers(self) -> list[ServerState]:
        return []

    @override
    def try_write(self) -> None:
        """There is always room."""

    def now_us(self) -> int:
        """The clock's now."""
        return self._clock.now_us()

    @override
    def compiled(self, rule: BoundPolicy, /) -> LocalRule:
        """Raises `InvalidValueError` for a rule that waits for replicas, as there are none here."""
        check_no_replicas(rule)
        name, retention_us = rule.logs[0].log, rule.logs[0].retention_us
        # Of channels, reservations and numbers that the policy had before it was changed.
        decides = any(log_limits.limits for log_limits in rule.logs)
        former = set(self._beside(name)) if decides else set[str]()
        record, beside = f"{name}/{RESERVED}", former if rule.algorithm in LOGS else set[str]()
        no_channels = {record, rule.numbers, *(log_limits.log for log_limits in rule.former)}
        channels = {*rule.channel_logs, *beside} - no_channels if rule.algorithm == "sliding_log" else set[str]()

        def ref_of(name: str) -> LogRef:
            return LogRef(LogLimits(name, (), retention_us), (), self._handle(name, retention_us))

        def was_left(name: str) -> bool:
            if name not in beside:
                return False
            ref = ref_of(name)  # a new name takes a transaction of its own
            return self._transact(lambda transaction: any(self._walk(transaction, ref, None)))

        before = self._numbers_before(rule)
        compiled = LocalRule(
            self,
            rule,
            tuple(
                LogRef(log_limits, readers, self._handle(log_limits.log, log_limits.retention_us))
                for log_limits, readers in zip(rule.logs, readers_of(rule), strict=True)
            ),
            tuple(map(ref_of, sorted(channels))),
            before=before,
        )
        parts = enumerate(rule.logs) if rule.logs[-1].part else ()
        for place in [place for place, log_limits in parts if log_limits.part != rule.logs[place - 1].part]:
            beside = beside | {*self._beside(rule.logs[place].log)}
            if was_left(numbers := f"{rule.logs[place].log}/{NUMBERS}"):
                compiled.left = {**compiled.left, place: ref_of(numbers)}
        if rule.algorithm not in LOGS or was_left(rule.numbers):
            compiled.numbers = ref_of(rule.numbers)
            compiled.begins = self.keeps_rows or self._next_forms
            # The fast path begins rows where there are no logs of single limits, or goes on with such logs.
            may_have_both = compiled.begins and not self.keeps_rows
            if not may_have_both and rule.algorithm not in LOGS and not compiled.refs[0].readers:
                compiled.meters = [ref.readers[0] for ref in compiled.refs[1:]]
        if rule.reserved or was_left(record):
            compiled.record = ref_of(rule.reserved or record)
        compiled.former = tuple(map(ref_of, sorted(former - _refs_of([compiled]).keys())))
        return compiled

    def _numbers_before(self, rule: BoundPolicy) -> dict[int, list[LogRef]]:
        places, before = [own.part for own in rule.logs], dict[int, list[LogRef]]()
        for log_limits, reader in () if self.keeps_rows else zip(rule.former, former_readers(rule), strict=True):
            ref = LogRef(log_limits, (reader,), self._handle(log_limits.log, log_limits.retention_us))
            before.setdefault(places.index(log_limits.part), []).append(ref)
        return before

    @override
    def step(self, operation: Operation, /) -> Any:
        clock = self._clock
        return self._transact(lambda transaction: step(transaction, operation, clock.now_us()))

    @override
    def joint(self, operations: Sequence[Operation], /) -> Joint:
        """One transaction."""
        return self._transact(lambda transaction: joint_step(transaction, operations, self._clock.now_us()))

    @override
    def rows(self, operations: Sequence[Operation], /) -> list[Any]:
        """One transaction for every few hundred items."""
        errors: dict[int, CaplineError] = {}

        def work(transaction: LogTransaction, rows: slice, errors: dict[int, CaplineError]) -> list[Any]:
            return self._answers(transaction, operations[rows], rows.start, errors)

        answers = [*chain(*chain(*self._parts(len(operations), work, errors)))]
        for row, error in errors.items():
            answers[row] = error
        return answers

    @override
    def columns(self, batch: Batch, mode: Mode, /) -> Any:
        """With a receipt one transaction for all, else one for every few thousand rows."""

        def work(transaction: LogTransaction, rows: slice, errors: dict[int, CaplineError]) -> Any:
            return self._batch_answers(transaction, batch, mode, rows, errors)

        if mode == "decide" and batch.receipt is not None:
            return self._decided_once(batch, batch.receipt, work)
        if mode != "refund":
            return self._columns(batch, mode, work)
        errors: dict[int, CaplineError] = {}
        given_back = [*chain(*chain(*self._parts(len(batch.subjects), work, errors)))]
        if errors:
            raise errors[min(errors)]
        return np.array(given_back, np.bool_)

    def _columns(self, batch: Batch, mode: Mode, work: Work) -> Decisions:  # noqa: ARG002 - for stores
        """The answers to decisions or peeks, a transaction a part."""
        errors: dict[int, CaplineError] = {}
        return as_columns(batch, self._parts(len(batch.subjects), work, errors), errors)

    def _decided_once(self, batch: Batch, receipt: str, work: Work) -> Decisions:
        """The answers to a batch with a receipt."""
        count, now_us = len(batch.subjects), self._clock.now_us

        def answer(transaction: LogTransaction, errors: dict[int, CaplineError]) -> Decisions:
            starts = range(0, count, ROWS_A_TRANSACTION)  # without a pause: nobody else gets in before the end
            rows = (slice(start, min(start + ROWS_A_TRANSACTION, count)) for start in starts)
            parts = (undamaged(work, transaction, part, errors) for part in rows)
            return decided_once(transaction, batch, receipt, now_us, lambda: as_columns(batch, parts, errors))

        return past_damage(self._transact, answer, slice(0, count), work, {})

    def _parts(self, count: int, work: Work, errors: dict[int, CaplineError]) -> Iterator[list[Any]]:
        """The answers to so many rows, a transaction a part, which comes in blocks."""
        for part in parts_of(count):
            yield past_damage(
                self._transact,
                lambda transaction, errors, part=part: undamaged(work, transaction, part, errors),
                part,
                work,
                errors,
            )

    def _batch_answers(
        self, transaction: LogTransaction, batch: Batch, mode: Mode, rows: slice, errors: dict[int, CaplineError]
    ) -> Any:
        """The answers to these rows of a batch, in this transaction; see `Work`."""
        compiled, cost, stamps = batch.compiled, batch.cost, plain(batch.stamps_us[rows]) or repeat(0)
        operations = (
            Operation(mode, compiled[code], subject, cost, 0, stamp_us)
            for (code, subject), stamp_us in zip(rows_of(batch, rows), stamps, strict=False)
        )
        return self._answers(transaction, operations, rows.start, errors)

    def _answers(
        self, transaction: LogTransaction, operations: Iterable[Operation], row: int, errors: dict[int, CaplineError]
    ) -> list[Any]:
        """The answers to these operations, the first of which is of this row."""
        answers: list[Any] = []
        for operation in operations:
            now_us = self._clock.now_us()
            try:
                answers.append(step(transaction, operation, now_us))
            except (IdConflictError, InvalidValueError) as error:
                errors[row] = error
                answers.append(NO_ANSWER)
            row += 1
        return answers

    @override
    def recorded(self, compiled: LocalRule, subject: Subject, /) -> list[list[Hit]]:
        return self._transact(lambda transaction: recorded_hits(transaction, compiled, subject, self._clock.now_us()))

    @override
    def erase(self, compiled: Sequence[LocalRule], subject: Subject, /) -> int:

        def forget(transaction: LogTransaction) -> int:
            refs = dict[str, LogRef]()
            for bound in compiled:
                transaction.learn(bound)
                refs |= bound.every_ref
            records = {name: refs.pop(name) for name in [*refs] if name.endswith(f"/{RESERVED}")}
            transaction.remove_all(records.values(), subject)
            return transaction.remove_all(refs.values(), subject)

        return self._transact(forget)

    @override
    def merge(self, merges: Sequence[Merge], /) -> list[Merged | CaplineError]:
        """One transaction an item."""
        answers: list[Merged | CaplineError] = []
        for item in merges:
            try:
                answers.append(
                    self._transact(lambda transaction, item=item: merged(transaction, item, self._clock.now_us()))
                )
            except CaplineError as error:
                answers.append(error)
        return answers

    @override
    def scan(self, compiled: Sequence[LocalRule], after: tuple[str, object] | None = None, /) -> Page:
        """One transaction a page."""
        refs = _refs_of(compiled)
        return self._transact(
            lambda transaction: next_page(partial(self._walk, transaction), refs, after, self._clock.now_us())
        )


def _refs_of(compiled: Sequence[LocalRule]) -> dict[str, LogRef]:
    """The logs of these rules and their channels by name, and where their numbers are."""
    before = [ref for bound in compiled for refs in bound.before.values() for ref in refs]
    refs = {ref.name: ref for ref in before}
    refs |= {ref.name: ref for bound in compiled for ref in (*bound.refs, *bound.channel_refs)}
    return refs | {bound.numbers.name: bound.numbers for bound in compiled if bound.numbers is not None}
