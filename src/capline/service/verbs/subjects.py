"""Verbs of a subject that decide nothing: usage, explain and erase."""

import asyncio
import time
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from capline.limiter.aio import AsyncLimiter
from capline.model.errors import InvalidValueError
from capline.model.subject import Subject
from capline.service.http.app import Request
from capline.service.http.forms import Name, SubjectForm, page_limit, page_of
from capline.service.http.table import delete, get, post
from capline.service.record.kept import Row
from capline.service.record.limiter import recording
from capline.service.settings.values import Settings
from capline.service.verbs.attempts import LOOK, Answer, UsedLimit, answer_of

_SHARE = 20


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
    shadow: bool
    zone: str | None
    now_us: int
    decision: Answer
    limits: list[LimitNow]
    hits: list[HitNow]


class ExplainedNow(Explained):
    """Why, under one policy: in a channel, or without one."""

    channel: str | None


class SubjectNow(TypedDict):
    """The subject under each policy, by name, and in each channel; `next` is sent back as `after`, until it is null.

    `unasked` differ by segment, and the segments have ids of the other kind: ask for each with its `segment`.
    """

    subject: Subject
    now_us: int
    policies: list[ExplainedNow]
    unasked: list[str]
    next: str | None


class RecordedAttempt(msgspec.Struct):
    """An attempt: when, which is its hit's stamp if it was allowed, what it asked, who asked, what refused it.

    `who` is the name of the caller's token, without tokens the path that was asked.
    """

    at_us: int
    policy: str
    segment: str | None
    channel: str | None
    cost: int
    id: str | None
    limit: str | None
    who: str


class RecordedAttempts(msgspec.Struct):
    """The newest of those that the service recorded, newest first."""

    allowed: list[RecordedAttempt]
    refused: list[RecordedAttempt]


class Erased(msgspec.Struct, omit_defaults=True):
    """How many logs the subject had, and what it had in campaigns: rows of audiences, outcomes, batches in work.

    `uploads`: from which uploads how many rows were erased; `unread` says why one could not be looked through.
    `replies`: how many of what came back; an opt-out stays.
    """

    erased_logs: int
    campaigns: list[dict[str, str | int]] = []
    uploads: list[dict[str, str | int | None]] = []
    replies: int = 0


class Subjects:
    """See `Limiter` for what each does."""

    def __init__(self, limiter: AsyncLimiter, settings: Settings) -> None:
        self._limiter, self._settings = limiter, settings
        self._turn, self._again_at = asyncio.Lock(), 0.0

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

    @get(
        "/v1/subjects/{subject}",
        (Explained, SubjectNow),
        query=("policy", "segment", "channel", "zone", "after", "limit"),
        scoped=True,
    )
    async def explain(self, request: Request, subject: Subject) -> dict[str, Any]:
        """Why: the decision now, each limit, every hit; without a policy the same under all of them."""
        named = request.parameters
        segment, zone = named.get("segment"), named.get("zone")
        if "" in named.values() or ("channel" in named and "policy" not in named):
            raise InvalidValueError("leave out a parameter that is empty, and a channel without its policy")
        if "policy" in named:
            request.scope.check(named["policy"])
            page_limit(named)  # wrong is wrong, also where there is no page
            if segment is None:
                segment = self._limiter.segment_of(named["policy"], subject)
            return await self._explained(named["policy"], subject, segment, named.get("channel"), zone)
        policies = self._limiter.policies
        names, following = page_of(request.scope.of(policies.names), named)
        found: list[dict[str, Any]] = []
        unasked: list[str] = []
        for name in names:
            policy = policies[name]
            try:
                within = self._limiter.segment_of(name, subject) if segment is None else segment
            except InvalidValueError:  # a text, where segments have numbers
                unasked.append(name)
                continue
            within = within if within in policy.by_segment else None
            for channel in (None, *policy.channels):
                why = await self._explained(name, subject, within, channel, zone)
                found.append(why | {"channel": channel})
                await asyncio.sleep(0)  # others come in between
        told = {"subject": subject, "now_us": await self._limiter.now_us(), "policies": found, "unasked": unasked}
        return told | {"next": following}

    async def _explained(
        self, policy: str, subject: Subject, segment: str | None, channel: str | None, zone: str | None
    ) -> dict[str, Any]:
        why = await self._limiter.explain(policy, subject, segment=segment, channel=channel, zone=zone)
        return why.as_dict(segment) | {
            "decision": answer_of(why.policy, segment, why.decision),
            "hits": [{"hit": hit.stamp_us, "units": hit.units} for hit in why.hits],
        }

    @get("/v1/subjects/{subject}/attempts", RecordedAttempts, query=("limit",), roles=("read",), scoped=True)
    async def attempts(self, request: Request, subject: Subject) -> RecordedAttempts:
        """The last recorded attempts of the subject, who asked for each, and which limit refused it."""
        most = page_limit(request.parameters)
        _, record = recording(self._limiter)
        async with self._turn:  # it reads all that is recorded, and takes a twentieth of a core at most
            await asyncio.sleep(self._again_at - time.monotonic())
            begun = time.monotonic()
            record.flush()
            found = await asyncio.to_thread(record.of_subject, subject, request.scope, most)
            self._again_at = begun + _SHARE * (time.monotonic() - begun)
        return RecordedAttempts(*([_attempt(row) for row in rows] for rows in found))

    @delete("/v1/subjects/{subject}", Erased)
    async def erase(self, _request: Request, subject: Subject) -> Erased:
        """Forget the subject: its logs under all policies, in all campaigns, uploads and replies."""
        return Erased(await self._limiter.erase(subject), *await asyncio.to_thread(self._from_campaigns, subject))

    def _from_campaigns(self, subject: Subject) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
        queue, audiences, folder = self._settings.queue, self._settings.audiences, self._settings.replies
        if queue is None:
            return [], [], 0
        # Few services have campaigns.
        from capline.campaign.erase import erase, erase_uploads  # noqa: PLC0415
        from capline.campaign.response.folder import erase_replies  # noqa: PLC0415
        from capline.campaign.store.open import open_store  # noqa: PLC0415

        uploads = [] if audiences is None else erase_uploads(audiences, subject)
        with open_store(queue, make=True, patience_s=0.0) as store:
            found = erase(store, subject)
        replies = 0 if folder is None else erase_replies(Path(folder), subject)
        return [*map(msgspec.structs.asdict, found)], [*map(msgspec.structs.asdict, uploads)], replies


def _attempt(row: Row) -> RecordedAttempt:
    policy, segment, channel, _, cost, _, who = row.kind
    return RecordedAttempt(row.at_us, policy, segment, channel, cost, row.id, row.limit, who)
