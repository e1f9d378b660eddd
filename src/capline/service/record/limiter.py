"""A limiter whose decisions are recorded: single ones and those of batches, whoever asks for them.

Not recorded are attempts over several subjects, slots, reservations, charges, and what was answered without the store.
Their hits are in the store's logs, so whoever tries other limits knows of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from http import HTTPStatus
from itertools import compress, repeat
from time import time_ns
from typing import Any, Self, cast

import numpy as np

from capline.limiter.aio import AsyncLimiter
from capline.limiter.outage.outage import OutagePolicy
from capline.limiter.policies.rules import Rules
from capline.limiter.policies.shadow import SHADOW
from capline.model.attempt import Attempt
from capline.model.decision import Decision
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError
from capline.model.limit import Limit
from capline.model.subject import Subject
from capline.service.http.app import ASKER
from capline.service.http.problems import Problem
from capline.service.record.kept import Kind, Record, Row
from capline.store.columns import NO_HIT, Decisions
from capline.support.override import override
from capline.window.log import Hit

_decide = AsyncLimiter.decide
_DECIDED = ("store", "deny-cache", SHADOW)
"""Origins of answers that the limits gave; in shadow what they would have refused is recorded as refused."""


def recording(limiter: AsyncLimiter) -> tuple[RecordingLimiter, Record]:
    """The limiter and its record; raises the `Problem` of a service that keeps none."""
    if not isinstance(limiter, RecordingLimiter) or limiter.record is None:
        raise Problem(
            HTTPStatus.CONFLICT, "this service records no decisions; give 'record: {keep: 3600}' in its settings"
        )
    return limiter, limiter.record


@lru_cache(1024)
def _text_of(limit: Limit | None) -> str | None:
    return None if limit is None else str(limit)


class RecordingLimiter(AsyncLimiter):
    """Records once `record` is set; a limiter `beside` it does not."""

    record: Record | None = None

    # The names once more: gathered in a dict they would cost as much again as the record.
    @override
    async def decide(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
        keep_free: int | Sequence[int] = 0,
    ) -> Decision:
        who = ASKER.get()
        decision = await _decide(
            self,
            policy,
            subject,
            cost,
            id,
            segment=segment,
            channel=channel,
            zone=zone,
            limits=limits,
            keep_free=keep_free,
        )
        record = self.record
        if record is not None and limits is None and decision.origin in _DECIDED and type(keep_free) is int:
            if segment is None and self._lookup is not None:
                segment = self.segment_of(policy, subject)
            kind = policy, segment, channel, zone, cost, keep_free, who
            allowed = decision.allowed and decision.origin != SHADOW
            limit = None if allowed else _text_of(decision.limit)
            record.add((kind, decision.hit or time_ns() // 1000, subject, allowed, id, limit))
        return decision

    @override
    async def decide_batch(self, attempts: Sequence[Attempt]) -> list[Decision | CaplineError]:
        who, answers = ASKER.get(), await super().decide_batch(attempts)
        if self.record is not None:
            await self._work(len(answers), partial(self._add_batch, self.record, attempts, answers, who))
        return answers

    @override
    async def decide_many(self, policy: str, subjects: Sequence[Subject], **named: Any) -> Decisions:
        who, answers = ASKER.get(), await super().decide_many(policy, subjects, **named)
        if self.record is not None and type(named.get("keep_free", 0)) is int:
            await self._work(len(subjects), partial(self._add_many, self.record, policy, subjects, named, answers, who))
        return answers

    @override
    async def erase(self, subject: Subject) -> int:
        erased = await super().erase(subject)
        if self.record is not None:
            self.record.erase(subject)
        return erased

    def _add_batch(
        self, record: Record, attempts: Sequence[Attempt], answers: Sequence[Decision | CaplineError], who: str
    ) -> None:
        now_us = time_ns() // 1000
        rows = [
            Row(
                self._kind(attempt, who),
                answer.hit or now_us,
                attempt.subject,
                allowed := answer.allowed and answer.origin != SHADOW,
                attempt.id,
                None if allowed else _text_of(answer.limit),
            )
            for attempt, answer in zip(attempts, answers, strict=True)
            if isinstance(answer, Decision) and answer.origin in _DECIDED and type(attempt.keep_free) is int
        ]
        record.write(rows)

    def _kind(self, attempt: Attempt, who: str) -> Kind:
        segment = attempt.segment
        if segment is None and self._lookup is not None:
            segment = self.segment_of(attempt.policy, attempt.subject)
        keep_free = cast("int", attempt.keep_free)
        return attempt.policy, segment, attempt.channel, attempt.zone, attempt.cost, keep_free, who

    def _add_many(
        self,
        record: Record,
        policy: str,
        subjects: Sequence[Subject],
        named: Mapping[str, Any],
        answers: Decisions,
        who: str,
    ) -> None:
        """Add columns; segments as `decide_many` takes them."""
        segment, codes, receipt = named.get("segment"), named.get("codes"), named.get("receipt")
        segments: Sequence[str | None] = [segment]
        if segment is None and self._lookup is not None:
            rules = self._rules.policy(policy)
            segments, codes = [None, *rules.by_segment], self._lookup.codes(rules, subjects)[0].tolist()
        elif segment is not None and not isinstance(segment, str):
            segments, codes = segment, range(len(subjects)) if codes is None else codes
        others = named.get("channel"), named.get("zone"), named.get("cost", 1), named.get("keep_free", 0), who
        kinds = [(policy, name, *others) for name in segments]
        now_us = time_ns() // 1000
        stamps = [hit if hit != NO_HIT else now_us for hit in answers.hit.tolist()]
        ids = repeat(None) if receipt is None else (f"{receipt}:{row}" for row in range(len(subjects)))
        each = repeat(kinds[0]) if codes is None else map(kinds.__getitem__, codes)
        texts = [*map(_text_of, answers.limits), None]  # -1, none, is the last
        allowed = answers.allowed.copy()
        allowed[[row for row, origin in answers.origins.items() if origin == SHADOW]] = False
        limits = map(texts.__getitem__, np.where(allowed, -1, answers.limit_index).tolist())
        rows = [*map(Row, each, stamps, subjects, allowed.tolist(), ids, limits)]
        if answers.errors or answers.origins or answers.origin not in _DECIDED:
            origins = answers.origins
            decided = (
                place not in answers.errors and origins.get(place, answers.origin) in _DECIDED
                for place in range(len(rows))
            )
            rows = [*compress(rows, decided)]
        record.write(rows)

    def segment_now(self, subject: Subject) -> str | None:
        """The segment that the subject is in now, whichever policy asks; None for none."""
        with suppress(InvalidValueError, InvalidTypeError):  # it can be in none
            return None if self._lookup is None else self._lookup.source.current.segment_of(subject)
        return None

    async def hits(self, policy: str, subject: Subject, segment: str | None) -> list[Hit]:
        """The hits of the subject's log under the policy within its widest window, oldest first."""
        has_it = segment in self._rules.policy(policy).by_segment  # or no more: the log is that of all segments
        attempt = self._checked(Attempt(policy, subject, segment=segment if has_it else None))
        compiled, stored_subject, *_ = self._arguments(attempt)
        logs: list[list[Hit]] = await self._store.recorded(compiled, stored_subject)
        return logs[0]

    @override
    def _view(self, rules: Rules, outage: OutagePolicy) -> Self:
        other = super()._view(rules, outage)
        other.record = None
        return other
