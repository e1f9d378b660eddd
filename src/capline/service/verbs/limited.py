"""`GET /v1/limited`: who was refused most in the recorded decisions, by policy and limit, and who used most.

The rule: a record is counted again only after twenty times as long as that took, so at most a twentieth of a core.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from math import inf

import msgspec

from capline.limiter.aio import AsyncLimiter
from capline.model.policy import check_name
from capline.model.subject import Subject
from capline.service.http.app import Request
from capline.service.http.table import get
from capline.service.record.kept import Record
from capline.service.record.limiter import recording
from capline.service.record.ranking import Group, Ranking, ranking
from capline.support.instant import instant_text

_POLICIES = 50
_LEAST_S, _SHARE = 2.0, 20


class LimitedSubject(msgspec.Struct):
    """A subject, and how often it was refused, or how much it used."""

    subject: Subject
    count: int


class RefusedByLimit(msgspec.Struct):
    """All refusals by one limit, and who had most of them; `limit` is "" where none is known."""

    limit: str
    refused: int
    subjects: list[LimitedSubject]


class LimitedPolicy(msgspec.Struct):
    """One policy: units that were used, and by whom most; refusals by limit, which in `shadow` nobody felt."""

    policy: str
    used: int
    refused: int
    most_used: list[LimitedSubject]
    limits: list[RefusedByLimit]
    shadow: bool = False


class Limited(msgspec.Struct):
    """What was recorded from `since` to `until`, and the policies with most refusals.

    A subject's count may be short by at most `short_by`: 0, unless very many subjects were recorded. Of a `hashed`
    record the subjects are hashes.
    """

    since: str | None
    until: str
    decisions: int
    short_by: int
    hashed: bool
    policies: list[LimitedPolicy]


class LimitedVerbs:
    """Counts one at a time."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._limiter = limiter
        self._turn = asyncio.Lock()
        self._again_at = -inf
        self._told: Limited | None = None

    @get("/v1/limited", Limited, query=("policy",), roles=("read",), scoped=True)
    async def limited(self, request: Request) -> Limited:
        """Who was refused most in the recorded decisions, by policy and limit, and who used most."""
        policy = request.parameters.get("policy")
        if policy is not None:
            check_name(policy, "policy")
            request.scope.check(policy)
        _, record = recording(self._limiter)
        async with self._turn:
            begun = time.monotonic()
            if self._told is None or begun >= self._again_at:
                record.flush()
                self._told = await asyncio.to_thread(_counted, record)
                self._again_at = time.monotonic() + max(_LEAST_S, _SHARE * (time.monotonic() - begun))
            told = self._told
        seen = [row for row in told.policies if policy in (None, row.policy) and row.policy in request.scope]
        shadow = {name for name, policy in self._limiter.policies.items() if policy.shadow}
        policies = [msgspec.structs.replace(row, shadow=row.policy in shadow) for row in seen[:_POLICIES]]
        return msgspec.structs.replace(told, policies=policies)


def _counted(record: Record) -> Limited:
    until = instant_text(time.time_ns() // 1000, "milliseconds")
    found = ranking(record.pieces())
    since = None if found.since_us is None else instant_text(found.since_us, "milliseconds")
    return Limited(since, until, found.decisions, found.short_by, record.hashed, _policies(found, record.hashed))


def _policies(found: Ranking, hashed: bool) -> list[LimitedPolicy]:
    def of(group: Group) -> list[LimitedSubject]:
        return [LimitedSubject(f"hash:{who:016x}" if hashed else who, many) for who, many in found.most.get(group, ())]

    limits: dict[str, list[RefusedByLimit]] = defaultdict(list)
    for (policy, limit), total in found.totals.items():
        limits[policy] += [] if limit is None else [RefusedByLimit(limit, total, of((policy, limit)))]
    policies = [
        LimitedPolicy(
            policy,
            found.totals.get((policy, None), 0),
            sum(row.refused for row in by),
            of((policy, None)),
            sorted(by, key=lambda row: -row.refused),
        )
        for policy, by in limits.items()
    ]
    return sorted(policies, key=lambda row: (-row.refused, -row.used, row.policy))
