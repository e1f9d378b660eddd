"""Verbs of one attempt: decide, peek, charge, reserve, schedule; and of its hit: settle, commit, cancel, refund.

`segment` in an answer is the one whose limits bind, named or looked up. Durations are in seconds; `retry_after` null is
never. An answer that the store did not give says so in `origin`.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Self

import msgspec
from msgspec.structs import asdict

from capline.limiter.aio import AsyncLimiter
from capline.model.decision import Decision
from capline.model.limit_status import LimitStatus
from capline.service.access.new_subjects import NewSubjects, is_new
from capline.service.http.app import LIMIT_HEADERS, Reply, Request
from capline.service.http.forms import AttemptRequest, Cost, KeepFree, Name, Seconds, Stamp, SubjectForm, described_as
from capline.service.http.table import post
from capline.support.override import override

_Verb = Callable[..., Awaitable["Decision"]]
LOOK = ("read", "decide")
"""The roles that may look, and consume nothing."""


class UsedLimit(msgspec.Struct, omit_defaults=True):
    """What is used and left of one limit now; times in seconds, null for never."""

    limit: str
    name: str
    used: int
    remaining: int
    past: int
    frees_in: float | None
    whole_in: float | None
    shadow: bool = False

    @classmethod
    def of(cls, now: LimitStatus) -> Self:
        """The state of a limit."""
        return cls(str(now.limit), now.name, now.used, now.remaining, now.past, now.frees_in, now.whole_in, now.shadow)


class Answer(msgspec.Struct):
    """The answer to one attempt; `usage` where it was asked for, right after the answer."""

    allowed: bool
    policy: str
    limit: str | None
    remaining: int
    retry_after: float | None
    reset_after: float | None
    hit: int | None
    segment: str | None
    origin: str
    usage: list[UsedLimit] | msgspec.UnsetType = msgspec.UNSET


class SlotAnswer(Answer, kw_only=True):
    """The answer to one that may wait: `wait` seconds from the asking to its slot, or `late` seconds after it."""

    wait: float
    late: float


class OneRequest(AttemptRequest, forbid_unknown_fields=True):
    """One attempt; `usage` asks for what is used and left of each limit as well."""

    usage: bool = False

    @override
    def fewest_quotes(self) -> int:
        return super().fewest_quotes() + 2 * self.usage


class DecideRequest(OneRequest, forbid_unknown_fields=True):
    """One attempt; `keep_free` units must stay free after it: of each limit, or so many of each in their order."""

    keep_free: KeepFree = 0

    @override
    def fewest_quotes(self) -> int:
        return super().fewest_quotes() + 2 * (self.keep_free != 0)

    def asks(self, verb: _Verb) -> _Verb:
        """The verb, with what must stay free."""
        return partial(verb, keep_free=self.keep_free) if self.keep_free else verb


class ScheduleRequest(OneRequest, forbid_unknown_fields=True):
    """One attempt that may wait: at most `max_wait` seconds, at least `not_before`."""

    max_wait: Seconds | None = None
    not_before: Seconds = 0


class ReserveRequest(OneRequest, forbid_unknown_fields=True):
    """One attempt whose hit holds for `ttl` seconds, unless it is committed."""

    ttl: Annotated[float, described_as(exclusiveMinimum=0, maximum=86_400)] = 60


class ReservedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A reserved hit, to be committed or cancelled."""

    policy: Name
    subject: SubjectForm
    hit: Stamp


class RefundRequest(ReservedRequest, forbid_unknown_fields=True):
    """A hit to be given back."""

    cost: Cost = 1


class SettleRequest(ReservedRequest, forbid_unknown_fields=True):
    """What a hit, made as an estimate, really cost."""

    cost: Cost


class Refunded(msgspec.Struct):
    """Whether the hit was given back now."""

    refunded: bool


class Settled(msgspec.Struct):
    """Whether there was such a hit."""

    settled: bool


class Committed(msgspec.Struct):
    """Whether the hit counts: it is the caller's."""

    committed: bool


class Cancelled(msgspec.Struct):
    """Whether the reserved hit was given back now."""

    cancelled: bool


class Attempts:
    """See `Limiter` for what each does."""

    def __init__(self, limiter: AsyncLimiter, subject_bound: NewSubjects | None) -> None:
        self._limiter, self._subject_bound = limiter, subject_bound

    @post("/v1/decide", DecideRequest, Answer, direct=True, sends=LIMIT_HEADERS)
    async def decide(self, request: Request, body: DecideRequest) -> Reply:
        """May the subject have the cost now? Consumes it when allowed."""
        return await self._recorded(request, body, body.asks(self._limiter.decide))

    @post("/v1/peek", DecideRequest, Answer, direct=True, roles=LOOK, sends=LIMIT_HEADERS)
    async def peek(self, _request: Request, body: DecideRequest) -> Reply:
        """What decide would answer; consumes nothing."""
        segment = self._segment(body)
        decision = await _decision(body.asks(self._limiter.peek), body, segment)
        return Reply(answer_of(body.policy, segment, decision, body.usage), decision.headers("draft-11"))

    @post("/v1/charge", OneRequest, Answer, direct=True, sends=LIMIT_HEADERS)
    async def charge(self, request: Request, body: OneRequest) -> Reply:
        """Record the cost, whatever the limits say."""
        return await self._recorded(request, body, self._limiter.charge, charged=True)

    @post("/v1/reserve", ReserveRequest, Answer, direct=True, sends=LIMIT_HEADERS)
    async def reserve(self, request: Request, body: ReserveRequest) -> Reply:
        """What decide does, with a hit that expires by itself unless it is committed."""
        return await self._recorded(request, body, partial(self._limiter.reserve, ttl=body.ttl))

    @post("/v1/schedule", ScheduleRequest, SlotAnswer, sends=LIMIT_HEADERS)
    async def schedule(self, request: Request, body: ScheduleRequest) -> Reply:
        """Take the next free instant."""
        schedule = partial(self._limiter.schedule, max_wait=body.max_wait, not_before=body.not_before)
        return await self._recorded(request, body, schedule, _slot_of)

    @post("/v1/settle", SettleRequest, Settled, direct=True)
    async def settle(self, _request: Request, body: SettleRequest) -> Settled:
        """Give a hit that was an estimate what it really cost."""
        return Settled(await self._limiter.settle(body.policy, body.subject, body.hit, body.cost))

    @post("/v1/commit", ReservedRequest, Committed, direct=True)
    async def commit(self, _request: Request, body: ReservedRequest) -> Committed:
        """Keep a reserved hit; false once it has expired or was given back."""
        return Committed(await self._limiter.commit(body.policy, body.subject, body.hit))

    @post("/v1/cancel", ReservedRequest, Cancelled, direct=True)
    async def cancel(self, _request: Request, body: ReservedRequest) -> Cancelled:
        """Give a reserved hit back, once."""
        return Cancelled(await self._limiter.cancel(body.policy, body.subject, body.hit))

    @post("/v1/refund", RefundRequest, Refunded, direct=True)
    async def refund(self, _request: Request, body: RefundRequest) -> Refunded:
        """Give a hit back, once."""
        return Refunded(await self._limiter.refund(body.policy, body.subject, body.hit, body.cost))

    def _segment(self, body: AttemptRequest) -> str | None:
        """The segment that was named, or is looked up; it is in the answer."""
        return body.segment if body.segment is not None else self._limiter.segment_of(body.policy, body.subject)

    async def _recorded(
        self,
        request: Request,
        body: OneRequest,
        verb: _Verb,
        answer: Callable[[str, str | None, Decision, bool], Answer] | None = None,
        *,
        charged: bool = False,
    ) -> Reply:
        segment = self._segment(body)
        if self._subject_bound is not None:
            # The peek is for the attempt as it came: the limiter looks its segment up.
            peek = partial(_decision, self._limiter.peek, body, body.segment)
            await self._subject_bound.check(request.who, peek, body.cost, charged=charged)
        decision = await _decision(verb, body, segment)
        if self._subject_bound is not None and is_new(decision, body.cost):
            await self._subject_bound.created(request.who, 1)
        return Reply((answer or answer_of)(body.policy, segment, decision, body.usage), decision.headers("draft-11"))


def _decision(verb: _Verb, body: AttemptRequest, segment: str | None) -> Awaitable[Decision]:
    return verb(body.policy, body.subject, body.cost, body.id, segment=segment, channel=body.channel, zone=body.zone)


def answer_of(policy: str, segment: str | None, decision: Decision, usage: bool = False) -> Answer:
    """A decision."""
    retry_us, reset_us, limit = decision.retry_after_us, decision.reset_after_us, decision.limit
    return Answer(
        decision.allowed,
        policy,
        None if limit is None else str(limit),
        decision.remaining,
        None if retry_us is None else retry_us / 1e6,
        None if reset_us is None else reset_us / 1e6,
        decision.hit,
        segment,
        decision.origin,
        [*map(UsedLimit.of, decision.limits)] if usage else msgspec.UNSET,
    )


def _slot_of(policy: str, segment: str | None, decision: Decision, usage: bool) -> SlotAnswer:
    return SlotAnswer(**asdict(answer_of(policy, segment, decision, usage)), wait=decision.wait, late=decision.late)
