"""The verbs of a limiter at their paths: a handler reads its form, asks, and writes the answer."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from capline.model.errors import InvalidValueError
from capline.service import answers
from capline.service.forms import Ask, Asks, Batch, Look, Reader, Refund, Settle, Slot, query_of, subject_of
from capline.service.http import ONE_BODY_BYTES, Reply, Request, Route
from capline.service.problems import Problem

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter

__all__ = ["BATCH_BYTES", "MOST_ROWS", "routes"]

BATCH_BYTES = 16 << 20
MOST_ROWS = 100_000
"""Rows in one batch: what a store is asked in one call, and others wait for."""


def routes(limiter: AsyncLimiter) -> dict[str, Route]:
    """What is decided by this limiter, by path."""
    verbs = _Verbs(limiter)
    return {
        "/v1/decide": Route({"POST": verbs.decide}, ONE_BODY_BYTES),
        "/v1/peek": Route({"POST": verbs.peek}, ONE_BODY_BYTES),
        "/v1/charge": Route({"POST": verbs.charge}, ONE_BODY_BYTES),
        "/v1/usage": Route({"POST": verbs.usage}, ONE_BODY_BYTES),
        "/v1/settle": Route({"POST": verbs.settle}, ONE_BODY_BYTES),
        "/v1/schedule": Route({"POST": verbs.schedule}, ONE_BODY_BYTES),
        "/v1/refund": Route({"POST": verbs.refund}, ONE_BODY_BYTES),
        "/v1/decide/all": Route({"POST": verbs.decide_all}, ONE_BODY_BYTES),
        "/v1/decide/batch": Route({"POST": verbs.decide_batch}, BATCH_BYTES),
        "/v1/policies": Route({"GET": verbs.policies}),
        "/v1/subjects/": Route({"GET": verbs.explain, "DELETE": verbs.erase}),
    }


class _Verbs:
    """See `Limiter` for what each does."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._limiter = limiter
        self._ask, self._slot, self._refund = Reader(Ask), Reader(Slot), Reader(Refund)
        self._look, self._settle = Reader(Look), Reader(Settle)
        self._asks, self._batch = Reader(Asks), Reader(Batch)

    async def decide(self, request: Request) -> Reply:
        ask: Ask = self._ask(request.body)
        decision = await self._limiter.decide(
            ask.policy, ask.subject, ask.cost, ask.id, segment=ask.segment, channel=ask.channel, zone=ask.zone
        )
        return Reply(answers.one(ask.policy, ask.segment, decision), decision.headers("draft-11"))

    async def peek(self, request: Request) -> Reply:
        ask: Ask = self._ask(request.body)
        decision = await self._limiter.peek(
            ask.policy, ask.subject, ask.cost, ask.id, segment=ask.segment, channel=ask.channel, zone=ask.zone
        )
        return Reply(answers.one(ask.policy, ask.segment, decision), decision.headers("draft-11"))

    async def charge(self, request: Request) -> Reply:
        ask: Ask = self._ask(request.body)
        decision = await self._limiter.charge(
            ask.policy, ask.subject, ask.cost, ask.id, segment=ask.segment, channel=ask.channel, zone=ask.zone
        )
        return Reply(answers.one(ask.policy, ask.segment, decision), decision.headers("draft-11"))

    async def usage(self, request: Request) -> Reply:
        look: Look = self._look(request.body)
        limits = await self._limiter.usage(
            look.policy, look.subject, segment=look.segment, channel=look.channel, zone=look.zone
        )
        return Reply(answers.usage(look.policy, look.segment, limits))

    async def settle(self, request: Request) -> Reply:
        settle: Settle = self._settle(request.body)
        settled = await self._limiter.settle(settle.policy, settle.subject, settle.hit, settle.cost)
        return Reply(msgspec.json.encode({"settled": settled}))

    async def schedule(self, request: Request) -> Reply:
        ask: Slot = self._slot(request.body)
        decision = await self._limiter.schedule(
            ask.policy,
            ask.subject,
            ask.cost,
            ask.id,
            max_wait=ask.max_wait,
            not_before=ask.not_before,
            segment=ask.segment,
            channel=ask.channel,
            zone=ask.zone,
        )
        return Reply(answers.slot(ask.policy, ask.segment, decision), decision.headers("draft-11"))

    async def refund(self, request: Request) -> Reply:
        ask: Refund = self._refund(request.body)
        refunded = await self._limiter.refund(ask.policy, ask.subject, ask.hit, ask.cost)
        return Reply(msgspec.json.encode({"refunded": refunded}))

    async def decide_all(self, request: Request) -> Reply:
        asks: Asks = self._asks(request.body)
        attempts = [ask.attempt() for ask in asks.attempts]
        joint = await self._limiter.decide_all(attempts)
        return Reply(answers.joint(attempts, joint), joint.headers("draft-11"))

    async def decide_batch(self, request: Request) -> Reply:
        batch: Batch = self._batch(request.body)
        batch.check()
        rows = len(batch.attempts or batch.subjects or ())
        if rows > MOST_ROWS:
            raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{rows} rows in a batch; at most {MOST_ROWS} a call")
        if batch.attempts is not None:
            decided = await self._limiter.decide_batch([ask.attempt() for ask in batch.attempts])
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
        return Reply(answers.columns_of(many))

    async def policies(self, request: Request) -> Reply:
        query_of(request.query, ())
        return Reply(answers.policies(self._limiter.namespace, self._limiter.policies))

    async def explain(self, request: Request) -> Reply:
        subject = subject_of(request.rest)
        named = query_of(request.query, ("policy", "segment", "channel", "zone"))
        if "policy" not in named:
            raise InvalidValueError("explain which policy? add ?policy=… to the path")
        why = await self._limiter.explain(
            named["policy"],
            subject,
            segment=named.get("segment"),
            channel=named.get("channel"),
            zone=named.get("zone"),
        )
        return Reply(answers.explained(why, named.get("segment")))

    async def erase(self, request: Request) -> Reply:
        query_of(request.query, ())
        erased = await self._limiter.erase(subject_of(request.rest))
        return Reply(msgspec.json.encode({"erased_logs": erased}))
