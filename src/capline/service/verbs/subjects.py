"""Verbs of a subject that decide nothing: usage, explain and erase."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import msgspec

from capline.model.errors import InvalidValueError
from capline.model.subject import Subject  # noqa: TC001 - msgspec reads the annotations
from capline.service.http.forms import Name, SubjectForm
from capline.service.http.table import delete, get, post
from capline.service.verbs.attempts import LOOK, Answer, UsedLimit, answer_of

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.service.http.app import Request


class UsageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A subject and the limits that are asked for."""

    policy: Name
    subject: SubjectForm
    segment: str | None = None
    channel: str | None = None
    zone: str | None = None


class Used(msgspec.Struct):
    """What is used and left of each limit."""

    policy: str
    segment: str | None
    limits: list[UsedLimit]


class ExplainedUnits(TypedDict):
    """Units, and when they are free again."""

    at_us: int
    units: int


class LimitNow(TypedDict):
    """One limit as it stands; quiet hours have `quiet_until_us` in place of units."""

    limit: str
    binds: bool
    log: NotRequired[str]
    used: NotRequired[int]
    remaining: NotRequired[int]
    frees: NotRequired[list[ExplainedUnits]]
    quiet_until_us: NotRequired[int | None]


class HitNow(TypedDict):
    """A hit of the log."""

    hit: int
    units: int


class Explained(TypedDict):
    """Why: the decision for one unit at `now_us`, each limit, every hit, oldest first."""

    policy: str
    subject: Subject
    segment: str | None
    algorithm: str
    count_denied: bool
    zone: str | None
    now_us: int
    decision: Answer
    limits: list[LimitNow]
    hits: list[HitNow]


class Erased(msgspec.Struct, omit_defaults=True):
    """How many logs the subject had, and what it had in campaigns: rows of audiences, outcomes, batches in work."""

    erased_logs: int
    campaigns: list[dict[str, str | int]] = []


class Subjects:
    """See `Limiter` for what each does."""

    def __init__(self, limiter: AsyncLimiter, queue: str | None) -> None:
        self._limiter = limiter
        self._queue = queue

    @post("/v1/usage", UsageRequest, Used, roles=LOOK)
    async def usage(self, _request: Request, body: UsageRequest) -> Used:
        """What is used and left of each limit now."""
        segment = body.segment
        if segment is None:
            segment = self._limiter.segment_of(body.policy, body.subject)
        states = await self._limiter.usage(
            body.policy, body.subject, segment=segment, channel=body.channel, zone=body.zone
        )
        return Used(body.policy, segment, [*map(UsedLimit.of, states)])

    @get("/v1/subjects/{subject}", Explained, query=("policy", "segment", "channel", "zone"), needs=("policy",))
    async def explain(self, request: Request, subject: Subject) -> dict[str, Any]:
        """Why: the decision now, each limit, every hit."""
        named = request.parameters
        if "policy" not in named:
            raise InvalidValueError("explain which policy? add ?policy=… to the query")
        segment = named.get("segment")
        if segment is None:
            segment = self._limiter.segment_of(named["policy"], subject)
        why = await self._limiter.explain(
            named["policy"], subject, segment=segment, channel=named.get("channel"), zone=named.get("zone")
        )
        return why.as_dict(segment) | {
            "decision": answer_of(why.policy, segment, why.decision),
            "hits": [{"hit": hit.stamp_us, "units": hit.units} for hit in why.hits],
        }

    @delete("/v1/subjects/{subject}", Erased)
    async def erase(self, _request: Request, subject: Subject) -> Erased:
        """Forget the subject: its logs under all policies, and in all campaigns."""
        return Erased(await self._limiter.erase(subject), await asyncio.to_thread(self._from_campaigns, subject))

    def _from_campaigns(self, subject: Subject) -> list[dict[str, str | int]]:
        if self._queue is None:
            return []
        # Few services have campaigns.
        from capline.campaign.erase import erase  # noqa: PLC0415
        from capline.campaign.store.open import open_store  # noqa: PLC0415

        with closing(open_store(self._queue, make=True, patience_s=0.0)) as store:
            return [*map(msgspec.structs.asdict, erase(store, subject))]
