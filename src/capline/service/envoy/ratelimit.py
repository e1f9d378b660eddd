"""Decides one request of Envoy: which limits its descriptors have, and whether all of them have room.

The rule: a request that is refused consumes nothing, of none of its descriptors. Those that refuse are one joint
attempt, all or nothing. What does not refuse by itself comes after it: descriptors in quota mode, of which all must be
over to refuse, and those in shadow mode. Once a request is refused, what is left is only looked at.

A descriptor that brings its own addend above 0 is a debit: it counts whatever the limit says, as upstream counts. One
with its own addend 0 is only looked at.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from capline.model.attempt import Attempt
from capline.model.errors import InvalidValueError
from capline.model.subject import LONGEST_TEXT_BYTES
from capline.service.envoy.rules import UNITS_US, Match, Rule, policies_of, policy_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.limiter.aio import AsyncLimiter
    from capline.model.limit_status import LimitStatus
    from capline.service.envoy.metrics import EnvoyMetrics
    from capline.service.envoy.rules import Configuration

__all__ = ["MOST_DESCRIPTORS", "MOST_ENTRIES", "Ask", "RateLimit", "Status", "subject_of"]

MOST_DESCRIPTORS = 64
MOST_ENTRIES = 64
MOST_OVERRIDES = 1000
"""Limits that requests brought along and that are kept; the oldest goes for a new one."""

LARGEST_REMAINING = (1 << 32) - 1


class Ask(msgspec.Struct, frozen=True):
    """One descriptor: its entries, its cost, whether the cost is its `own`, and the limit that it brings, if any."""

    entries: tuple[tuple[str, str], ...]
    cost: int = 1
    own: bool = False
    limit: tuple[int, str] | None = None


class Status(msgspec.Struct):
    """What becomes of one descriptor; without a rule there is no limit, and `over` is never true."""

    rule: Rule | None = None
    over: bool = False
    remaining: int = 0
    reset_us: int = 0


class _Part(msgspec.Struct):
    """A descriptor to be decided, at its place in the request."""

    place: int
    match: Match
    attempt: Attempt
    own: bool

    @property
    def rule(self) -> Rule:
        return self.match.rule

    @property
    def is_plain(self) -> bool:
        return not (self.own or self.rule.shadow or self.rule.quota_mode)


class RateLimit:
    """Decides by a configuration, on the store of a limiter; `use` replaces the configuration at once."""

    def __init__(self, limiter: AsyncLimiter, configuration: Configuration, metrics: EnvoyMetrics) -> None:
        self._limiter = limiter.beside(())
        self._metrics = metrics
        self._overrides: dict[tuple[int, str], None] = {}
        self._known: set[str] = set()
        self.use(configuration)

    def use(self, configuration: Configuration) -> None:
        """Decide by this one from now on; what was counted stays."""
        self._configuration = configuration
        limits = [(rule.quota, rule.unit) for rule in configuration.rules if not rule.unlimited]
        policies = policies_of([*limits, *self._overrides])
        self._limiter.use(policies)
        self._known = {policy.name for policy in policies}

    async def ask(self, domain: str, asks: Sequence[Ask]) -> tuple[bool, list[Status]]:
        """Whether the request is over its limits, and the status of each descriptor, in order.

        Raises `InvalidValueError` for a request that can have no answer, `StoreError` in an outage.
        """
        _check(domain, asks)
        statuses = [Status() for _ in asks]
        parts = self._parts(domain, asks, statuses)
        if len(parts) == 1 and parts[0].is_plain:  # nearly every request
            await self._alone(parts[0], statuses)
            over = statuses[parts[0].place].over
        else:
            over = await self._together(parts, statuses)
        self._count(domain, parts, statuses)
        return over, statuses

    async def _together(self, parts: list[_Part], statuses: list[Status]) -> bool:
        """Decide the parts in their order; whether they are over."""
        refusing: list[_Part] = []
        quota: list[_Part] = []
        shadow: list[_Part] = []
        for part in parts:
            (shadow if part.rule.shadow else quota if part.rule.quota_mode else refusing).append(part)
        for part in parts:
            if not part.attempt.cost:
                await self._look(part, statuses)
            elif part.own:
                await self._debit(part, statuses)
        over = _any_over(refusing, statuses)
        hits = await self._joint(_to_decide(refusing), statuses, refused=over)
        over = _any_over(refusing, statuses)
        await self._each(_to_decide(quota), statuses, refused=over)
        if quota and not over and all(statuses[part.place].over for part in quota):
            over = True
            for attempt, hit in hits:
                await self._limiter.refund(attempt.policy, attempt.subject, hit, attempt.cost)
        await self._each(_to_decide(shadow), statuses, refused=over)
        return over

    def _parts(self, domain: str, asks: Sequence[Ask], statuses: list[Status]) -> list[_Part]:
        """The descriptors that have a limit to be looked at; counts the others."""
        matches = [self._match(domain, ask) for ask in asks]
        replaced = {name for match in matches if match is not None for name in match.rule.replaces}
        known = domain in self._configuration.domains
        parts: list[_Part] = []
        for place, (ask, match) in enumerate(zip(asks, matches, strict=True)):
            if match is None:
                self._metrics.descriptor(domain if known else "", "", "no_limit" if known else "no_domain")
            elif match.rule.unlimited:
                statuses[place] = Status(match.rule, remaining=LARGEST_REMAINING)
                self._metrics.descriptor(domain, match.metric, "unlimited")
            elif match.rule.name in replaced:
                self._metrics.descriptor(domain, match.metric, "replaced")
            else:
                policy = self._policy(match.rule.quota, match.rule.unit)
                attempt = Attempt(policy, subject_of(domain, match.entries), ask.cost)
                parts.append(_Part(place, match, attempt, ask.own))
        return parts

    def _match(self, domain: str, ask: Ask) -> Match | None:
        if ask.limit is None:
            return self._configuration.match(domain, ask.entries)
        if domain not in self._configuration.domains:
            return None
        names = [f"{key}_{value}" if value else key for key, value in ask.entries]
        return Match(Rule(*ask.limit), ask.entries, ".".join([domain, *names]))

    def _policy(self, quota: int, unit: str) -> str:
        """The name of the policy of this limit, which a request may have brought."""
        name = policy_name(quota, unit)
        if name not in self._known:
            if unit not in UNITS_US:
                raise InvalidValueError("the request's own limit has no unit; give it one, like MINUTE")
            if len(self._overrides) == MOST_OVERRIDES:
                del self._overrides[next(iter(self._overrides))]
            self._overrides[quota, unit] = None
            self.use(self._configuration)
        return name

    async def _each(self, parts: list[_Part], statuses: list[Status], *, refused: bool) -> list[tuple[Attempt, int]]:
        """Decide each by itself, or look at it where the request is refused; what was consumed."""
        hits: list[tuple[Attempt, int]] = []
        for part in parts:
            if refused:
                await self._look(part, statuses)
            elif (hit := await self._alone(part, statuses)) is not None:
                hits.append((part.attempt, hit))
        return hits

    async def _joint(self, parts: list[_Part], statuses: list[Status], *, refused: bool) -> list[tuple[Attempt, int]]:
        """Consume of all or of none; what was consumed."""
        if refused or len(parts) <= 1:
            return await self._each(parts, statuses, refused=refused)
        attempts, numbers = _merged(parts)
        joint = await self._limiter.decide_all(attempts)
        for part, number in zip(parts, numbers, strict=True):
            limits, cost = joint.limits[number], attempts[number].cost
            if not limits:  # a cluster's slots decide in turn, and this one was not asked
                await self._look(part, statuses)
                continue
            statuses[part.place] = _status(part.rule, limits[0], over=not joint.allowed and limits[0].remaining < cost)
        if not joint.allowed and not any(statuses[part.place].over for part in parts):
            statuses[parts[numbers.index(joint.binds)].place].over = True  # the others took room in the meantime
        return list(zip(attempts, joint.hits, strict=True)) if joint.allowed else []

    async def _alone(self, part: _Part, statuses: list[Status]) -> int | None:
        """Decide one by itself; the hit."""
        attempt = part.attempt
        decision = await self._limiter.decide(attempt.policy, attempt.subject, attempt.cost)
        statuses[part.place] = _status(part.rule, decision.limits[0], over=not decision.allowed)
        return decision.hit

    async def _look(self, part: _Part, statuses: list[Status]) -> None:
        """Would it be allowed? Consumes nothing. With the addend 0: is no more counted than the limit has?"""
        attempt = part.attempt
        decision = await self._limiter.peek(attempt.policy, attempt.subject, 0)
        status = _status(part.rule, decision.limits[0], over=not decision.allowed)
        status.over = status.over or status.remaining < attempt.cost
        statuses[part.place] = status

    async def _debit(self, part: _Part, statuses: list[Status]) -> None:
        """Count it, whatever the limit says; over where more is counted now than the limit has."""
        attempt = part.attempt
        await self._limiter.charge(attempt.policy, attempt.subject, attempt.cost)
        decision = await self._limiter.peek(attempt.policy, attempt.subject, 0)
        statuses[part.place] = _status(part.rule, decision.limits[0], over=not decision.allowed)

    def _count(self, domain: str, parts: list[_Part], statuses: list[Status]) -> None:
        for part in parts:
            status = statuses[part.place]
            outcome = "over_limit" if status.over else "ok"
            if status.over and part.rule.shadow:
                outcome, status.over = "shadow", False
            self._metrics.descriptor(domain, part.match.metric, outcome)


def subject_of(domain: str, entries: Sequence[tuple[str, str]]) -> str:
    """The subject that a descriptor is counted under: `edge|path=/a|user=7`, where a backslash escapes `|` and `=`.

    Different descriptors are different subjects. Above 512 bytes it is a SHA-256, behind a `|` that no other begins
    with.
    """
    pieces = [_escaped(domain), *(f"{_escaped(key)}={_escaped(value)}" for key, value in entries)]
    subject = "|".join(pieces)
    encoded = subject.encode()
    return subject if len(encoded) <= LONGEST_TEXT_BYTES else f"|sha256={hashlib.sha256(encoded).hexdigest()}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("=", "\\=")


def _check(domain: str, asks: Sequence[Ask]) -> None:
    if not domain:
        raise InvalidValueError("rate limit domain must not be empty")
    if not asks:
        raise InvalidValueError("rate limit descriptor list must not be empty")
    if len(asks) > MOST_DESCRIPTORS:
        raise InvalidValueError(f"{len(asks)} descriptors in one request; at most {MOST_DESCRIPTORS}")
    for ask in asks:
        if len(ask.entries) > MOST_ENTRIES:
            raise InvalidValueError(f"{len(ask.entries)} entries in one descriptor; at most {MOST_ENTRIES}")


def _any_over(parts: list[_Part], statuses: list[Status]) -> bool:
    return any(statuses[part.place].over for part in parts)


def _to_decide(parts: list[_Part]) -> list[_Part]:
    """Without those that are only looked at, or always counted."""
    return [part for part in parts if part.attempt.cost and not part.own]


def _merged(parts: list[_Part]) -> tuple[list[Attempt], list[int]]:
    """One attempt for each log, and the number of each part's: two parts on one log add up, under the smaller limit."""
    attempts: dict[tuple[str, object], Attempt] = {}
    quotas: dict[tuple[str, object], int] = {}
    for part in parts:
        log = part.rule.unit, part.attempt.subject
        before = attempts.get(log)
        cost = part.attempt.cost + (0 if before is None else before.cost)
        smaller = before is None or part.rule.quota < quotas[log]
        quotas[log] = part.rule.quota if smaller else quotas[log]
        attempts[log] = Attempt(policy_name(quotas[log], part.rule.unit), part.attempt.subject, cost)
    order = list(attempts)
    return list(attempts.values()), [order.index((part.rule.unit, part.attempt.subject)) for part in parts]


def _status(rule: Rule, limit: LimitStatus, *, over: bool) -> Status:
    """`reset_us` is when more is left: when the oldest hit leaves the window."""
    frees_us = UNITS_US[rule.unit] if limit.frees_in_us is None else limit.frees_in_us
    return Status(rule, over, max(0, limit.remaining), frees_us)
