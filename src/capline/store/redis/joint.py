"""Attempts over several subjects on servers: one call, or on a cluster one for each slot with refunds. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from capline.model.decision import Joint
from capline.model.errors import CaplineError, InvalidValueError, StoreUnknownError
from capline.model.limit_status import LimitStatus
from capline.store.protocol import Operation
from capline.store.redis.cluster.router import UnderReplicated
from capline.store.redis.io.wire import Reply, Steps
from capline.store.redis.scripting.replies import JointReply, joint_reply
from capline.store.redis.scripting.requests import hit_call, joint_call, joint_groups
from capline.store.redis.scripting.scripts import Call
from capline.store.redis.session import Session, unwrap
from capline.store.redis.steps import alone, replicas_of


def joint(session: Session, operations: Sequence[Operation]) -> Steps[Joint]:
    """Operations of one kind over several subjects: all or nothing."""
    return _BY_KIND[operations[0].kind](session, operations)


def at_once(session: Session, operations: Sequence[Operation]) -> Call | None:
    """The one call that such an attempt takes; None where it takes more, or waits for replicas."""
    if any(map(replicas_of, operations)) or len(joint_groups(operations, by_slot=session.router.topology.by_slot)) > 1:
        return None
    return joint_call(operations, session.now())


def joint_answer(outcome: Reply, operations: Sequence[Operation]) -> Joint:
    """The answer in the outcome of this one call; raises its error, also where too few replicas have the hits."""
    answer = joint_reply(unwrap(outcome), operations).joint
    if type(outcome) is UnderReplicated and answer.allowed:
        raise outcome.error
    return answer


def _decide(session: Session, operations: Sequence[Operation]) -> Steps[Joint]:
    """One call; on a cluster one for each slot, one after the other.

    If a slot refuses or fails, the hits that earlier slots recorded are refunded. So no limit is ever exceeded, but
    other callers may be refused until the refund.
    """
    taken: list[JointReply] = []
    groups = joint_groups(operations, by_slot=session.router.topology.by_slot)
    until = session.until() + (len(groups) - 1) * session.router.settings.deadline_s
    for number, group in enumerate(groups):
        try:
            answer = yield from _decide_slot(session, [operations[i] for i in group], until)
        except _NotReplicated as short:
            given = [*zip(groups, [*taken, short.answer], strict=False)] if number else []
            yield from _give_back_all(session, operations, given, short.error)
            raise short.error from None
        except CaplineError as error:
            yield from _give_back_all(session, operations, zip(groups, taken, strict=False), error)
            raise
        if not answer.joint.allowed:
            yield from _give_back_all(session, operations, zip(groups, taken, strict=False), None)
            return _among_all(answer.joint, group, len(operations))
        taken.append(answer)
    return _together(groups, taken)


def _peek(session: Session, operations: Sequence[Operation]) -> Steps[Joint]:
    """All slots are read at once, each in its own moment."""
    groups = joint_groups(operations, by_slot=session.router.topology.by_slot)
    parts = [[operations[i] for i in group] for group in groups]
    now = session.now()
    outcomes = yield from session.router.run([joint_call(part, now) for part in parts], session.until())
    answers = [joint_reply(unwrap(outcome), part) for outcome, part in zip(outcomes, parts, strict=True)]
    return _together(groups, answers)


def _schedule(session: Session, operations: Sequence[Operation]) -> Steps[Joint]:
    """One slot in several logs: one call. Raises `InvalidValueError` where a cluster keeps them in several slots.

    A slot cannot be taken in one place after the other: its instant is known only once all logs were looked at.
    """
    groups = joint_groups(operations, by_slot=session.router.topology.by_slot)
    if len(groups) > 1:
        named = " and ".join(f"{operations[group[0]].subject!r}" for group in groups[:2])
        raise InvalidValueError(
            f"one slot is taken in one place, and this cluster keeps {named} in two: use one subject for all "
            "policies, or subjects that begin with the same name in braces, as '{acme}' and '{acme}:key', in "
            "policies of one layout"
        )
    outcome = yield from alone(session, joint_call(operations, session.now()), max(map(replicas_of, operations)))
    return joint_answer(outcome, operations)


_BY_KIND: dict[str, Callable[[Session, Sequence[Operation]], Steps[Joint]]] = {
    "decide": _decide,
    "peek": _peek,
    "schedule": _schedule,
}


def _decide_slot(session: Session, operations: Sequence[Operation], until: float) -> Steps[JointReply]:
    call = joint_call(operations, session.now())
    [outcome] = yield from session.router.run([call], until, max(map(replicas_of, operations)))
    if type(outcome) is UnderReplicated:
        answer = joint_reply(outcome.reply, operations)
        if answer.joint.allowed:
            raise _NotReplicated(answer, outcome.error)
        return answer
    answer = joint_reply(unwrap(outcome), operations)
    known = len(answer.new) < len(answer.joint.hits)
    return msgspec.structs.replace(answer, in_doubt=True) if call.resent and known else answer


def _give_back_all(
    session: Session,
    operations: Sequence[Operation],
    taken: Iterable[tuple[list[int], JointReply]],
    why: CaplineError | None,
) -> Steps[None]:
    """Refund what these groups recorded, except parts whose id was known; raises if a refund fails.

    A hit that is an earlier attempt's must stay, so what is in doubt stays, and the error says so.
    """
    taken, now = [*taken], session.now()
    refunds = [
        msgspec.structs.replace(operations[group[i]], kind="refund", stamp_us=answer.joint.hits[i])
        for group, answer in taken
        for i in answer.new
    ]
    calls = [hit_call(refund, now) for refund in refunds]
    outcomes = (yield from session.router.run(calls, session.until())) if calls else []
    failed: object = next((outcome for outcome in outcomes if isinstance(outcome, CaplineError)), None)
    if failed is None and any(answer.in_doubt for _, answer in taken):
        failed = "the connection was lost, so it is not known whether this attempt recorded it or an earlier one"
    if failed is not None:
        raise StoreUnknownError(
            f"one attempt over several slots was not allowed as a whole{f' ({why})' if why else ''}, "
            f"and a part of it that was recorded may not have been given back: {failed}"
        ) from None


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
