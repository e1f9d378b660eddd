"""Turns a verb's arguments into a store's, and the store's answers into the caller's.

No I/O, but for reading an override that is not cached.

loose values  ->  checked, with a compiled rule  ->  [the store]  ->  answers in order
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec

from capline.limiter.arguments.checks import check_attempt, check_subjects, count_of, fingerprint, stamp, typed
from capline.limiter.arguments.columns import AttemptColumns, columns_of
from capline.limiter.arguments.records import LogRecord, PastHit, check_rows, records_of
from capline.limiter.base import LimiterBase
from capline.limiter.observed import UNOBSERVED, Unobserved
from capline.limiter.policies import shadow
from capline.limiter.policies.deny_cache import DenyCache
from capline.model.attempt import Attempt, check_cost, check_id
from capline.model.decision import Decision
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError, StoreError, quoted
from capline.model.policy import NUMBERS
from capline.model.subject import Subject, check_subject
from capline.store.columns import plain
from capline.store.protocol import Batch, Merge, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.limiter.arguments.records import LoadProgress, Record
    from capline.model.limit import Limit
    from capline.store.protocol import CompiledRule, Kind, ScannedLog


_ZERO = 0


class PendingBatch(msgspec.Struct):
    """A batch of single attempts: those to decide, and the rows of `answers` that wait for the store.

    `named` has by row the attempts whose names are known; `seen` is the observers' block of the call.
    """

    answers: list[Decision | CaplineError | None]
    rows: list[int]
    attempts: list[Attempt]
    to_decide: list[Operation]
    denied: DenyCache
    epoch: tuple[int, int]
    named: list[Attempt | None]
    seen: Unobserved = UNOBSERVED


class CheckedCalls(LimiterBase):
    """Checks and compiles attempts for a store, and puts its answers in the caller's order."""

    def _limiter_of(self, policy: str, limits: Sequence[Limit | str] | None) -> Self:
        """This limiter; where limits came with the call, the one of them."""
        return self if limits is None else self._with_limits(policy, limits)

    def log_of(self, policy: str, limits: Sequence[Limit | str] | None = None) -> str:
        """The name of the log that is decided on, which other policies may share; raises as `decide` does."""
        return self._limiter_of(policy, limits)._rules.policy(policy).log  # noqa: SLF001 - of its kind

    def _checked(self, attempt: Attempt, *, look_up: bool = True, least: int = 1) -> Attempt:
        """The attempt, checked, without names that make no difference to its policy."""
        policy, limits = attempt.policy, attempt.limits
        if limits is not None:
            plain = msgspec.structs.replace(attempt, limits=None)
            checked = self._with_limits(policy, limits)._checked(plain)  # noqa: SLF001 - of its kind
            return msgspec.structs.replace(checked, limits=limits)
        if self._next is not None:
            self._turn()
        try:
            names = self._rules.known(*attempt.names)
        except TypeError as error:
            raise typed(error, *attempt.names) from None
        if attempt.id is not None:
            check_id(attempt.id)
        _, segment, channel, zone = names
        if segment is None and look_up and self._lookup is not None:
            segment = self._looked_up(self._rules.policy(policy), check_subject(self._short(attempt.subject)))
            self._add_fast_path_by_segment(names)
        cost = check_cost(attempt.cost, least)
        subject = self._subject(attempt.subject)
        return Attempt(policy, subject, cost, attempt.id, segment, channel, zone, None, attempt.keep_free)

    def _arguments(self, attempt: Attempt) -> tuple[CompiledRule, Subject, int, int]:
        """A store's arguments for a checked attempt."""
        if attempt.limits is not None:
            own = msgspec.structs.replace(attempt, limits=None)
            return self._with_limits(attempt.policy, attempt.limits)._arguments(own)  # noqa: SLF001 - of its kind
        compiled = self._bound(attempt.names)  # also under an override, so that the next attempt finds a fast path
        compiled = (self._overrides and self._overrides.compiled(attempt.names, attempt.subject)) or compiled
        if attempt.keep_free is not _ZERO:
            compiled = self._keeping(compiled, attempt.keep_free)
        return compiled, attempt.subject, attempt.cost, fingerprint(attempt.id)

    def _note(self, attempt: Attempt, decision: Decision, denied: DenyCache, epoch: tuple[int, int]) -> None:
        """Cache a refusal that cannot end early and need not be recorded.

        So none under `limits=`, an override or a scheduled change, under reservations, where refusals count, or where
        units had to stay free: others may take those.
        """
        if (
            decision.allowed
            or attempt.limits is not None
            or attempt.keep_free is not _ZERO
            or attempt.policy in self._overridden
            or attempt.policy in self._turning
        ):
            return
        policy = self._rules.policy(attempt.policy)
        if not policy.count_denied and not policy.reservations:
            denied.note(attempt, decision, epoch)

    def _joint_attempts(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """The parts of one attempt over several subjects, checked; raises for the first that is wrong."""
        if not 1 <= count_of(attempts, "attempts") <= self._most_joint:
            raise InvalidValueError(f"one attempt is over 1 to {self._most_joint} subjects: give a list of Attempt")
        checked = [self._checked(check_attempt(attempt)) for attempt in attempts]
        logs = {(self.log_of(attempt.policy, attempt.limits), attempt.subject) for attempt in checked}
        if len(logs) < len(checked):
            raise InvalidValueError("two parts of one attempt are on the same log; add up their costs in one part")
        return checked

    def _slot_attempts(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """`_joint_attempts` of one slot, which has one id in all of its logs, or none."""
        checked = self._joint_attempts(attempts)
        if any(attempt.keep_free for attempt in checked):
            raise InvalidValueError("keep_free is for an attempt that is decided now; a slot takes none")
        if len({attempt.id is None for attempt in checked}) > 1:
            raise InvalidValueError("one slot has an id in all of its attempts, or in none: give each of them the same")
        return checked

    def _operation(self, kind: Kind, attempt: Attempt, **times: Any) -> Operation:
        """A checked attempt in the form that a store takes."""
        return Operation(kind, *self._arguments(attempt), **times)

    def _pending(self, attempts: Sequence[Attempt]) -> PendingBatch:
        """The part of a batch that the store has to decide; a bad item is an error in its place, and fails no other."""
        rows = count_of(attempts, "attempts")
        pending = PendingBatch([None] * rows, [], [], [], self._denied, self._denied.epoch(), [None] * rows)
        for row, attempt in enumerate(attempts):
            try:
                pending.answers[row] = self._put(pending, row, attempt)
            except StoreError:
                with self._observers.of("decide_batch", pending.named, rows=True):
                    raise
            except CaplineError as error:
                pending.answers[row], pending.named[row] = error, None
        pending.seen = self._observers.of("decide_batch", pending.named, rows=True)
        return pending

    def _put(self, pending: PendingBatch, row: int, attempt: Attempt) -> Decision | None:
        """Add one attempt for the store to decide, or return its answer if the store is not needed."""
        checked = self._checked(check_attempt(attempt))
        pending.named[row] = checked
        held = pending.denied.answer(checked)
        if held is not None:
            return held
        try:
            pending.to_decide.append(self._operation("decide", checked))
        except StoreError as error:
            return self._outage.single("decide", error, checked)
        pending.attempts.append(checked)
        pending.rows.append(row)
        return None

    def _filled(
        self, pending: PendingBatch, decided: Sequence[Decision | CaplineError]
    ) -> list[Decision | CaplineError]:
        """All answers in order, with those of the store."""
        for row, checked, answer in zip(pending.rows, pending.attempts, decided, strict=True):
            if isinstance(answer, StoreError):
                pending.answers[row] = self._outage.item(checked, answer)
                continue
            pending.answers[row] = answer
            if isinstance(answer, Decision):
                self._note(checked, answer, pending.denied, pending.epoch)
        answers = [answer for answer in pending.answers if answer is not None]
        for row, attempt in enumerate(pending.named if self._in_shadow else ()):
            answer = answers[row]
            if attempt is not None and attempt.policy in self._in_shadow and isinstance(answer, Decision):
                answers[row] = shadow.shown(answer)
        return pending.seen(answers)

    def _columns(self, policy: str, subjects: Any, *given: Any) -> AttemptColumns:
        """A caller's arguments for many subjects, checked; `given` as in `columns_of`."""
        fill = None
        if self._lookup is not None:
            known = self._rules.policy(policy)
            fill = partial(self._lookup.fill, known) if known.by_segment else None
        return columns_of(policy, self._all_short(subjects), *given, keyed=self._keyed, fill=fill)

    def _batch(self, columns: AttemptColumns) -> Batch:
        """A store's batch for many subjects."""
        if self._next is not None:
            self._turn()
        kinds = [
            (columns.policy, segment, columns.channel, zone)
            for segment, zone in zip(columns.segments, columns.zones, strict=True)
        ]
        compiled = tuple(
            self._bound(names) if keep_free is _ZERO else self._keeping(self._bound(names), keep_free)
            for names, keep_free in zip(kinds, columns.keeps, strict=True)
        )
        if columns.policy in self._overridden and self._overrides is not None:
            return self._overrides.batch(columns, compiled, [self._rules.known(*names) for names in kinds])
        return Batch(compiled, columns.subjects, columns.codes, columns.cost, columns.receipt, columns.asked)

    def _defined(self, policy: str, segment: str | None, channel: str | None) -> tuple[str, str | None, str | None]:
        """These names without those that make no difference; raises if they are not defined."""
        try:
            names = self._rules.known(policy, segment, channel)
            if names not in self._rules_by_names:
                self._rules.rule(*names)
        except TypeError as error:
            raise typed(error, policy, segment, channel) from None
        return names[:3]

    def _refunds(
        self, subjects: Sequence[Subject] | NDArray[np.integer[Any]], hits: Sequence[int] | NDArray[np.integer[Any]]
    ) -> tuple[list[Subject], list[int]]:
        """Subjects and their hits, checked; raises for the first that is wrong."""
        if count_of(subjects, "subjects") != count_of(hits, "hits"):
            raise InvalidValueError(f"{len(subjects)} subjects and {len(hits)} hits: one hit for each subject")
        checked, errors = check_subjects(self._all_short(subjects))
        for error in errors.values():
            raise error
        named = plain(checked) if self._keyed is None else [self._keyed(subject) for subject in plain(checked)]
        return named, [stamp(hit) for hit in plain(hits)]

    def _merges(self, progress: LoadProgress) -> list[Merge]:
        """A store's merges for the records of a round; raises naming the one that is wrong."""
        merges: list[Merge] = []
        for number, record in enumerate(progress.records, progress.loaded.records + 1):
            try:
                merges.append(self._merge(record))
            except StoreError:
                raise
            except InvalidTypeError as error:
                raise InvalidTypeError(f"record {number}: {error}") from None
            except CaplineError as error:
                raise InvalidValueError(f"record {number}: {error}") from None
        return progress.grouped(merges)

    def _merge(self, record: Record) -> Merge:
        if isinstance(record, LogRecord):
            if record.keyed and self._keyed is None:
                raise InvalidValueError(
                    "its subject is a keyed hash; give the limiter the subject_key it was made with"
                )
            subject = check_subject(record.subject) if record.keyed else self._subject(record.subject)
            if not isinstance(record.log, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
                raise InvalidTypeError(
                    f"a log is named by text, like 'promo' or 'promo/push', not {quoted(record.log)}"
                )
            return Merge(self._rule_of_log(record.log), subject, check_rows(record.hits), exported=True)
        if not isinstance(record, PastHit):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            raise InvalidTypeError(f"a record is a LogRecord or a PastHit, not {type(record).__name__}")
        past = Attempt(record.policy, record.subject, record.cost, record.id, channel=record.channel)
        past = self._checked(past, look_up=False)
        if past.channel is None:
            compiled = self._rule_of_log(self._rules.policy(past.policy).log)
        else:
            compiled = self._bound(past.names)
        return Merge(compiled, past.subject, check_rows([(stamp(record.at_us), past.cost, fingerprint(past.id))]))

    def _exported(
        self, found: Sequence[ScannedLog], on_fault: Callable[[CaplineError], object] | None
    ) -> Iterator[LogRecord]:
        """The records of a page; a log that cannot be read goes to `on_fault`, or raises if there is none."""
        for scanned in found:
            if scanned.log.endswith(NUMBERS):
                continue  # what the policy counted as numbers, before it kept hits
            if scanned.error is not None:
                if on_fault is None:
                    raise scanned.error
                on_fault(scanned.error)
                continue
            yield from records_of(scanned, scanned.log.partition(":")[2], keyed=self._keyed is not None)
