"""Verbs of several subjects, all or none: decide, schedule and refund."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec.structs import asdict, replace

from capline.limiter.aio import AsyncLimiter
from capline.limiter.base import MOST_JOINT
from capline.model.attempt import Attempt
from capline.model.decision import Joint
from capline.model.errors import InvalidValueError
from capline.service.access.new_subjects import NewSubjects, new_parts
from capline.service.http.app import LIMIT_HEADERS, Reply, Request
from capline.service.http.forms import AttemptRequest, KeepingAttempt, Seconds, Stamp, described_as
from capline.service.http.table import post
from capline.service.verbs.attempts import UsedLimit


class JointRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Parts of one attempt; `usage` asks for what is used and left of each limit of each part."""

    attempts: Annotated[list[KeepingAttempt], described_as(minItems=1, maxItems=MOST_JOINT)]
    usage: bool = False


class JointScheduleRequest(JointRequest, forbid_unknown_fields=True):
    """Parts of one attempt that may wait: at most `max_wait` seconds, at least `not_before`."""

    max_wait: Seconds | None = None
    not_before: Seconds = 0


class JointRefundRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The attempts of an answer to several, and its hits."""

    attempts: Annotated[list[AttemptRequest], described_as(minItems=1, maxItems=MOST_JOINT)]
    hits: list[Stamp | None]


class JointAnswer(msgspec.Struct):
    """One answer to all attempts: `binds` is the number of the one that `policy` and `limit` are of."""

    allowed: bool
    policy: str
    limit: str | None
    remaining: int
    retry_after: float | None
    reset_after: float | None
    hits: tuple[int | None, ...]
    binds: int
    segment: str | None
    origin: str
    usage: list[list[UsedLimit]] | msgspec.UnsetType = msgspec.UNSET


class JointSlotAnswer(JointAnswer, kw_only=True):
    """One answer to attempts that may wait: `wait` seconds until their slot, or `late` seconds after it."""

    wait: float
    late: float


class RefundedAll(msgspec.Struct):
    """How many of the hits were given back now."""

    refunded: int


class JointVerbs:
    """See `Limiter` for what each does."""

    def __init__(self, limiter: AsyncLimiter, subject_bound: NewSubjects | None) -> None:
        self._limiter, self._subject_bound = limiter, subject_bound

    @post("/v1/decide/all", JointRequest, JointAnswer, sends=LIMIT_HEADERS)
    async def decide_all(self, request: Request, body: JointRequest) -> Reply:
        """One answer for several subjects: all or none."""
        return await self._recorded(request, body, self._limiter.decide_all, _answer_of)

    @post("/v1/schedule/all", JointScheduleRequest, JointSlotAnswer, sends=LIMIT_HEADERS)
    async def schedule_all(self, request: Request, body: JointScheduleRequest) -> Reply:
        """Take the next instant that is free for all of several subjects."""
        schedule = partial(self._limiter.schedule_all, max_wait=body.max_wait, not_before=body.not_before)
        return await self._recorded(request, body, schedule, _slot_of)

    @post("/v1/refund/all", JointRefundRequest, RefundedAll)
    async def refund_all(self, _request: Request, body: JointRefundRequest) -> RefundedAll:
        """Give the hits of several subjects back, each once."""
        if not 1 <= len(body.attempts) <= MOST_JOINT:
            raise InvalidValueError(f"{len(body.attempts)} attempts; one answer is of 1 to {MOST_JOINT}")
        return RefundedAll(await self._limiter.refund_all([part.attempt() for part in body.attempts], body.hits))

    async def _recorded(
        self,
        request: Request,
        body: JointRequest,
        verb: Callable[[list[Attempt]], Awaitable[Joint]],
        answer: Callable[[list[Attempt], Joint, bool], JointAnswer],
    ) -> Reply:
        attempts = [part.attempt() for part in body.attempts]
        attempts = [
            attempt
            if attempt.segment is not None
            else replace(attempt, segment=self._limiter.segment_of(attempt.policy, attempt.subject))
            for attempt in attempts
        ]
        if self._subject_bound is not None:
            self._subject_bound.check_many(request.who)
        joint = await verb(attempts)
        if self._subject_bound is not None:
            await self._subject_bound.created(request.who, new_parts(joint, [attempt.cost for attempt in attempts]))
        return Reply(answer(attempts, joint, body.usage), joint.headers("draft-11"))


def _answer_of(attempts: Sequence[Attempt], joint: Joint, usage: bool) -> JointAnswer:
    binding = attempts[joint.binds]
    return JointAnswer(
        joint.allowed,
        binding.policy,
        None if joint.limit is None else str(joint.limit),
        joint.remaining,
        joint.retry_after,
        joint.reset_after,
        joint.hits,
        joint.binds,
        binding.segment,
        joint.origin,
        [[*map(UsedLimit.of, part)] for part in joint.limits] if usage else msgspec.UNSET,
    )


def _slot_of(attempts: Sequence[Attempt], joint: Joint, usage: bool) -> JointSlotAnswer:
    return JointSlotAnswer(**asdict(_answer_of(attempts, joint, usage)), wait=joint.wait, late=joint.late)
