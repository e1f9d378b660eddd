"""The verbs of a limiter at their paths: a handler reads its form, asks, and writes the answer."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from msgspec.structs import replace

from capline.model.decision import Decision
from capline.model.errors import InvalidValueError
from capline.service import answers
from capline.service.access.newcomers import Newcomers, count_new, is_new
from capline.service.configuration import configuration_routes
from capline.service.forms import Ask, Asks, Batch, Look, Reader, Refund, Settle, Slot, query_of, subject_of
from capline.service.http import BATCH_BYTES, ONE_BODY_BYTES, Reply, Request, Route
from capline.service.problems import Problem

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter

__all__ = ["MOST_ROWS", "routes"]

MOST_ROWS = 100_000
"""Rows in one batch: what a store is asked in one call, and others wait for."""


def routes(limiter: AsyncLimiter, most_rows: int = MOST_ROWS, newcomers: Newcomers | None = None) -> dict[str, Route]:
    """What is decided by this limiter, by path."""
    verbs = _Verbs(limiter, most_rows, newcomers)
    named = ("policy", "segment", "channel", "zone")
    return {
        "/v1/decide": Route({"POST": verbs.decide}, ONE_BODY_BYTES, direct=True, takes=Ask, gives=answers.Answer),
        "/v1/peek": Route(
            {"POST": verbs.peek},
            ONE_BODY_BYTES,
            direct=True,
            roles=("read", "decide"),
            takes=Ask,
            gives=answers.Answer,
        ),
        "/v1/charge": Route({"POST": verbs.charge}, ONE_BODY_BYTES, direct=True, takes=Ask, gives=answers.Answer),
        "/v1/usage": Route(
            {"POST": verbs.usage}, ONE_BODY_BYTES, roles=("read", "decide"), takes=Look, gives=answers.Used
        ),
        "/v1/settle": Route({"POST": verbs.settle}, ONE_BODY_BYTES, direct=True, takes=Settle, gives=answers.Settled),
        "/v1/schedule": Route({"POST": verbs.schedule}, ONE_BODY_BYTES, takes=Slot, gives=answers.SlotAnswer),
        "/v1/refund": Route({"POST": verbs.refund}, ONE_BODY_BYTES, direct=True, takes=Refund, gives=answers.Refunded),
        "/v1/decide/all": Route({"POST": verbs.decide_all}, ONE_BODY_BYTES, takes=Asks, gives=answers.JointAnswer),
        "/v1/decide/batch": Route({"POST": verbs.decide_batch}, BATCH_BYTES, takes=Batch, gives=answers.Columns),
        "/v1/policies": Route({"GET": verbs.policies}),
        **configuration_routes(limiter),
        "/v1/subjects/{subject}": Route({"GET": verbs.explain, "DELETE": verbs.erase}, query={"GET": named}),
    }


class _Verbs:
    """See `Limiter` for what each does."""

    def __init__(self, limiter: AsyncLimiter, most_rows: int, newcomers: Newcomers | None) -> None:
        self._limiter = limiter
        self._most_rows = most_rows
        self._newcomers = newcomers
        self._ask, self._slot, self._refund = Reader(Ask), Reader(Slot), Reader(Refund)
        self._look, self._settle = Reader(Look), Reader(Settle)
        self._asks, self._batch = Reader(Asks), Reader(Batch)

    def _segment(self, ask: Ask | Look) -> str | None:
        """The segment that was named, or is looked up; it is in the answer."""
        return ask.segment if ask.segment is not None else self._limiter.segment_of(ask.policy, ask.subject)

    async def decide(self, request: Request) -> Reply:
        """May the subject have the cost now? Consumes it when allowed."""
        ask: Ask = self._ask(request.body, request.packed)
        segment = self._segment(ask)
        if self._newcomers is not None:
            await self._check_new(request, ask)
        decision = await self._limiter.decide(
            ask.policy, ask.subject, ask.cost, ask.id, segment=segment, channel=ask.channel, zone=ask.zone
        )
        if self._newcomers is not None:
            await self._note_new(request, ask, decision)
        return Reply(answers.one(ask.policy, segment, decision), decision.headers("draft-11"))

    async def peek(self, request: Request) -> Reply:
        """What decide would answer; consumes nothing."""
        ask: Ask = self._ask(request.body, request.packed)
        segment = self._segment(ask)
        decision = await self._limiter.peek(
            ask.policy, ask.subject, ask.cost, ask.id, segment=segment, channel=ask.channel, zone=ask.zone
        )
        return Reply(answers.one(ask.policy, segment, decision), decision.headers("draft-11"))

    async def charge(self, request: Request) -> Reply:
        """Record the cost, whatever the limits say."""
        ask: Ask = self._ask(request.body, request.packed)
        segment = self._segment(ask)
        await self._check_new(request, ask)
        decision = await self._limiter.charge(
            ask.policy, ask.subject, ask.cost, ask.id, segment=segment, channel=ask.channel, zone=ask.zone
        )
        await self._note_new(request, ask, decision)
        return Reply(answers.one(ask.policy, segment, decision), decision.headers("draft-11"))

    async def usage(self, request: Request) -> Reply:
        """What is used and left of each limit now."""
        look: Look = self._look(request.body, request.packed)
        segment = self._segment(look)
        limits = await self._limiter.usage(
            look.policy, look.subject, segment=segment, channel=look.channel, zone=look.zone
        )
        return Reply(answers.usage(look.policy, segment, limits))

    async def settle(self, request: Request) -> Reply:
        """Give a hit that was an estimate what it really cost."""
        settle: Settle = self._settle(request.body, request.packed)
        settled = await self._limiter.settle(settle.policy, settle.subject, settle.hit, settle.cost)
        return Reply(answers.Settled(settled))

    async def schedule(self, request: Request) -> Reply:
        """Take the next free instant."""
        ask: Slot = self._slot(request.body, request.packed)
        segment = self._segment(ask)
        await self._check_new(request, ask)
        decision = await self._limiter.schedule(
            ask.policy,
            ask.subject,
            ask.cost,
            ask.id,
            max_wait=ask.max_wait,
            not_before=ask.not_before,
            segment=segment,
            channel=ask.channel,
            zone=ask.zone,
        )
        await self._note_new(request, ask, decision)
        return Reply(answers.slot(ask.policy, segment, decision), decision.headers("draft-11"))

    async def refund(self, request: Request) -> Reply:
        """Give a hit back, once."""
        ask: Refund = self._refund(request.body, request.packed)
        refunded = await self._limiter.refund(ask.policy, ask.subject, ask.hit, ask.cost)
        return Reply(answers.Refunded(refunded))

    async def decide_all(self, request: Request) -> Reply:
        """One answer for several subjects: all or none."""
        asks: Asks = self._asks(request.body, request.packed)
        attempts = [replace(ask.attempt(), segment=self._segment(ask)) for ask in asks.attempts]
        self._check_many_new(request)
        joint = await self._limiter.decide_all(attempts)
        return Reply(answers.joint(attempts, joint), joint.headers("draft-11"))

    async def decide_batch(self, request: Request) -> Reply:
        """Many attempts, each decided by itself, as columns."""
        batch: Batch = self._batch(request.body, request.packed)
        batch.check()
        rows = len(batch.attempts or batch.subjects or ())
        if rows > self._most_rows:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{rows} rows in a batch; at most {self._most_rows} a call"
            )
        self._check_many_new(request)
        if batch.attempts is not None:
            decided = await self._limiter.decide_batch([ask.attempt() for ask in batch.attempts])
            if self._newcomers is not None:
                new = [
                    is_new(one, ask.cost)
                    for one, ask in zip(decided, batch.attempts, strict=True)
                    if isinstance(one, Decision)
                ]
                await self._newcomers.created(request.who, sum(new))
            return Reply(answers.columns_of_rows(decided))
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
        if self._newcomers is not None:
            await self._newcomers.created(request.who, count_new(many, batch.cost))
        return Reply(answers.columns_of(many))

    async def _check_new(self, request: Request, ask: Ask) -> None:
        """Raise where the token may create no new subject now, and this is one."""
        if self._newcomers is None:
            return

        async def peek() -> Decision:
            return await self._limiter.peek(
                ask.policy, ask.subject, ask.cost, ask.id, segment=ask.segment, channel=ask.channel, zone=ask.zone
            )

        await self._newcomers.check(request.who, peek, ask.cost)

    def _check_many_new(self, request: Request) -> None:
        if self._newcomers is not None:
            self._newcomers.check_many(request.who)

    async def _note_new(self, request: Request, ask: Ask, decision: Decision) -> None:
        if self._newcomers is not None and is_new(decision, ask.cost):
            await self._newcomers.created(request.who, 1)

    async def policies(self, request: Request) -> Reply:
        """All policies in force."""
        query_of(request.query, ())
        return Reply(answers.policies(self._limiter.namespace, self._limiter.policies))

    async def explain(self, request: Request) -> Reply:
        """Why: the decision now, each limit, every hit."""
        subject = subject_of(request.names[0])
        named = query_of(request.query, ("policy", "segment", "channel", "zone"))
        if "policy" not in named:
            raise InvalidValueError("explain which policy? add ?policy=… to the path")
        segment = named.get("segment")
        if segment is None:
            segment = self._limiter.segment_of(named["policy"], subject)
        why = await self._limiter.explain(
            named["policy"],
            subject,
            segment=segment,
            channel=named.get("channel"),
            zone=named.get("zone"),
        )
        return Reply(answers.explained(why, segment))

    async def erase(self, request: Request) -> Reply:
        """Forget the subject: its logs under all policies."""
        query_of(request.query, ())
        erased = await self._limiter.erase(subject_of(request.names[0]))
        return Reply(answers.Erased(erased))
