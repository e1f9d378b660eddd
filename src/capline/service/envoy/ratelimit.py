"""Decides one request of Envoy: which limits its descriptors have, and whether all of them have room.

The rule: a request that is refused consumes nothing. The descriptors that refuse by themselves are one joint attempt,
all or nothing. After it come those in quota mode, which refuse only if all of them are over, and those in shadow mode,
which never do. Once a request is refused, the rest is only looked at.

A descriptor that brings its own addend above 0 is a debit: it counts whatever the limit says, as upstream counts. One
with its own addend 0 is only looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.attempt import Attempt
from capline.service.envoy.plan import Part, Plan, Status, plan_of
from capline.service.envoy.rules import UNITS_US, Rule, policies_of, policy_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.limiter.aio import AsyncLimiter
    from capline.model.limit_status import LimitStatus
    from capline.service.envoy.metrics import EnvoyMetrics
    from capline.service.envoy.plan import Descriptor
    from capline.service.envoy.rules import Configuration

__all__ = ["RateLimit"]

MOST_OVERRIDES = 1000
"""The most limits that are kept of those that requests brought along; the least recently planned goes first."""

_Limit = tuple[int, str]


class RateLimit:
    """Decides by a configuration, on the store of a limiter; `use` replaces the configuration at once.

    `changes` goes up whenever plans that were made before are no longer valid.
    """

    def __init__(self, limiter: AsyncLimiter, configuration: Configuration, metrics: EnvoyMetrics) -> None:
        self._limiter = limiter.beside(())
        self._metrics = metrics
        self._overrides: dict[_Limit, None] = {}
        self._limits: list[_Limit] = []
        self._before: list[_Limit] = []
        self._known: set[str] = set()
        self.changes = 0
        self.use(configuration)

    def use(self, configuration: Configuration) -> None:
        """Decide by this one from now on; what was counted stays, and requests under way end by the one before."""
        self._configuration = configuration
        self._before = self._limits
        self._limits = [(rule.quota, rule.unit) for rule in configuration.rules if not rule.unlimited]
        self._take()

    def _take(self) -> None:
        policies = policies_of([*self._limits, *self._before, *self._overrides])
        self._limiter.use(policies)
        self._known = {policy.name for policy in policies}
        self.changes += 1

    def plan(self, domain: str, descriptors: Sequence[Descriptor]) -> Plan:
        """What a request leads to; raises `InvalidValueError` for one that can have no answer."""
        plan = plan_of(self._configuration, domain, descriptors)
        for part in plan.parts:
            limit = part.rule.quota, part.rule.unit
            if limit in self._overrides:
                self._overrides[limit] = self._overrides.pop(limit)  # now the last to go
            elif part.attempt.policy not in self._known:  # the request brought it along
                if len(self._overrides) == MOST_OVERRIDES:
                    del self._overrides[next(iter(self._overrides))]
                self._overrides[limit] = None
                self._take()
        return plan

    async def decide(self, plan: Plan) -> tuple[bool, Sequence[Status]]:
        """Whether the request is over its limits, and the status of each descriptor, in order.

        Raises `StoreError` in an outage.
        """
        for labels in plan.counted:
            self._metrics.descriptor(*labels)
        statuses = list(plan.statuses)
        part = plan.alone
        if part is not None:  # nearly every request; inlined, as function calls cost here
            attempt = part.attempt
            decision = await self._limiter.decide(attempt.policy, attempt.subject, attempt.cost)
            over = not decision.allowed
            statuses[part.place] = _status(part.rule, decision.limits[0], over=over)
            self._metrics.descriptor(plan.domain, part.metric, "over_limit" if over else "ok")
            return over, statuses
        over = await self._together(plan.parts, statuses)
        self._count(plan, statuses)
        return over, statuses

    async def _together(self, parts: Sequence[Part], statuses: list[Status]) -> bool:
        """Decide the parts in their order; whether they are over."""
        refusing: list[Part] = []
        quota: list[Part] = []
        shadow: list[Part] = []
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

    async def _each(self, parts: list[Part], statuses: list[Status], *, refused: bool) -> list[tuple[Attempt, int]]:
        """Decide each by itself, or look at it where the request is refused; what was consumed."""
        hits: list[tuple[Attempt, int]] = []
        for part in parts:
            if refused:
                await self._look(part, statuses)
            elif (hit := await self._alone(part, statuses)) is not None:
                hits.append((part.attempt, hit))
        return hits

    async def _joint(self, parts: list[Part], statuses: list[Status], *, refused: bool) -> list[tuple[Attempt, int]]:
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

    async def _alone(self, part: Part, statuses: list[Status]) -> int | None:
        """Decide one by itself; the hit."""
        attempt = part.attempt
        decision = await self._limiter.decide(attempt.policy, attempt.subject, attempt.cost)
        statuses[part.place] = _status(part.rule, decision.limits[0], over=not decision.allowed)
        return decision.hit

    async def _look(self, part: Part, statuses: list[Status]) -> None:
        """Would it be allowed? Consumes nothing. With the addend 0: is no more counted than the limit has?"""
        attempt = part.attempt
        decision = await self._limiter.peek(attempt.policy, attempt.subject, 0)
        status = _status(part.rule, decision.limits[0], over=not decision.allowed)
        status.over = status.over or status.remaining < attempt.cost
        statuses[part.place] = status

    async def _debit(self, part: Part, statuses: list[Status]) -> None:
        """Count it, whatever the limit says; over where more is counted now than the limit has."""
        attempt = part.attempt
        await self._limiter.charge(attempt.policy, attempt.subject, attempt.cost)
        decision = await self._limiter.peek(attempt.policy, attempt.subject, 0)
        statuses[part.place] = _status(part.rule, decision.limits[0], over=not decision.allowed)

    def _count(self, plan: Plan, statuses: list[Status]) -> None:
        for part in plan.parts:
            status = statuses[part.place]
            outcome = "over_limit" if status.over else "ok"
            if status.over and part.rule.shadow:
                outcome, status.over = "shadow", False
            self._metrics.descriptor(plan.domain, part.metric, outcome)


def _any_over(parts: list[Part], statuses: list[Status]) -> bool:
    return any(statuses[part.place].over for part in parts)


def _to_decide(parts: list[Part]) -> list[Part]:
    """Without those that are only looked at, or always counted."""
    return [part for part in parts if part.attempt.cost and not part.own]


def _merged(parts: list[Part]) -> tuple[list[Attempt], list[int]]:
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
    return Status(rule, over, limit.remaining, frees_us)
