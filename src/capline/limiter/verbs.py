"""Every verb of a limiter, said once; `Limiter` and `AsyncLimiter` are made from these. `limiter.steps` says how.

    arguments, checked  ->  an attempt  ->  `_attempted`, `_jointly`, `_many` or `_on_hit`  ->  the store
                                            with observers, overrides and the `OutagePolicy`

The rule: what a verb does is here. A face has what is about waiting: fast paths, sleeping, cancelling, closing.
"""

# ruff: noqa: SLF001 - verbs call the verbs of a limiter of other policies, of their kind

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from capline.limiter.arguments.checks import (
    check_attempt,
    count_of,
    fingerprint,
    joint_refusal,
    refusal_text,
    stamp,
    ttl_us,
    typed,
    waits_us,
)
from capline.limiter.arguments.columns import spread
from capline.limiter.checked import CheckedCalls
from capline.limiter.explain import explain
from capline.limiter.patience import Acquisition, WaitBudget, Wanted
from capline.limiter.policies import shadow
from capline.model.attempt import Attempt, check_cost
from capline.model.decision import LimitExceeded
from capline.model.errors import CaplineError, InvalidValueError, StoreError
from capline.model.limit import LARGEST_QUOTA
from capline.model.subject import check_subject
from capline.store.protocol import Batch, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    import numpy as np
    from numpy.typing import NDArray

    from capline.limiter.arguments.columns import AttemptColumns
    from capline.limiter.arguments.records import LoadProgress
    from capline.limiter.checked import PendingBatch
    from capline.limiter.explain import Explanation
    from capline.limiter.policies.overrides import Unit
    from capline.limiter.policies.rules import Names
    from capline.limiter.steps import Steps
    from capline.model.decision import Decision, Joint
    from capline.model.limit import Limit
    from capline.model.limit_status import LimitStatus
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.protocol import CompiledRule, Kind, Mode, Page, Store
    from capline.window.log import Hit
    from capline.window.merge import Merged
else:
    from capline.model.arrays import np

ROWS_ON_THE_LOOP = 4096
"""Rows whose checks take an event loop about a millisecond; with more, they go to a thread."""
MANY = ROWS_ON_THE_LOOP + 1
_ZERO, _ONE, _NUMBERS, _LISTS = 0, 1, (int, float), (list, tuple)
T = TypeVar("T")


class Verbs(CheckedCalls):
    """A limiter whose verbs are generators."""

    # --- what a face has --------------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def _run(steps: Steps[T]) -> Any:
        """The answer of a verb, or what is to be awaited for it."""

    @abstractmethod
    def _bare(self, compiled: CompiledRule) -> Unit:
        """What decides on one unit without an id by this rule, and nothing else."""

    @abstractmethod
    def _work(self, rows: int, work: Callable[[], Any]) -> Any:
        """Do work over so many rows; on an event loop in a thread above `ROWS_ON_THE_LOOP`."""

    @abstractmethod
    def _learn(self, policy: str, subject: Subject) -> Any:
        """Read the subject's override into the cache, where reading it later would block an event loop."""

    @abstractmethod
    def _at_hand(self) -> Store | None:
        """The store that answers at once and in this process; None where it has to be waited for."""

    @abstractmethod
    def _sleep(self, seconds: float) -> Any:
        """Wait so long."""

    # --- the ways of a call -----------------------------------------------------------------------------------------

    def _decide(self, attempt: Attempt) -> Steps[Decision]:
        """The general way of `decide`; a face has the fast paths."""
        if attempt.policy in self._in_shadow:
            return (yield from self._attempted("decide", attempt))
        with self._observers.of("decide", [attempt]) as seen:
            denied = self._denied
            held = denied.answer(attempt)
            if held is not None:
                return seen.without_store(held)
            epoch = denied.epoch()
            try:
                if attempt.policy in self._overridden:
                    yield self._learn(attempt.policy, attempt.subject)
                compiled, subject, units, fingerprint = self._arguments(attempt)
                decision: Decision
                if units == 1 and not fingerprint:
                    decision = yield self._bare(compiled)(subject)
                else:
                    decision = yield self._store.step(Operation("decide", compiled, subject, units, fingerprint))
                seen(decision)
            except StoreError as error:
                return seen(self._outage.single("decide", error, attempt))
            self._note(attempt, decision, denied, epoch)
            return decision

    def _unit_of(self, names: Names, compiled: CompiledRule) -> Unit:
        bare, observers = self._bare(compiled), self._observers
        if not observers:
            return bare

        def counted(subject: Subject) -> Steps[Decision]:
            began = perf_counter()
            try:
                decision: Decision = yield bare(subject)
            except StoreError as error:
                attempt = self._checked(_unit_attempt(names, subject))
                with observers.of("decide", [attempt]).since(began) as seen:
                    return seen(self._outage.single("decide", error, attempt))
            observers.decided_one(*names[:3], decision, perf_counter() - began)
            return decision

        return lambda subject: self._run(counted(subject))

    def _general(self, names: Names) -> Unit:
        return lambda subject: self._run(self._decide(self._checked(_unit_attempt(names, subject))))

    def _single(self, kind: Kind, attempt: Attempt, **times: int | None) -> Steps[Decision]:
        """An operation of this kind on one log, straight to the store where nothing else looks at the attempt."""
        compiled = self._direct_rule(attempt)
        if compiled is None:
            return self._attempted(kind, self._checked(attempt), **times)
        return self._direct_step(direct_operation(kind, compiled, attempt, **times), attempt, times)

    def _direct_step(self, operation: Operation, attempt: Attempt, times: dict[str, int | None]) -> Steps[Decision]:
        """This operation; in an outage the answer to the attempt."""
        try:
            decision: Decision = yield self._store.step(operation)
        except StoreError as error:
            return self._outage.single(operation.kind, error, self._checked(attempt), **times)
        return decision

    def _attempted(self, kind: Kind, attempt: Attempt, **times: int | None) -> Steps[Decision]:
        """An operation of this kind on the log of one attempt; `times` are those of `Operation`."""
        with self._observers.of(kind, [attempt]) as seen:
            return seen((yield from self._answer(kind, attempt, times)))

    def _answer(self, kind: Kind, attempt: Attempt, times: Mapping[str, int | None]) -> Steps[Decision]:
        """What the store answers, or stands in for it in an outage; under a policy in shadow as it is told."""
        in_shadow = attempt.policy in self._in_shadow
        if in_shadow:
            times = shadow.at_once(times)
        try:
            if attempt.policy in self._overridden:
                yield self._learn(attempt.policy, attempt.subject)
            answer: Decision = yield self._store.step(self._operation(kind, attempt, **times))
        except StoreError as error:
            answer = self._outage.single(kind, error, attempt, **times)
        return shadow.shown(answer, times.get("not_before_us") or 0) if in_shadow else answer

    def _jointly(self, kind: Kind, attempts: Sequence[Attempt], **times: int | None) -> Steps[Joint]:
        """An operation of this kind on several logs at once."""
        binds = self._in_shadow.isdisjoint([attempt.policy for attempt in attempts])
        with self._observers.of(f"{kind}_all", attempts) as seen:
            return seen((yield from (self._answer_all if binds else self._beside_shadows)(kind, attempts, times)))

    def _answer_all(self, kind: Kind, attempts: Sequence[Attempt], times: Mapping[str, int | None]) -> Steps[Joint]:
        """What the store answers to all of them as one, or stands in for it in an outage."""
        try:
            if self._overridden:
                for attempt in attempts:
                    yield self._learn(attempt.policy, attempt.subject)
            answer: Joint = yield self._store.joint([self._operation(kind, attempt, **times) for attempt in attempts])
        except StoreError as error:
            answer = self._outage.joint(kind, error, attempts, **times)
        return answer

    def _beside_shadows(self, kind: Kind, attempts: Sequence[Attempt], times: Mapping[str, int | None]) -> Steps[Joint]:
        """All that bind or none; if all are allowed, then each in shadow by itself, which fails nothing of the others.

        A slot for all is where those that bind have theirs: the others are recorded there if they are free then.
        """
        apart = [place for place, attempt in enumerate(attempts) if attempt.policy in self._in_shadow]
        places = [place for place in range(len(attempts)) if place not in apart]
        binding: tuple[Joint, list[int]] | None = None
        if places:
            joint = yield from self._answer_all(kind, [attempts[place] for place in places], times)
            binding = joint, places
            if "not_before_us" in times:
                times = {**times, "not_before_us": joint.wait_us}
        answers: dict[int, Decision] = {}
        for place in apart if binding is None or binding[0].allowed else ():
            try:
                answers[place] = yield from self._answer(kind, attempts[place], times)
            except CaplineError:
                if binding is None:
                    raise
        return shadow.together(kind, len(attempts), binding, answers)

    def _many(self, mode: Mode, policy: str, subjects: Any, *given: Any) -> Steps[Decisions]:
        """Operations on many subjects, as columns; `given` as in `columns_of`."""
        rows = count_of(subjects, "subjects")
        columns: AttemptColumns = yield self._work(rows, partial(self._columns, policy, subjects, *given))
        with self._observers.many(f"{mode}_many", columns, self._defined) as seen:
            answers: Decisions
            try:
                overridden = columns.policy in self._overridden
                batch: Batch = yield self._work(MANY if overridden else 0, partial(self._batch, columns))
                answers = yield self._store.columns(batch, mode)
            except StoreError as error:
                answers = yield self._work(rows, partial(self._outage.many, mode, error, columns))
            seen.store_answered()

            def built() -> Decisions:
                self._outage.fix(mode, columns, answers)
                shown = shadow.shown_many(answers) if policy in self._in_shadow else answers
                return spread(columns, seen(shown))

            return (yield self._work(rows, built))

    def _on_hit(self, kind: Kind, policy: str, subject: Subject, hit: int | None, cost: int = 1) -> Steps[bool]:
        """An operation of this kind on the hit that a decision named."""
        if hit is None:
            return False
        subject = self._subject(subject)
        try:
            if policy in self._overridden:
                yield self._learn(policy, subject)
            compiled = self._rule_of_hits(policy, subject)
            done: bool = yield self._store.step(Operation(kind, compiled, subject, cost, stamp_us=stamp(hit)))
            return done
        finally:
            self._denied.forget((subject,))

    def _moved(self, attempt: Attempt, hit: int | None, **times: int | None) -> Steps[Decision]:
        """The slot with this hit, or with the attempt's id, once it was asked for an earlier instant."""
        attempt = self._checked(attempt)
        if not self._rules.can_move(attempt.policy):
            raise InvalidValueError(f"policy {attempt.policy!r}: only sliding_log without count_denied can move a slot")
        stamp_us = 0 if hit is None else stamp(hit)
        try:
            if attempt.policy in self._overridden:
                yield self._learn(attempt.policy, attempt.subject)
            slot: Decision = yield self._store.step(self._operation("move", attempt, stamp_us=stamp_us, **times))
            return slot
        finally:
            self._denied.forget((attempt.subject,))

    # --- the verbs --------------------------------------------------------------------------------------------------

    def _peek(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
        keep_free: int | Sequence[int] = 0,
    ) -> Steps[Decision]:
        """What `decide` would answer, with `hit` None; consumes nothing.

        With a `cost` of 0 it asks whether no limit is past its quota: allowed while anything is left or the quota is
        exactly used, and `remaining` is what is left now. Quiet hours and slots ahead refuse it as any attempt.
        """
        limiter = self._limiter_of(policy, limits)
        attempt = Attempt(policy, subject, cost, id, segment, channel, zone, None, keep_free)
        if type(cost) is int and cost > 0:
            return limiter._single("peek", attempt)
        attempt = limiter._checked(attempt, least=0)
        if not attempt.cost and id is not None:
            raise InvalidValueError("a peek of cost 0 looks at what is left; it takes no id")
        return limiter._attempted("peek", attempt)

    def _charge(
        self,
        policy: str,
        subject: Subject,
        cost: int,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Steps[Decision]:
        """Record `cost` units, whatever the limits say: for what has happened already, as tokens that were used.

        Past a quota it means waiting longer: until then attempts are refused, `peek(cost=0)` too. The answer is
        allowed, with the `hit`, and `remaining` as of after it. A charge is stamped now, before slots that are taken.
        The same `id` counts once, as in `decide`; with another cost it raises `IdConflictError`. Raises
        `InvalidValueError`, and records nothing, for more units than a log can count (2^53 - 1, fewer under
        `sliding_counter` and `gcra`), and `StoreError` in any outage: `on_store_error` cannot record it. Costs as much
        as a `decide` with a cost.
        """
        return self._single("charge", Attempt(policy, subject, cost, id, segment, channel, zone))

    def _settle(self, policy: str, subject: Subject, hit: int | None, cost: int) -> Steps[bool]:
        """Give a hit that was an estimate the units that it really cost; True if there was such a hit.

        Less is given back at once. More is recorded even past the quota, so that the next attempts wait. The hit keeps
        its stamp and its id, so the same settlement twice is once; `cost` 0 is a refund. False, and nothing changed,
        for a hit that is unknown, given back or older than the widest window; `charge` what it cost then. Under
        algorithms that keep sums the hit must have been made with an `id`, or it is False as well. Raises
        `InvalidValueError` for more units than a log can count, `StoreError` in any outage. Costs as much as `refund`.
        """
        return self._on_hit("settle", policy, subject, hit, check_cost(cost, 0))

    def _usage(
        self,
        policy: str,
        subject: Subject,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Steps[tuple[LimitStatus, ...]]:
        """What is used and left of each limit now, in the policy's order, then the channel's; consumes nothing.

        Unlike `peek`, which answers as of after an attempt, this has no attempt: of an empty 10/s 0 are used and 10
        left. Slots that are taken count as used. Raises `StoreError` in any outage. Costs as much as `peek`.
        """
        return self._used(self._checked(Attempt(policy, subject, 0, None, segment, channel, zone), least=0))

    def _used(self, attempt: Attempt) -> Steps[tuple[LimitStatus, ...]]:
        if attempt.policy in self._overridden:
            yield self._learn(attempt.policy, attempt.subject)
        decision: Decision = yield self._store.step(self._operation("peek", attempt))
        return decision.limits

    def _decide_all(self, attempts: Sequence[Attempt]) -> Steps[Joint]:
        """May all of these have their cost now, or none? One attempt over up to 16 subjects, each under its own policy.

        "This user, and the campaign's total, and the whole tenant": consumes in every log when all limits hold, nothing
        otherwise. One atomic step on memory, lmdb, a single server, and where all logs are in one slot of a cluster.
        Across slots of a cluster one slot after the other consumes, and all are refunded once one refuses: no limit is
        ever exceeded, but other callers may be refused until the refund. A part with an `id` counts once. Each part is
        decided and stamped at the time of its own log, as by `decide`. A refusal is not recorded, whatever
        `count_denied` says. Raises `StoreUnknownError` where a part may stay recorded though the whole was not allowed,
        because a connection was lost across slots.
        """
        return self._jointly("decide", self._joint_attempts(attempts))

    def _peek_all(self, attempts: Sequence[Attempt]) -> Steps[Joint]:
        """What `decide_all` would answer; consumes nothing. Slots of a cluster are read at slightly different times."""
        return self._jointly("peek", self._joint_attempts(attempts))

    def _decide_batch(self, attempts: Sequence[Attempt]) -> Steps[list[Decision | CaplineError]]:
        """Decide attempts of any policies, in order, each by itself.

        One bad item is an error in its place, and fails no other.
        """
        rows = count_of(attempts, "attempts")
        # Where it may have to read overrides it is work for a thread, however few the rows.
        pending: PendingBatch = yield self._work(MANY if self._overridden else rows, partial(self._pending, attempts))
        with pending.seen as seen:
            decided: Sequence[Decision | CaplineError]
            try:
                decided = yield self._store.rows(pending.to_decide)
            except StoreError as error:
                self._outage.check(error)
                decided = [error] * len(pending.to_decide)
            seen.store_answered()
            answers: list[Decision | CaplineError] = yield self._work(rows, partial(self._filled, pending, decided))
            return answers

    def _decide_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        zone: str | Sequence[str | None] | None = None,
        cost: int = 1,
        receipt: str | None = None,
        keep_free: int | Sequence[int] | Sequence[Sequence[int]] | NDArray[np.integer[Any]] = 0,
    ) -> Steps[Decisions]:
        """Decide one attempt for each subject, in order, as columns; about 2 µs a row on lmdb.

        `segment` and `zone` are one name for all, or a list with one for each subject; or, faster, a list of distinct
        names with `codes`: `codes[i]` is the index of row i's name. The same subject twice is two attempts, in
        sequence. An invalid subject is an entry in `errors` and fails no other. A `receipt` makes the call safe to
        repeat: for as long as the widest window the same batch under the same receipt gets the first answers back and
        consumes nothing; another batch under it, in the same namespace, raises `IdConflictError`. `keep_free` is as in
        `decide`: one number for all, an array with one for each row, or with a row of numbers for each, one a limit.
        """
        return self._many("decide", policy, subjects, segment, codes, channel, cost, zone, receipt, keep_free)

    def _peek_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        zone: str | Sequence[str | None] | None = None,
        cost: int = 1,
        keep_free: int | Sequence[int] | Sequence[Sequence[int]] | NDArray[np.integer[Any]] = 0,
    ) -> Steps[Decisions]:
        """What `decide` would answer for each subject alone, as columns; consumes nothing."""
        return self._many("peek", policy, subjects, segment, codes, channel, cost, zone, None, keep_free)

    def _refund_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        hits: Sequence[int] | NDArray[np.integer[Any]],
        cost: int = 1,
    ) -> Steps[NDArray[np.bool_]]:
        """`refund` for many hits of one policy, in one step; `subjects[i]` had `hits[i]`."""
        rows = count_of(subjects, "subjects")
        named: list[Subject]
        stamps_us: list[int]
        named, stamps_us = yield self._work(rows, partial(self._refunds, subjects, hits))
        units = check_cost(cost)
        try:
            if not self._needs_each(policy):
                batch = Batch((self._any_rule(policy),), named, cost=units, stamps_us=stamps_us)
                refunded: NDArray[np.bool_] = yield self._store.columns(batch, "refund")
                return refunded
            each: list[bool] = []
            for subject, stamp_us in zip(named, stamps_us, strict=True):
                yield self._learn(policy, subject)
                compiled = self._rule_of_hits(policy, subject)
                each.append((yield self._store.step(Operation("refund", compiled, subject, units, stamp_us=stamp_us))))
            return np.array(each, np.bool_)
        finally:
            self._denied.forget(named)

    def _refund(
        self,
        policy: str,
        subject: Subject,
        hit: int | None,
        cost: int = 1,
        *,
        limits: Sequence[Limit | str] | None = None,
    ) -> Steps[bool]:
        """Refund the hit that a decision named, in the policy's log and its channel's; True once, False after.

        A hit older than the widest window has left the log by itself: False. Its id, if it had one, is free again.
        `cost` is the hit's cost. It is used only if the policy's algorithm keeps no single hits: then each refund of a
        hit without an id takes that cost off again.
        """
        limiter = self._limiter_of(policy, limits)
        return limiter._on_hit("refund", policy, subject, hit, 1 if hit is None else check_cost(cost))

    def _refund_all(self, attempts: Sequence[Attempt], hits: Sequence[int | None]) -> Steps[int]:
        """Refund every hit of a `decide_all`, one after the other; returns how many were refunded.

        `attempts` and `hits` are those of the call and of its answer; None is none.
        """
        refunded = 0
        if count_of(attempts, "attempts") != count_of(hits, "hits"):
            raise InvalidValueError(f"{len(attempts)} attempts and {len(hits)} hits: one hit for each attempt")
        checked = [*map(check_attempt, attempts)]
        for attempt, hit in zip(checked, hits, strict=True):
            refunded += yield from self._refund_of(attempt, hit)
        return refunded

    def _schedule(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        max_wait: float | None = None,
        not_before: float = 0,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
    ) -> Steps[Decision]:
        """Take the next free slot, after all slots that are taken: `wait` seconds from now.

        It is at least `not_before` seconds from now. Later callers get later slots, so one unit placed in the future
        makes every host wait. Refused, with nothing taken, if the slot is more than `max_wait` seconds away or the cost
        can never fit. Give an unused slot back with `refund`. `limits` as in `decide`.
        """
        attempt = Attempt(policy, subject, cost, id, segment, channel, zone)
        return self._limiter_of(policy, limits)._single("schedule", attempt, **waits_us(max_wait, not_before))

    def _schedule_all(
        self, attempts: Sequence[Attempt], *, max_wait: float | None = None, not_before: float = 0
    ) -> Steps[Joint]:
        """Take the next instant that is free under all of these policies: one slot, `wait` seconds from now, or none.

        "Ten requests and 40,000 tokens a minute, of this key and of its organisation": up to 16 attempts, each with its
        own cost, each on a log of its own, are recorded at the same instant, or nowhere. Bounds as in `schedule`. It
        comes after every slot that is taken on any of the logs, so whoever shares a log gets slots in the order in
        which they asked. An id names the slot in all logs: each attempt has one, or none has, and a retry gets the
        same hits. Raises `InvalidValueError` where a cluster keeps the logs in more than one slot, saying how
        to bring them together, and `IdConflictError` where the ids are known in some of the logs only. Give an unused
        slot back with `refund_all`. Costs as much as `decide_all`.
        """
        waits = waits_us(max_wait, not_before)
        return self._jointly("schedule", self._slot_attempts(attempts), **waits)

    def _acquire(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        timeout: float | None = None,
        not_before: float = 0,
        slack: float | None = None,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
    ) -> Wanted[Decision]:
        """`schedule`, then sleep until the slot; raises `LimitExceeded` at once if the slot is past the timeout.

        A store that does not answer is tried again, with backoff, until the timeout (30 s if there is none); then its
        `StoreError` is raised. With `on_store_error` "allow" or "deny" the answer is that, at once. An interrupted
        sleep gives the slot back; an exception inside the block does not, since the call was made. The same `id` again
        is the same slot, for a call that is retried: it goes at once where its slot is over, and consumes nothing more.
        A slot that its `id` has past the timeout is refused too, and stays.

        While it sleeps it asks for an instant that others gave back (`move`), after each twentieth of what is left of
        its wait, but at most once in window / quota of the limit that binds: some 2 calls where 4 wait at once, 10
        where 20 do, 20 where 100 do. Its `hit` and its `wait` are those of where it went.

        `slack` is how many seconds after its slot it may wake up, as on a busy host: whoever is later gives the slot
        back and takes another, ten times at most, instead of going beside others. None: however late. A slot that was
        over when its `id` was asked for again stays used, since the call may have been made in it.

        Cancelling an awaited one gives the slot back, also while it is being taken. It waits for that refund, so a
        cancelled caller goes on when the store has answered.
        """
        attempt = Attempt(policy, subject, cost, id, segment, channel, zone)
        return partial(self._wanted, attempt, limits, timeout, not_before, slack)

    def _acquire_all(
        self,
        attempts: Sequence[Attempt],
        *,
        timeout: float | None = None,
        not_before: float = 0,
        slack: float | None = None,
    ) -> Wanted[Joint]:
        """`schedule_all`, then sleep until the slot; as `acquire`, for all of these attempts or none.

        Raises `LimitExceeded` at once, with nothing taken, if the slot is past the timeout. An interrupted sleep gives
        every part of the slot back; so does one that ends later than the `slack`, and another slot is taken.
        """
        return lambda: self._joint_acquisition(attempts, timeout, not_before, slack)

    def _move(
        self,
        policy: str,
        subject: Subject,
        hit: int | None,
        id: str | None = None,
        *,
        not_before: float = 0,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
    ) -> Steps[Decision]:
        """Move a slot that lies ahead to the earliest instant that has become free before it; answers where it is now.

        `hit` is the slot's, or `id` the one it was taken under; the names are those of the `schedule`. The earlier
        instant is at least `not_before` seconds from now, and after every slot in front that was not given back: nobody
        is passed. The slot then has another `hit`, by which it is refunded; the old one says nothing any more. Where
        nothing is free, or its time has come, it stays. Not allowed for a hit that is unknown or was given back.

        Moved again it stays, so a call with an `id` can be repeated. `acquire` asks by itself. Raises
        `InvalidValueError` where single hits are not kept or refusals count, and for a slot without a channel under a
        policy that has channels; `StoreError` in any outage. One part of a `schedule_all` must not be moved alone.
        Costs as much as `schedule`, and O(hits behind it).
        """
        attempt = Attempt(policy, subject, 1, id, segment, channel, zone)
        limiter = self._limiter_of(policy, limits)
        channels = limiter._rules.policy(policy).channels
        if channels and channel not in channels:
            # Moved in the policy's log alone, it would no longer count in the channel that it may have been taken for.
            raise InvalidValueError(f"policy {policy!r} has channels: name the channel that the slot was taken for")
        return limiter._moved(attempt, hit, **waits_us(None, not_before))

    def _reserve(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        ttl: float = 60,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Steps[Decision]:
        """May the subject have `cost` units now? As `decide`, but the hit holds for `ttl` seconds unless committed.

        `decision.hit` names the reservation. Until `ttl` (a microsecond to a day) is over, from the hit's stamp on and
        by the store's clock, it counts as any hit does, and a `retry_after` supposes that it stays. From then on it
        counts for nobody, as if it had been refunded: its id, if it had one, is free again. The same `id` is one
        reservation: a retry gets the same hit, and the first `ttl` holds; one that `decide` recorded is
        answered too, and is no reservation. A hit that leaves the widest window before that counts no more.

        The policy has `reservations=True`; else it raises `InvalidValueError`. In an outage the answer is the one that
        `on_store_error` chose, with nothing to commit. Costs as much as a `decide` with a cost, and O(pending).
        """
        self._rules.check_reserves(policy)
        attempt = Attempt(policy, subject, cost, id, segment, channel, zone)
        return self._single("reserve", attempt, ttl_us=ttl_us(ttl))

    def _commit(self, policy: str, subject: Subject, hit: int | None) -> Steps[bool]:
        """Keep the reserved hit: from now on it is an ordinary one, at its old stamp. Whether it counts.

        False, and nothing changed, once it has expired, was cancelled or has left the widest window: the caller does
        not hold it any longer, and others may have had its place. True again for one that is committed already, so
        that a commit whose answer was lost can be asked again. Raises `StoreError` in any outage.
        """
        self._rules.check_reserves(policy)
        return self._on_hit("commit", policy, subject, hit)

    def _cancel(self, policy: str, subject: Subject, hit: int | None) -> Steps[bool]:
        """Give the reserved hit back before it expires; True once, False after. It is `refund`, of any hit."""
        self._rules.check_reserves(policy)
        return self._refund(policy, subject, hit)

    def _explain(
        self,
        policy: str,
        subject: Subject,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        ids: Sequence[str] = (),
    ) -> Steps[Explanation]:
        """Why an attempt would be allowed or refused now: limits in force, hits that count, when each unit frees.

        A hit recorded under one of these `ids` names it: so you see which message, or which campaign, used the unit.
        """
        attempt = self._checked(Attempt(policy, subject, 1, None, segment, channel, zone))
        return self._explained(subject, attempt, ids)

    def _explained(self, subject: Subject, attempt: Attempt, ids: Sequence[str]) -> Steps[Explanation]:
        if attempt.policy in self._overridden:
            yield self._learn(attempt.policy, attempt.subject)
        arguments = self._arguments(attempt)
        count_of(ids, "ids")
        given = {fingerprint(id): id for id in ids}
        decision: Decision = yield self._store.step(Operation("peek", *arguments))
        in_shadow = attempt.policy in self._in_shadow
        decision = shadow.shown(decision) if in_shadow else decision
        logs: list[list[Hit]] = yield self._store.recorded(*arguments[:2])
        now_us: int = yield self._store.now_us()
        rule = self._overrides and self._overrides.rule(attempt.names, attempt.subject)
        rule = rule or self._rules.rule(*attempt.names)
        why = explain(rule, check_subject(self._short(subject)), now_us, decision, logs, given)
        return msgspec.structs.replace(why, shadow=True) if in_shadow else why

    def _override(
        self,
        policy: str,
        subject: Subject,
        limits: Sequence[Limit | str] | None,
        *,
        granularity: str | None = None,
        effective_at: str | datetime | None = None,
        until: str | datetime | None = None,
        who: str | None = None,
    ) -> Steps[int]:
        """Give one subject limits of its own under a policy, or with None the policy's again; `limits` is a list.

        They replace the policy's limits, and those of its segments, in every verb; a channel's limits hold beside them,
        and the log keeps its history. `granularity` (like `"100ms"`) replaces that of a `bucketed` policy. At once
        here, elsewhere within two seconds; or at `effective_at`, an instant at least 3 seconds ahead. Or until `until`,
        such an instant too: what the subject had before then holds again. It is kept in the configuration store
        (`config=`); a limiter on `memory://` needs none. Returns the configuration's version. Costs some round trips to
        that store.
        """
        return self._written(policy, subject, limits, granularity, effective_at=effective_at, until=until, who=who)

    def _written(
        self, policy: str, subject: Subject, limits: Sequence[Limit | str] | None, granularity: str | None, **when: Any
    ) -> Steps[int]:
        """The version after an override; `when` are `effective_at`, `until` and `who`."""
        from capline.config.changes import own_of  # noqa: PLC0415 - loaded where there is one

        config, named = self._override_in(policy, subject)
        own_of(policy, self._rules.policy(policy), limits, granularity)
        write = partial(config.override, granularity=granularity, **when)
        version: int = yield self._work(MANY, partial(write, policy, named, limits))
        return version

    def _flush(self, policy: str) -> Steps[int]:
        """Forget every subject of the policy, for tests; returns how many. Policies that share its log forget them too.

        Attempts made meanwhile may stay. It reads every log of the policy, so it costs as much as `export`.
        """
        compiled = [self._any_rule(policy)]
        subjects: set[Subject] = set()
        page: Page = yield self._store.scan(compiled)
        while True:
            subjects.update(log.subject for log in page.found if log.subject is not None)
            if page.after is None:
                break
            page = yield self._store.scan(compiled, page.after)
        for subject in subjects:
            yield self._store.erase(compiled, subject)
        overridden: list[Subject] = yield self._work(MANY, partial(self._with_own_logs, policy))
        for subject in overridden:
            yield self._learn(policy, subject)
            if (yield self._store.erase([self._rule_of_hits(policy, subject)], subject)):
                subjects.add(subject)
        self._denied.forget(subjects)
        return len(subjects)

    def _erase(self, subject: Subject) -> Steps[int]:
        """Forget the subject in every policy of this limiter; returns how many logs held something."""
        subject = self._subject(subject)
        self._outage.forget(subject)
        try:
            filled: Collection[str] | None = yield self._store.filled(len(self._rules.policies))
            policies = self._rules.on_logs(filled)
            for policy in policies:
                if policy.name in self._overridden:
                    yield self._learn(policy.name, subject)
            logs: int = yield self._store.erase(self._all_rules(policies, subject), subject)
            return logs
        finally:
            self._denied.forget((subject,))

    def _sweep(self) -> Steps[int]:
        """Remove the logs whose every hit is out of every window; returns how many. Decisions go on meanwhile."""
        self._outage.sweep()
        filled: Collection[str] | None = yield self._store.filled(len(self._rules.policies))
        logs: int = yield self._store.sweep(self._all_rules(self._rules.on_logs(filled)))
        return logs

    def _now_us(self) -> Steps[int]:
        """The instant that the store would decide at."""
        now_us: int = yield self._store.now_us()
        return now_us

    def _try_write(self) -> Steps[None]:
        """Raise the `StoreError` that keeps new subjects from being recorded now, like a full disk; records nothing.

        Of the servers of a cluster it asks one.
        """
        yield self._store.try_write()

    def _servers(self) -> Steps[list[ServerState]]:
        """How each server of the store that holds logs is doing: its circuit breaker here, memory, connections.

        Empty for a store of this machine. Asks each server once, waits at most 2 s for each, and raises for none.
        """
        servers: list[ServerState] = yield self._store.servers()
        return servers

    # --- parts of verbs that differ by face -------------------------------------------------------------------------

    def _loaded(self, progress: LoadProgress) -> Steps[None]:
        """A round of `load`: the records that wait."""
        outcomes: Sequence[Merged | CaplineError] = ()
        if progress.records:
            outcomes = yield self._store.merge(self._merges(progress))
        progress.take(outcomes)

    def _wanted(
        self,
        attempt: Attempt,
        limits: Sequence[Limit | str] | None,
        timeout: float | None,
        not_before: float,
        slack: float | None,
    ) -> Acquisition[Decision] | Decision:
        """The slot of an `acquire`, or what leads to it."""
        limiter, slot = self if limits is None else self._with_limits(attempt.policy, limits), None
        if not_before is _ZERO and slack is None and (timeout is None or (type(timeout) in _NUMBERS and timeout >= 0)):
            slot = limiter._free_slot(attempt)
        return limiter._acquisition(attempt, timeout, not_before, slack) if slot is None else slot

    def _free_slot(self, attempt: Attempt) -> Decision | None:
        """The slot of an `acquire` that sets nothing else, where it is now and its store is at hand; None: unknown."""
        compiled = self._direct_rule(attempt)
        store = None if compiled is None else self._at_hand()
        if compiled is None or store is None:
            return None
        ask, cost, id = compiled.ask, attempt.cost, attempt.id
        try:
            if ask is None:
                slot = store.step(direct_operation("schedule", compiled, attempt, max_wait_us=0))
            elif cost is _ONE and id is None:
                slot = ask(attempt.subject, 1, 0, "schedule", 0)
            else:
                slot = ask(attempt.subject, check_cost(cost), fingerprint(id), "schedule", 0)
        except StoreError:
            return None
        return slot if slot.allowed and not slot.wait_us else None

    def _asked(
        self, kind: Kind, policy: str, subject: Subject, cost: int, id: str | None, more: Any = 0
    ) -> Decision | None:
        """The answer of a store at hand, by its fast path, where nothing else looks at the attempt; else None.

        `more` is the `ttl` of a reservation, else `keep_free`.
        """
        if cost is not _ONE and (type(cost) is not int or not 0 < cost <= LARGEST_QUOTA):
            return None
        bound_us = None
        try:
            compiled = self._direct.get(policy)
            if compiled is None:
                return None
            if kind == "reserve":
                if not compiled.rule.reserved or len(compiled.rule.logs) > 1:
                    return None
                bound_us, more = ttl_us(more), 0
            elif more is not _ZERO:
                compiled = self._keeping(compiled, more)
            ask = compiled.ask
            return None if ask is None else ask(subject, cost, 0 if id is None else fingerprint(id), kind, bound_us)
        except StoreError as error:
            attempt = self._checked(Attempt(policy, subject, cost, id, keep_free=more))
            return self._outage.single(kind, error, attempt, **({} if bound_us is None else {"ttl_us": bound_us}))
        except TypeError as error:
            raise typed(error, policy) from None

    def _commitment(self, policy: str, subject: Subject, hit: int | None) -> Operation | None:
        """The commit of this hit, where it goes straight to the store; else None."""
        compiled = self._direct.get(policy) if type(policy) is str and type(hit) is int else None
        if compiled is None or not compiled.rule.reserved:
            return None
        return Operation("commit", compiled, check_subject(subject), 1, 0, hit or 0)

    def _asked_all(  # noqa: PLR0911 - one way after the other
        self, store: Store | None, kind: Kind, attempts: Any
    ) -> Joint | None:
        """The answer of this store to several attempts, where nothing else looks at any of them; else None."""
        parts = attempts if type(attempts) in _LISTS else ()
        operations: list[Operation] = []
        logs: set[tuple[str, Subject]] = set()
        try:
            if store is None or not 0 < len(parts) <= self._most_joint:
                return None
            if kind == "decide" and (answer := store.units(self._direct, parts)) is not None:
                return answer
            for attempt in parts:
                compiled = self._direct_rule(attempt) if type(attempt) is Attempt and attempt.limits is None else None
                if compiled is None:
                    return None
                subject, units = check_subject(attempt.subject), attempt.cost
                units = _ONE if units is _ONE else check_cost(units)
                name = 0 if attempt.id is None else fingerprint(attempt.id)
                operations.append(Operation(kind, compiled, subject, units, name))
                logs.add((compiled.rule.logs[0].log, subject))
        except (CaplineError, TypeError):
            return None  # which the general way says
        if len(logs) < len(parts):
            return None
        try:
            return store.joint(operations)
        except StoreError as error:
            return self._outage.joint(kind, error, self._joint_attempts(parts))

    def _acquisition(
        self, attempt: Attempt, timeout: float | None, not_before: float, slack: float | None
    ) -> Acquisition[Decision]:
        """What `acquire` does until its slot."""
        named = attempt.id is not None
        patience = WaitBudget(timeout, may_lose_answers=self._store.may_lose_answers, slack=slack, named=named)

        def move(slot: Decision) -> Steps[Decision]:
            [named] = patience.named([attempt])
            return self._moved(named, slot.hit, **patience.waits_us(not_before))

        return Acquisition(
            patience,
            lambda: self._single("schedule", *patience.named([attempt]), **patience.waits_us(not_before)),
            lambda slot: self._refund_of(attempt, slot.hit),
            lambda slot: LimitExceeded(refusal_text(attempt.policy, attempt.subject, slot), slot),
            self._sleep,
            move if self._rules.can_move(attempt.policy) else None,
        )

    def _joint_acquisition(
        self, attempts: Sequence[Attempt], timeout: float | None, not_before: float, slack: float | None
    ) -> Acquisition[Joint]:
        """What `acquire_all` does until its slot."""
        named = self._slot_attempts(attempts)[0].id is not None
        patience = WaitBudget(timeout, may_lose_answers=self._store.may_lose_answers, slack=slack, named=named)
        return Acquisition(
            patience,
            lambda: self._jointly(
                "schedule", self._slot_attempts(patience.named(attempts)), **patience.waits_us(not_before)
            ),
            lambda slot: self._refund_each(attempts, slot.hits),
            lambda slot: joint_refusal(attempts, slot),
            self._sleep,
        )

    def _refund_of(self, attempt: Attempt, hit: int | None) -> Steps[bool]:
        return self._refund(attempt.policy, attempt.subject, hit, attempt.cost, limits=attempt.limits)

    def _refund_each(self, attempts: Sequence[Attempt], hits: Sequence[int | None]) -> Steps[None]:
        """Refund every hit; raises the first error after all were tried."""
        failed: StoreError | None = None
        for attempt, hit in zip(attempts, hits, strict=False):
            try:
                yield from self._refund_of(attempt, hit)
            except StoreError as error:
                failed = failed or error
        if failed is not None:
            raise failed


def more_of(kind: Kind) -> tuple[str, Any]:
    """The argument that `_asked` takes beside a cost and an id, and what it is where it is left out."""
    return {"peek": ("keep_free", 0), "reserve": ("ttl", 60)}.get(kind, ("", 0))


def _unit_attempt(names: Names, subject: Subject) -> Attempt:
    return Attempt(names[0], subject, 1, None, *names[1:])


def direct_operation(kind: Kind, compiled: CompiledRule, attempt: Attempt, **times: Any) -> Operation:
    """An attempt that nothing but the store looks at, checked."""
    units, name = check_cost(attempt.cost), fingerprint(attempt.id)
    return Operation(kind, compiled, check_subject(attempt.subject), units, name, **times)
