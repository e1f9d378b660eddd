"""`POST /v1/policies/{name}/try`: what other limits would have done to the decisions that the service recorded.

`POST /v1/policies/{name}/suggest`: which limits these decisions suggest, see `capline.service.record.suggested`.

    the record's rows of the policy  +  the hits of their subjects in the store that are not in it (from before, from
    campaigns, other instances)  ->  replayed under the limits in force and under the others  ->  compared

The rule: what is not known is not made up. Of many subjects some are looked at, each with all of its decisions; and
`as_answered` says how many decisions the replay of the limits in force answers as they were answered.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from http import HTTPStatus
from math import ceil
from typing import Any, Literal, NamedTuple

import msgspec

from capline.config.document import policy_of
from capline.limiter.aio import AsyncLimiter
from capline.model.errors import quoted
from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.model.subject import Subject
from capline.replay.recorded import Recorded, refusals
from capline.service.http.app import Request
from capline.service.http.problems import Problem
from capline.service.http.table import post
from capline.service.record.kept import Record, Row
from capline.service.record.limiter import RecordingLimiter, recording
from capline.service.record.suggested import Asked, asked_of, decided, suggestions
from capline.service.verbs.configuration import PolicyForm
from capline.support.instant import instant_text
from capline.window.log import Hit

MOST_SUBJECTS, MOST_ROWS = 10_000, 200_000
"""Looked at by one trial; it takes up to some seconds."""
_MOST_NAMED = 10
_AT_ONCE = 64


class Refusals(msgspec.Struct):
    """How many decisions are refused, of how many subjects, and by which limits."""

    refused: int
    subjects: int
    limits: dict[str, int]


class RefusedSubject(msgspec.Struct):
    """A subject, and how many of its decisions are refused."""

    subject: Subject
    refused: int


class Turned(msgspec.Struct):
    """Subjects for whom it makes a difference: how many, and those with most refusals."""

    subjects: int
    some: list[RefusedSubject]


class Tried(msgspec.Struct):
    """What the limits in force do to the recorded decisions (`now`), and what the others would have done (`then`).

    `of_subjects` were recorded, and `subjects` of them looked at. `as_answered` of the decisions are answered by the
    replay of the limits in force as they were answered. `overridden` subjects have limits of their own, and are left
    out.
    """

    since: str | None
    until: str
    decisions: int
    subjects: int
    of_subjects: int
    overridden: int
    as_answered: int
    now: Refusals
    then: Refusals
    newly_refused: Turned
    newly_free: Turned


class SuggestForm(msgspec.Struct, forbid_unknown_fields=True):
    """Windows like `hour`, at most 3 (those of the policy's limits if none is named), and what may be refused.

    `refuse_at_most` is a share or a whole number `of` events, or of subjects with a refusal.
    """

    windows: list[str] = []
    refuse_at_most: str = "1%"
    of: Literal["events", "subjects"] = "events"
    by_segment: bool = False


class LimitPrice(msgspec.Struct):
    """A limit, and what it would have refused."""

    limit: str
    refused_events: int
    refused_subjects: int


class LimitsPrice(msgspec.Struct):
    """Limits that hold together, and what they would have refused."""

    limits: list[str]
    refused_events: int
    refused_subjects: int


class SuggestedWindow(msgspec.Struct):
    """At most 200 quotas, each with its refused events and subjects; of these the smallest that keeps the bound.

    `in_force` is what is now, `top_refused` whom the suggested one refuses most: its refusals, and all its events.
    """

    quotas: list[tuple[int, int, int]]
    most_of_one: list[int]
    suggested: LimitPrice
    top_refused: list[tuple[Subject, int, int]]
    in_force: LimitPrice | None = None


class SuggestedLimits(msgspec.Struct):
    """By window, and together; of two windows the pairs of quotas of which neither can be smaller."""

    events: int
    subjects: int
    windows: dict[str, SuggestedWindow]
    together: LimitsPrice
    frontier: list[tuple[dict[str, int], int, int]] = []


class Suggested(msgspec.Struct):
    """Limits for the recorded decisions since then, None where there are none; `segments` are the largest of so many.

    `left_out` decisions had another cost than one unit or were to keep units free, `older` ones were too many, and
    `overridden` subjects have limits of their own: they are not counted. Of a `hashed` record the
    subjects are hashes.
    """

    since: str | None
    until: str
    left_out: int
    overridden: int
    older: int
    hashed: bool
    suggested: SuggestedLimits | None = None
    segments: dict[str, SuggestedLimits] = {}
    of_segments: int = 0


class Trials:
    """Tries one policy at a time."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._limiter = limiter
        self._turn = asyncio.Lock()

    @post(
        "/v1/policies/{name}/try",
        PolicyForm,
        Tried,
        roles=("read",),
        has_maps=True,
        examples={"POST": {"limits": ["2/day", "10/week"]}},
    )
    async def try_policy(self, _request: Request, name: str, form: PolicyForm) -> Tried:
        """What this policy would have done to the recorded decisions; changes nothing."""
        limiter, record, policy = self._recorded(name)
        wanted = policy_of(name, form.document())
        async with self._turn:
            return await _tried(limiter, record, policy, wanted)

    @post(
        "/v1/policies/{name}/suggest",
        SuggestForm,
        Suggested,
        roles=("read",),
        examples={"POST": {"windows": ["minute", "hour"], "refuse_at_most": "1%", "of": "subjects"}},
    )
    async def suggest(self, _request: Request, name: str, form: SuggestForm) -> Suggested:
        """The smallest quotas that would have refused so few of the recorded decisions; changes nothing."""
        limiter, record, policy = self._recorded(name)
        asked = asked_of(policy, form.windows, form.refuse_at_most, form.of, by_segment=form.by_segment)
        async with self._turn:
            record.flush()
            return await asyncio.to_thread(_suggested, limiter, record, policy, asked)

    def _recorded(self, name: str) -> tuple[RecordingLimiter, Record, Policy]:
        limiter, record = recording(self._limiter)
        policy = limiter.policies.get(name)
        if policy is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"no policy {quoted(name)}")
        return limiter, record, policy


def _suggested(limiter: RecordingLimiter, record: Record, policy: Policy, asked: Asked) -> Suggested:
    until = instant_text(time.time_ns() // 1000, "milliseconds")
    named = limiter.segment_now if asked.by_segment and not record.hashed else None
    found = decided(record, policy.name, lambda subjects: _limits_of(limiter, record, policy, subjects), named)
    since = None if found.since_us is None else instant_text(found.since_us, "milliseconds")
    told = suggestions(policy, found, asked, hashed=record.hashed)
    parts = {key: told.pop(key) for key in ("segments", "of_segments") if key in told}
    facts = parts | {"suggested": told or None, "since": since, "until": until}
    counts = {"left_out": found.left_out, "overridden": found.overridden, "older": found.older, "hashed": record.hashed}
    return msgspec.convert(facts | counts, Suggested)


def _limits_of(
    limiter: RecordingLimiter, record: Record, policy: Policy, subjects: Sequence[Subject]
) -> Sequence[object]:
    """The limits of their own of these subjects, None for none; of hashes nobody knows."""
    if limiter.configuration is None or record.hashed:
        return [None] * len(subjects)
    return limiter.configuration.view.owns(policy.name, subjects)


async def _tried(limiter: RecordingLimiter, record: Record, policy: Policy, wanted: Policy) -> Tried:
    record.flush()
    until_us = time.time_ns() // 1000
    began_us, rows = await asyncio.to_thread(record.rows, policy.name)
    by_subject: dict[Subject, list[Row]] = defaultdict(list)
    for row in rows:
        by_subject[row.subject].append(row)
    every = max(ceil(len(by_subject) / MOST_SUBJECTS), ceil(len(rows) / MOST_ROWS), 1)
    subjects = [*by_subject][::every]
    overrides = await asyncio.to_thread(_limits_of, limiter, record, policy, subjects)
    plain = [subject for subject, limits in zip(subjects, overrides, strict=True) if limits is None]
    replayed: list[_Replayed] = []
    keeps_hits = policy.algorithm == "sliding_log" and bool(policy.limits) and not policy.count_denied
    for first in range(0, len(plain), _AT_ONCE):
        some = plain[first : first + _AT_ONCE]
        logs: list[list[Hit] | None] = [None] * len(some)
        if keeps_hits and not record.hashed:
            logs = await asyncio.gather(
                *(limiter.hits(policy.name, subject, by_subject[subject][0].kind[1]) for subject in some)
            )
        for subject, hits in zip(some, logs, strict=True):
            segment = None if record.hashed else limiter.segment_now(subject)
            replayed += _replayed(by_subject[subject], hits or [], segment)
        await asyncio.sleep(0)  # others come in between
    replayed.sort(key=lambda each: each.attempt.at_us)
    since = None if began_us is None else instant_text(began_us, "milliseconds")
    facts = {"since": since, "until": instant_text(until_us, "milliseconds")}
    counts = {"of_subjects": len(by_subject), "overridden": len(subjects) - len(plain)}
    return await asyncio.to_thread(_compared, replayed, policy, wanted, facts | counts)


class _Replayed(NamedTuple):
    """What is replayed; and whether it was allowed, None for a hit from elsewhere."""

    attempt: Recorded
    allowed: bool | None


def _replayed(rows: list[Row], hits: list[Hit], segment_now: str | None) -> list[_Replayed]:
    """The decisions of one subject, and its hits from elsewhere; one that was given back is in the log with 0 units."""
    units = {hit.stamp_us: hit.units for hit in hits}
    allowed = {row.at_us for row in rows if row.allowed}
    found = [
        _Replayed(Recorded(at_us, rows[0].subject, "charge", many, segment=rows[0].kind[1]), None)
        for at_us, many in units.items()
        if many and at_us not in allowed
    ]
    for (_, segment, channel, zone, cost, keep_free, _), at_us, subject, was_allowed, id, _limit in rows:
        verb: Literal["decide", "peek"] = "peek" if was_allowed and units.get(at_us) == 0 else "decide"
        attempt = Recorded(at_us, subject, verb, cost, id, segment or segment_now, channel, zone, keep_free)
        found.append(_Replayed(attempt, was_allowed))
    return found


def _compared(replayed: Sequence[_Replayed], policy: Policy, wanted: Policy, facts: dict[str, Any]) -> Tried:
    recorded = [each.attempt for each in replayed]
    now, then = refusals(policy, recorded), refusals(wanted, recorded)
    as_answered = sum(each.allowed == (limit is None) for each, limit in zip(replayed, now, strict=True))
    of = [
        Counter(each.subject for each, limit in zip(recorded, limits, strict=True) if limit is not None)
        for limits in (now, then)
    ]
    return Tried(
        **facts,
        decisions=sum(each.allowed is not None for each in replayed),
        subjects=len({each.attempt.subject for each in replayed if each.allowed is not None}),
        as_answered=as_answered,
        now=_refusals(now, of[0]),
        then=_refusals(then, of[1]),
        newly_refused=_turned(of[1], of[0]),
        newly_free=_turned(of[0], of[1]),
    )


def _refusals(limits: Sequence[Limit | None], of: Counter[Subject]) -> Refusals:
    by_limit = Counter(str(limit) for limit in limits if limit is not None)
    return Refusals(by_limit.total(), len(of), dict(by_limit.most_common()))


def _turned(refused: Counter[Subject], other: Counter[Subject]) -> Turned:
    """Those that are refused, and were not (or would not be)."""
    found = Counter({subject: count for subject, count in refused.items() if not other[subject]})
    return Turned(len(found), [RefusedSubject(*each) for each in found.most_common(_MOST_NAMED)])
