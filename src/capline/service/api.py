"""The verbs of a limiter at their paths: a handler reads its form, asks, and writes the answer."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from capline.limiter.prepared import MOST_JOINT
from capline.model.decision import Decision
from capline.model.errors import InvalidValueError
from capline.service import answers
from capline.service.access.newcomers import Newcomers, count_new, is_new, new_parts
from capline.service.configuration import configuration_routes
from capline.service.forms import (
    LOOP_BYTES,
    AttemptRequest,
    BatchReader,
    BatchRequest,
    JointRefundRequest,
    JointRequest,
    JointScheduleRequest,
    Reader,
    RefundRequest,
    ReservedRequest,
    ReserveRequest,
    ScheduleRequest,
    SettleRequest,
    UsageRequest,
    query_of,
    subject_of,
)
from capline.service.http import BATCH_BYTES, ONE_BODY_BYTES, Reply, Request, Route
from capline.service.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from capline.limiter.aio import AsyncLimiter
    from capline.model.attempt import Attempt
    from capline.model.decision import Joint
    from capline.model.errors import CaplineError
    from capline.service.http import Handler

__all__ = ["MOST_ROWS", "routes"]

T = TypeVar("T")

MOST_ROWS = 100_000
"""The most rows in one batch: one call of the store's, and one answer in memory."""

_LOOK = ("read", "decide")
_EXPLAINED = ("policy", "segment", "channel", "zone")


def routes(
    limiter: AsyncLimiter, most_rows: int = MOST_ROWS, newcomers: Newcomers | None = None, *, local: bool = False
) -> dict[str, Route]:
    """The routes of this limiter's verbs. Where its store is `local` no policy is set that waits for replicas."""
    verbs = _Verbs(limiter, most_rows, newcomers)
    return {
        "/v1/decide": _posted(verbs.decide, AttemptRequest, answers.Answer, direct=True),
        "/v1/peek": _posted(verbs.peek, AttemptRequest, answers.Answer, direct=True, roles=_LOOK),
        "/v1/charge": _posted(verbs.charge, AttemptRequest, answers.Answer, direct=True),
        "/v1/usage": _posted(verbs.usage, UsageRequest, answers.Used, roles=_LOOK),
        "/v1/settle": _posted(verbs.settle, SettleRequest, answers.Settled, direct=True),
        "/v1/reserve": _posted(verbs.reserve, ReserveRequest, answers.Answer, direct=True),
        "/v1/commit": _posted(verbs.commit, ReservedRequest, answers.Committed, direct=True),
        "/v1/cancel": _posted(verbs.cancel, ReservedRequest, answers.Cancelled, direct=True),
        "/v1/schedule": _posted(verbs.schedule, ScheduleRequest, answers.SlotAnswer),
        "/v1/refund": _posted(verbs.refund, RefundRequest, answers.Refunded, direct=True),
        "/v1/decide/all": _posted(verbs.decide_all, JointRequest, answers.JointAnswer),
        "/v1/schedule/all": _posted(verbs.schedule_all, JointScheduleRequest, answers.JointSlotAnswer),
        "/v1/refund/all": _posted(verbs.refund_all, JointRefundRequest, answers.RefundedAll),
        "/v1/decide/batch": Route({"POST": verbs.decide_batch}, BATCH_BYTES, takes=BatchRequest, gives=answers.Columns),
        "/v1/policies": Route({"GET": verbs.policies}, gives=answers.Policies),
        **configuration_routes(limiter, local=local),
        "/v1/subjects/{subject}": Route(
            {"GET": verbs.explain, "DELETE": verbs.erase},
            gives={"GET": answers.Explained, "DELETE": answers.Erased},
            query={"GET": _EXPLAINED},
            needs=("policy",),
        ),
    }


def _posted(
    handler: Handler, takes: Any, gives: Any, *, direct: bool = False, roles: tuple[str, ...] | None = None
) -> Route:
    return Route({"POST": handler}, ONE_BODY_BYTES, direct=direct, roles=roles, takes=takes, gives=gives)


class _Verbs:
    """See `Limiter` for what each does."""

    def __init__(self, limiter: AsyncLimiter, most_rows: int, newcomers: Newcomers | None) -> None:
        self._limiter = limiter
        self._most_rows = most_rows
        self._newcomers = newcomers
        self._attempt, self._slot, self._refund = Reader(AttemptRequest), Reader(ScheduleRequest), Reader(RefundRequest)
        self._usage, self._settle = Reader(UsageRequest), Reader(SettleRequest)
        self._reserve, self._reserved = Reader(ReserveRequest), Reader(ReservedRequest)
        self._joint, self._batch = Reader(JointRequest), BatchReader()
        self._slots, self._refunds = Reader(JointScheduleRequest), Reader(JointRefundRequest)

    def _segment(self, body: AttemptRequest | UsageRequest) -> str | None:
        """The segment that was named, or is looked up; it is in the answer."""
        return body.segment if body.segment is not None else self._limiter.segment_of(body.policy, body.subject)

    async def decide(self, request: Request) -> Reply:
        """May the subject have the cost now? Consumes it when allowed."""
        body: AttemptRequest = self._attempt(request.body, request.packed)
        return await self._recorded(request, body, self._limiter.decide)

    async def peek(self, request: Request) -> Reply:
        """What decide would answer; consumes nothing."""
        body: AttemptRequest = self._attempt(request.body, request.packed)
        segment = self._segment(body)
        decision = await self._asked(self._limiter.peek, body, segment)
        return Reply(answers.one(body.policy, segment, decision), decision.headers("draft-11"))

    async def charge(self, request: Request) -> Reply:
        """Record the cost, whatever the limits say."""
        body: AttemptRequest = self._attempt(request.body, request.packed)
        return await self._recorded(request, body, self._limiter.charge, charged=True)

    async def usage(self, request: Request) -> Reply:
        """What is used and left of each limit now."""
        body: UsageRequest = self._usage(request.body, request.packed)
        segment = self._segment(body)
        limits = await self._limiter.usage(
            body.policy, body.subject, segment=segment, channel=body.channel, zone=body.zone
        )
        return Reply(answers.usage(body.policy, segment, limits))

    async def settle(self, request: Request) -> Reply:
        """Give a hit that was an estimate what it really cost."""
        settle: SettleRequest = self._settle(request.body, request.packed)
        settled = await self._limiter.settle(settle.policy, settle.subject, settle.hit, settle.cost)
        return Reply(answers.Settled(settled))

    async def reserve(self, request: Request) -> Reply:
        """What decide does, with a hit that expires by itself unless it is committed."""
        body: ReserveRequest = self._reserve(request.body, request.packed)
        return await self._recorded(request, body, partial(self._limiter.reserve, ttl=body.ttl))

    async def commit(self, request: Request) -> Reply:
        """Keep a reserved hit; false once it has expired or was given back."""
        hit: ReservedRequest = self._reserved(request.body, request.packed)
        return Reply(answers.Committed(await self._limiter.commit(hit.policy, hit.subject, hit.hit)))

    async def cancel(self, request: Request) -> Reply:
        """Give a reserved hit back, once."""
        hit: ReservedRequest = self._reserved(request.body, request.packed)
        return Reply(answers.Cancelled(await self._limiter.cancel(hit.policy, hit.subject, hit.hit)))

    async def schedule(self, request: Request) -> Reply:
        """Take the next free instant."""
        body: ScheduleRequest = self._slot(request.body, request.packed)
        schedule = partial(self._limiter.schedule, max_wait=body.max_wait, not_before=body.not_before)
        return await self._recorded(request, body, schedule, answers.slot)

    def _asked(
        self, verb: Callable[..., Awaitable[Decision]], body: AttemptRequest, segment: str | None
    ) -> Awaitable[Decision]:
        return verb(
            body.policy, body.subject, body.cost, body.id, segment=segment, channel=body.channel, zone=body.zone
        )

    async def _recorded(
        self,
        request: Request,
        body: AttemptRequest,
        verb: Callable[..., Awaitable[Decision]],
        answer: Callable[[str, str | None, Decision], answers.Answer] = answers.one,
        *,
        charged: bool = False,
    ) -> Reply:
        """The answer of a verb that takes an attempt and may create its subject."""
        segment = self._segment(body)
        if self._newcomers is not None:
            # The attempt is asked as it came: looking the segment up is the limiter's.
            peek = partial(self._asked, self._limiter.peek, body, body.segment)
            await self._newcomers.check(request.who, peek, body.cost, charged=charged)
        decision = await self._asked(verb, body, segment)
        if self._newcomers is not None and is_new(decision, body.cost):
            await self._newcomers.created(request.who, 1)
        return Reply(answer(body.policy, segment, decision), decision.headers("draft-11"))

    async def refund(self, request: Request) -> Reply:
        """Give a hit back, once."""
        body: RefundRequest = self._refund(request.body, request.packed)
        refunded = await self._limiter.refund(body.policy, body.subject, body.hit, body.cost)
        return Reply(answers.Refunded(refunded))

    async def decide_all(self, request: Request) -> Reply:
        """One answer for several subjects: all or none."""
        body: JointRequest = self._joint(request.body, request.packed)
        return await self._recorded_all(request, body, self._limiter.decide_all, answers.joint)

    async def schedule_all(self, request: Request) -> Reply:
        """Take the next instant that is free for all of several subjects."""
        body: JointScheduleRequest = self._slots(request.body, request.packed)
        schedule = partial(self._limiter.schedule_all, max_wait=body.max_wait, not_before=body.not_before)
        return await self._recorded_all(request, body, schedule, answers.joint_slot)

    async def _recorded_all(
        self,
        request: Request,
        body: JointRequest,
        verb: Callable[[list[Attempt]], Awaitable[Joint]],
        answer: Callable[[list[Attempt], Joint], answers.JointAnswer],
    ) -> Reply:
        """The answer of a verb that takes several attempts and may create their subjects."""
        attempts = [replace(one.attempt(), segment=self._segment(one)) for one in body.attempts]
        self._check_many_new(request)
        joint = await verb(attempts)
        if self._newcomers is not None:
            await self._newcomers.created(request.who, new_parts(joint, [one.cost for one in attempts]))
        return Reply(answer(attempts, joint), joint.headers("draft-11"))

    async def refund_all(self, request: Request) -> Reply:
        """Give the hits of several subjects back, each once."""
        joint_body: JointRefundRequest = self._refunds(request.body, request.packed)
        if not 1 <= len(joint_body.attempts) <= MOST_JOINT:
            raise InvalidValueError(f"{len(joint_body.attempts)} attempts; one answer is of 1 to {MOST_JOINT}")
        refunded = await self._limiter.refund_all([body.attempt() for body in joint_body.attempts], joint_body.hits)
        return Reply(answers.RefundedAll(refunded))

    async def decide_batch(self, request: Request) -> Reply:
        """Many attempts, each decided by itself, as columns."""
        large = len(request.body) > LOOP_BYTES
        batch, attempts = await _aside(partial(self._read, request), large=large)
        self._check_many_new(request)
        if attempts is not None:
            decided = await self._limiter.decide_batch(attempts)
            columns, new = partial(answers.columns_of_rows, decided), partial(_count_new_rows, decided, attempts)
        else:
            many = await self._limiter.decide_many(
                batch.policy or "",
                batch.subjects or [],
                segment=batch.segment if batch.segments is None else batch.segments,
                codes=batch.codes,
                channel=batch.channel,
                zone=batch.zone,
                cost=batch.cost,
                receipt=batch.receipt,
            )
            columns, new = partial(answers.columns_of, many), partial(count_new, many, batch.cost)
        if self._newcomers is not None:
            await self._newcomers.created(request.who, await _aside(new, large=large))
        return await _aside(partial(_encoded, request, columns), large=large)

    def _read(self, request: Request) -> tuple[BatchRequest, list[Attempt] | None]:
        """The body of a batch, and its attempts where it is not one of columns."""
        batch: BatchRequest = self._batch(request.body, request.packed)
        batch.check()
        rows = len(batch.attempts or batch.subjects or ())
        if rows > self._most_rows:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{rows} rows in a batch; at most {self._most_rows} a call"
            )
        return batch, None if batch.attempts is None else [body.attempt() for body in batch.attempts]

    def _check_many_new(self, request: Request) -> None:
        if self._newcomers is not None:
            self._newcomers.check_many(request.who)

    async def policies(self, request: Request) -> Reply:
        """All policies in force."""
        query_of(request.query, ())
        return Reply(answers.policies(self._limiter.namespace, self._limiter.policies))

    async def explain(self, request: Request) -> Reply:
        """Why: the decision now, each limit, every hit."""
        subject = subject_of(request.names[0])
        named = query_of(request.query, _EXPLAINED)
        if "policy" not in named:
            raise InvalidValueError("explain which policy? add ?policy=… to the query")
        segment = named.get("segment")
        if segment is None:
            segment = self._limiter.segment_of(named["policy"], subject)
        why = await self._limiter.explain(
            named["policy"], subject, segment=segment, channel=named.get("channel"), zone=named.get("zone")
        )
        return Reply(answers.explained(why, segment))

    async def erase(self, request: Request) -> Reply:
        """Forget the subject: its logs under all policies."""
        query_of(request.query, ())
        erased = await self._limiter.erase(subject_of(request.names[0]))
        return Reply(answers.Erased(erased))


async def _aside(work: Callable[[], T], *, large: bool) -> T:
    return await asyncio.to_thread(work) if large else work()


def _encoded(request: Request, columns: Callable[[], answers.Columns]) -> Reply:
    reply = Reply(columns())
    reply.sent(request.packed)
    return reply


def _count_new_rows(decided: Sequence[Decision | CaplineError], attempts: Sequence[Attempt]) -> int:
    pairs = zip(decided, attempts, strict=True)
    return sum(isinstance(one, Decision) and is_new(one, asked.cost) for one, asked in pairs)
