"""Attempts and refunds on a server, as generators: what to send, then what the replies mean. No I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from capline.model.errors import (
    CaplineError,
    InvalidValueError,
    StoreUnknownError,
)
from capline.store.receipts import batch_digest, namespace_of, receipt_conflict, receipt_name
from capline.store.redis.cluster.router import UnderReplicated
from capline.store.redis.io.wire import Reply, Steps, pack
from capline.store.redis.scripting.keys import field_of, slot_of, tag_of
from capline.store.redis.scripting.replies import (
    JointReply,
    ReplyColumns,
    damaged,
    decisions,
    joint_reply,
    one_decision,
)
from capline.store.redis.scripting.requests import (
    DECIDE,
    PEEK,
    PLACE,
    Head,
    Part,
    batch_parts,
    joint_call,
    joint_groups,
    keys_of,
    one_payload,
    row_parts,
    single_call,
)
from capline.store.redis.scripting.scripts import ONE, REFUND, Call
from capline.store.redis.session import sound
from capline.window.charge import too_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from capline.model.decision import Decision, Joint
    from capline.model.limit_status import LimitStatus
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.protocol import Batch, StoreAttempt
    from capline.store.redis.cluster.router import InFlight
    from capline.store.redis.scripting.compiled_rule import Family, RedisRule
    from capline.store.redis.session import Session

__all__ = ["Verbs"]

IN_FLIGHT = 2
"""Parts of a batch in flight: the servers decide one while the next is built."""

ROWS_A_ROUND = 10_000
"""Refunds in one round trip."""

NO_ROOM = -2
"""The reply of refund.lua for more units than a log can count."""

A_ROW_S = 0.0001
"""Seconds that each attempt of a batch adds to the deadline: some 20 us on the server, and as much here."""


class Verbs:
    """The verbs for attempts, single or in batches. Threads share it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._router = session.router

    def one(
        self,
        compiled: RedisRule,
        subject: Subject,
        mode: int,
        cost: int,
        fingerprint: int,
        slot: tuple[int, int] = (-1, 0),
    ) -> tuple[Call, int]:
        """The call that decides, peeks, takes a slot or charges for one attempt, and how many replicas must have it.

        `slot` is the most (-1: no bound) and the least us that the slot may be from now.
        """
        replicas = 0 if mode == PEEK else compiled.family.replicas
        if compiled.short and cost == 1 and not fingerprint and mode in (DECIDE, PLACE):
            wish = slot if mode == PLACE else None
            return Call(*one_payload(compiled, subject, self._session.now(), wish), ONE), replicas
        head = Head(compiled.family, mode, (compiled,), self._session.now(), cost, *slot)
        return single_call(head, subject, fingerprint), replicas

    def one_answer(self, outcome: Reply, compiled: RedisRule, cost: int, mode: int) -> Decision:
        """The decision in the outcome of such a call; raises its error."""
        if type(outcome) is UnderReplicated:
            decision = one_decision(outcome.reply, compiled, cost, slot=mode == PLACE)
            if decision.allowed:
                raise outcome.error
            return decision
        return one_decision(sound(outcome), compiled, cost, slot=mode == PLACE, peeked=mode == PEEK)

    def alone(self, call: Call, replicas: int = 0) -> Steps[Reply | CaplineError]:
        """The outcome of a single call."""
        [outcome] = yield from self._router.run([call], self._session.until(), replicas)
        return outcome

    def decide_all(self, attempts: Sequence[StoreAttempt]) -> Steps[Joint]:
        """One attempt over several subjects: one call; on a cluster one for each slot, one after the other.

        If a slot refuses or fails, the hits that earlier slots recorded are refunded. So no limit is ever exceeded, but
        other callers may be refused until the refund.
        """
        taken: list[JointReply] = []
        groups = joint_groups(attempts, by_slot=self._router.topology.by_slot)
        until = self._session.until() + (len(groups) - 1) * self._router.settings.deadline_s
        for number, group in enumerate(groups):
            try:
                answer = yield from self._joint([attempts[i] for i in group], DECIDE, until)
            except _NotReplicated as short:
                given = [*zip(groups, [*taken, short.answer], strict=False)] if number else []
                yield from self._give_back_all(attempts, given, short.error)
                raise short.error from None
            except CaplineError as error:
                yield from self._give_back_all(attempts, zip(groups, taken, strict=False), error)
                raise
            if not answer.joint.allowed:
                yield from self._give_back_all(attempts, zip(groups, taken, strict=False), None)
                return _among_all(answer.joint, group, len(attempts))
            taken.append(answer)
        return _together(groups, taken)

    def peek_all(self, attempts: Sequence[StoreAttempt]) -> Steps[Joint]:
        """What `decide_all` would answer; all slots are read at once."""
        groups = joint_groups(attempts, by_slot=self._router.topology.by_slot)
        parts = [[attempts[i] for i in group] for group in groups]
        now = self._session.now()
        outcomes = yield from self._router.run([joint_call(part, PEEK, now) for part in parts], self._session.until())
        answers = [
            joint_reply(sound(outcome), part, peeked=True) for outcome, part in zip(outcomes, parts, strict=True)
        ]
        return _together(groups, answers)

    def place_all(self, attempts: Sequence[StoreAttempt], max_wait_us: int | None, not_before_us: int) -> Steps[Joint]:
        """One slot in several logs: one call. Raises `InvalidValueError` where a cluster keeps them in several slots.

        A slot cannot be taken in one place after the other: its instant is known only once all logs were looked at.
        """
        groups = joint_groups(attempts, by_slot=self._router.topology.by_slot)
        if len(groups) > 1:
            named = " and ".join(f"{attempts[group[0]].subject!r}" for group in groups[:2])
            raise InvalidValueError(
                f"one slot is taken in one place, and this cluster keeps {named} in two: use one subject for all "
                "policies, or subjects that begin with the same name in braces, as '{acme}' and '{acme}:key', in "
                "policies of one layout"
            )
        slot_us = (-1 if max_wait_us is None else max_wait_us, not_before_us)
        call = joint_call(attempts, PLACE, self._session.now(), slot_us)
        replicas = max([attempt.compiled.family.replicas for attempt in attempts])
        [outcome] = yield from self._router.run([call], self._session.until(), replicas)
        if type(outcome) is UnderReplicated:
            if joint_reply(outcome.reply, attempts, slot=True).joint.allowed:
                raise outcome.error
            outcome = outcome.reply
        return joint_reply(sound(outcome), attempts, slot=True).joint

    def at_once(self, attempts: Sequence[StoreAttempt], mode: int) -> Call | None:
        """The one call that an attempt over several subjects takes; None where it takes more, or waits for replicas."""
        if mode == DECIDE and any(attempt.compiled.family.replicas for attempt in attempts):
            return None
        if len(joint_groups(attempts, by_slot=self._router.topology.by_slot)) > 1:
            return None
        return joint_call(attempts, mode, self._session.now())

    def joint_answer(self, outcome: Reply, attempts: Sequence[StoreAttempt], mode: int) -> Joint:
        """The answer in the outcome of this one call; raises its error."""
        return joint_reply(sound(outcome), attempts, peeked=mode == PEEK).joint

    def _joint(self, attempts: Sequence[StoreAttempt], mode: int, until: float) -> Steps[JointReply]:
        call = joint_call(attempts, mode, self._session.now())
        replicas = max([attempt.compiled.family.replicas for attempt in attempts])
        [outcome] = yield from self._router.run([call], until, replicas)
        if type(outcome) is UnderReplicated:
            answer = joint_reply(outcome.reply, attempts)
            if answer.joint.allowed:
                raise _NotReplicated(answer, outcome.error)
            return answer
        answer = joint_reply(sound(outcome), attempts)
        known = len(answer.new) < len(answer.joint.hits)
        return msgspec.structs.replace(answer, in_doubt=True) if call.resent and known else answer

    def _give_back_all(
        self, attempts: Sequence[StoreAttempt], taken: Iterable[tuple[list[int], JointReply]], why: CaplineError | None
    ) -> Steps[None]:
        """Refund what these groups recorded, except parts whose id was known; raises if a refund fails.

        A hit that is an earlier attempt's must stay, so what is in doubt stays, and the error says so.
        """
        taken = [*taken]
        calls = [
            self.refund_call(
                attempts[group[i]].compiled, attempts[group[i]].subject, answer.joint.hits[i], attempts[group[i]].cost
            )
            for group, answer in taken
            for i in answer.new
        ]
        outcomes = (yield from self._router.run(calls, self._session.until())) if calls else []
        failed: object = next((outcome for outcome in outcomes if isinstance(outcome, CaplineError)), None)
        if failed is None and any(answer.in_doubt for _, answer in taken):
            failed = "the connection was lost, so it is not known whether this attempt recorded it or an earlier one"
        if failed is not None:
            raise StoreUnknownError(
                f"one attempt over several slots was not allowed as a whole{f' ({why})' if why else ''}, "
                f"and a part of it that was recorded may not have been given back: {failed}"
            ) from None

    def given_back(self, outcome: Reply, compiled: RedisRule) -> bool:
        """Whether a `refund_call` found the hit; raises its error."""
        given = sound(outcome)
        if given < 0:
            raise damaged(compiled)
        return bool(given)

    def refund_many(
        self, compiled: RedisRule, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int
    ) -> Steps[NDArray[np.bool_]]:
        """Refund many hits; raises the first error after all were tried."""
        given = np.zeros(len(subjects), np.bool_)
        failed: CaplineError | None = None
        for first in range(0, len(subjects), ROWS_A_ROUND):
            calls = [
                self.refund_call(compiled, subject, int(stamp), cost)
                for subject, stamp in zip(
                    _listed(subjects[first : first + ROWS_A_ROUND]),
                    stamps_us[first : first + ROWS_A_ROUND],
                    strict=True,
                )
            ]
            outcomes = yield from self._router.run(calls, self._session.bulk_until())
            for row, outcome in enumerate(outcomes, first):
                try:
                    given[row] = self.given_back(outcome, compiled)
                except CaplineError as error:
                    failed = failed or error
        if failed is not None:
            raise failed
        return given

    def refund_call(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int) -> Call:
        """The call that refunds one hit."""
        return self._hit_call(compiled, subject, stamp_us, cost, b"")

    def settle_call(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int) -> Call:
        """The call that settles one hit at this cost. The same call twice is once, but not if it settles at 0."""
        return self._hit_call(compiled, subject, stamp_us, cost, b"1")

    def settled(self, outcome: Reply, compiled: RedisRule, cost: int) -> bool:
        """Whether a `settle_call` found the hit; raises its error."""
        if sound(outcome) == NO_ROOM:
            raise too_many(cost)
        return self.given_back(outcome, compiled)

    def _hit_call(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int, settles: bytes) -> Call:
        family = compiled.family
        tag = tag_of(subject, family.buckets)
        keys = keys_of(compiled.refund_logs, tag)
        field = field_of(subject) if family.buckets else b""
        numbers = (b"%d" % number for number in (family.retention_us, family.grace_ms, family.wide, cost))
        asked = (b"%d" % stamp_us, field, self._session.now(), *numbers, compiled.refund_keeps, settles)
        payload = pack(b"EVALSHA", REFUND.sha, b"%d" % len(keys), *keys, *asked)
        return Call(slot_of(tag), payload, REFUND, repeatable=bool(settles) and cost > 0)

    def decide_batch(self, attempts: Sequence[StoreAttempt]) -> Steps[list[Decision | CaplineError]]:
        """Attempts of any policies; an item that fails is its error."""
        answers: list[Any] = [None] * len(attempts)
        if not attempts:
            return answers
        landing: deque[tuple[Part, InFlight]] = deque()
        until = min(self._session.until() + len(attempts) * A_ROW_S, self._session.bulk_until())

        def land() -> Steps[None]:
            part, flight = landing.popleft()
            outcomes = yield from self._router.finish(flight, until)
            start = 0
            for outcome, size in zip(outcomes, part.sizes, strict=True):
                rows: list[int] = part.rows[start : start + size].tolist()
                start += size
                for row, answer in zip(rows, _row_answers(outcome, [attempts[row] for row in rows]), strict=True):
                    answers[row] = answer

        for head, part in row_parts(attempts, self._session.now(), by_slot=self._router.topology.by_slot):
            flight = yield from self._router.start(part.calls, until, head.family.replicas)
            landing.append((part, flight))
            while landing and (part.last or len(landing) >= IN_FLIGHT):
                yield from land()
        while landing:
            yield from land()
        return answers

    def many(self, batch: Batch, mode: int) -> Steps[Decisions]:
        """Decide, or peek at, many attempts of one policy."""
        compiled: tuple[RedisRule, ...] = batch.compiled
        codes = None if batch.codes is None else np.asarray(batch.codes, np.uint16)
        columns = ReplyColumns(compiled, codes, len(batch.subjects), peeked=mode == PEEK)
        receipt = None
        if batch.receipt is not None:
            receipt = (batch.receipt, batch_digest(batch))
            yield from self._claim(batch, *receipt)
        head = Head(compiled[0].family, mode, compiled, self._session.now(), batch.cost, tell=False)
        replicas = 0 if mode == PEEK else head.family.replicas
        landing: deque[tuple[Part, InFlight]] = deque()

        def land() -> Steps[None]:
            part, flight = landing.popleft()
            outcomes = yield from self._router.finish(flight, self._session.bulk_until())
            _take(columns, part, outcomes, batch.cost)

        by_slot = self._router.topology.by_slot
        for part in batch_parts(head, batch.subjects, codes, by_slot=by_slot, receipt=receipt):
            flight = yield from self._router.start(part.calls, self._session.bulk_until(), replicas)
            landing.append((part, flight))
            while landing and (part.last or len(landing) >= IN_FLIGHT):
                yield from land()
        while landing:
            yield from land()
        return columns.done()

    def _claim(self, batch: Batch, receipt: str, digest: bytes) -> Steps[None]:
        """Record once which batch the receipt was given for; raises if it was another batch."""
        family: Family = batch.compiled[0].family
        name = receipt_name(batch, receipt).hex().encode()
        # No log has an empty name, so this is never a log's key.
        key = b"%b:/receipt:{%b}" % (namespace_of(batch).encode(), name)
        now_us = 0 if self._session.clock is None else self._session.clock.now_us()
        value = (now_us + family.retention_us).to_bytes(8) + digest
        expires = b"%d" % (family.retention_us // 1000 + family.grace_ms)
        slot = slot_of(name)
        command = (b"SET", key, value, b"PX", expires)
        for options in ((b"NX", b"GET"), (b"GET",)):
            [outcome] = yield from self._router.run(
                [Call(slot, pack(*command, *options), repeatable=True)], self._session.bulk_until()
            )
            kept = sound(outcome)
            if kept is None or (kept[8:] == digest and int.from_bytes(kept[:8]) > now_us):
                return
            if self._session.clock is None or int.from_bytes(kept[:8]) > now_us:
                raise receipt_conflict(receipt)
            # Expired by the caller's clock but not yet by the server's: it is overwritten.


class _NotReplicated(Exception):  # noqa: N818 - the error is inside
    """A joint attempt was recorded, but too few replicas have it."""

    def __init__(self, answer: JointReply, error: StoreUnknownError) -> None:
        super().__init__(str(error))
        self.answer = answer
        self.error = error


def _among_all(joint: Joint, group: Sequence[int], many: int) -> Joint:
    """The answer of a slot, with its parts numbered among all parts; parts of other slots have no limit states."""
    if len(group) == many:
        return joint
    states_by_part: list[tuple[LimitStatus, ...]] = [()] * many
    for number, states in zip(group, joint.limits, strict=True):
        states_by_part[number] = states
    return msgspec.structs.replace(joint, binds=group[joint.binds], _seen=(tuple, states_by_part))


def _together(groups: Sequence[Sequence[int]], replies: Sequence[JointReply]) -> Joint:
    """The answers of all slots as one: that of the slot that refuses longest, or else has the least left.

    A slot whose parts are all known does not count, since its answer is not of now. In a tie the slot with the first
    part counts.
    """
    many = sum(len(group) for group in groups)
    own = [_among_all(reply.joint, group, many) for reply, group in zip(replies, groups, strict=True)]
    refused = [answer for answer in own if not answer.allowed]
    if refused:
        longest = max(refused, key=_retry_then_first)
        return msgspec.structs.replace(longest, remaining=min([answer.remaining for answer in refused]))
    hits = dict(
        pair
        for group, reply in zip(groups, replies, strict=True)
        for pair in zip(group, reply.joint.hits, strict=False)
    )
    judged = [answer for answer, reply in zip(own, replies, strict=True) if reply.new] or own
    least = min(judged, key=lambda answer: (answer.remaining, answer.binds))
    reset_after_us = max([answer.reset_after_us or 0 for answer in own])
    ordered = tuple([hits[number] for number in sorted(hits)])
    states_by_part = [max(states, key=len) for states in zip(*(answer.limits for answer in own), strict=True)]
    return msgspec.structs.replace(least, reset_after_us=reset_after_us, hits=ordered, _seen=(tuple, states_by_part))


def _retry_then_first(answer: Joint) -> tuple[float, int]:
    return float("inf") if answer.retry_after_us is None else answer.retry_after_us, -answer.binds


def _row_answers(outcome: Reply, attempts: Sequence[StoreAttempt]) -> list[Decision | CaplineError]:
    compiled, costs = [attempt.compiled for attempt in attempts], [attempt.cost for attempt in attempts]
    if isinstance(outcome, CaplineError):
        return [outcome] * len(attempts)
    if isinstance(outcome, UnderReplicated):
        answers = decisions(outcome.reply, compiled, costs)
        return [outcome.error if not isinstance(one, CaplineError) and one.allowed else one for one in answers]
    return decisions(outcome, compiled, costs)


def _take(columns: ReplyColumns, part: Part, outcomes: Sequence[Reply], cost: int) -> None:
    """Put a part's outcomes into the columns; replies without an error all at once."""
    if all(type(outcome) is bytes for outcome in outcomes):
        columns.take(part.rows, outcomes, part.sizes, cost)
        return
    start = 0
    for outcome, size in zip(outcomes, part.sizes, strict=True):
        rows = part.rows[start : start + size]
        start += size
        if isinstance(outcome, CaplineError):
            columns.fail(rows, outcome)
        elif isinstance(outcome, UnderReplicated):
            columns.take(rows, [outcome.reply], [size], cost)
            columns.doubt(rows, outcome.error)
        else:
            columns.take(rows, [outcome], [size], cost)


def _listed(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values
