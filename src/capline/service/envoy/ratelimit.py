"""Decides one request of Envoy: which limits its descriptors have, and whether all of them have room.

The rule: a request that is refused consumes nothing, also where global shadow mode lets it through: what is counted
then is what will be once the mode is off. The descriptors that refuse by themselves are one joint attempt,
all or nothing. After it come those in quota mode, which refuse only if all of them are over, and those in shadow mode,
which never do. Once a request is refused, the rest is only looked at.

A descriptor that brings its own addend above 0 is a debit: it counts whatever the limit says, as upstream counts. One
with its own addend 0 is only looked at.
"""

from collections.abc import Sequence
from functools import lru_cache

from capline.limiter.aio import AsyncLimiter
from capline.model.attempt import Attempt
from capline.model.limit_status import LimitStatus
from capline.service.envoy.metrics import EnvoyMetrics
from capline.service.envoy.plan import MOST_DESCRIPTORS, Descriptor, Part, Plan, Status, plan_of
from capline.service.envoy.rules import UNITS_US, Configuration, Rule, policies_of, policy_name
from capline.service.settings.values import USUAL_MODES, Modes

MOST_OVERRIDES = 1000
"""Sets of limits that requests brought along for which a limiter is kept; the least recently used goes first."""

REQUESTS = "envoy.request"
"""The policy under which the decisions of all such limits are counted."""

_Limit = tuple[int, str]


class RateLimit:
    """Decides by a configuration, on the store of a limiter; `use` replaces the configuration at once.

    `changes` goes up whenever plans that were made before are no longer valid.
    """

    def __init__(
        self, limiter: AsyncLimiter, configuration: Configuration, metrics: EnvoyMetrics, modes: Modes = USUAL_MODES
    ) -> None:
        self._limiter = limiter.beside((), most_joint=MOST_DESCRIPTORS)
        self._metrics = metrics
        self._limits: list[_Limit] = []
        self.modes = modes
        self.changes = 0

        titled = limiter.beside((), title=REQUESTS)

        @lru_cache(MOST_OVERRIDES)
        def brought(limits: tuple[_Limit, ...]) -> AsyncLimiter:
            return titled.beside(policies_of(limits), most_joint=MOST_DESCRIPTORS)

        self._brought = brought
        self.use(configuration)

    def use(self, configuration: Configuration) -> None:
        """Decide by this one from now on; what was counted stays, and requests under way end by the one before."""
        self._configuration = configuration
        before, self._limits = self._limits, [(rule.quota, rule.unit) for rule in configuration.rules if rule.unit]
        self._limiter.use(policies_of([*self._limits, *before]))
        self.changes += 1

    def plan(self, domain: str, descriptors: Sequence[Descriptor]) -> Plan:
        """What a request leads to; raises `InvalidValueError` for one that can have no answer."""
        return plan_of(self._configuration, domain, descriptors, self.modes)

    async def decide(self, plan: Plan) -> tuple[bool, Sequence[Status]]:
        """Whether the request is over its limits, and the status of each descriptor, in order.

        Raises `StoreError` in an outage.
        """
        for labels in plan.counted:
            self._metrics.descriptor(*labels)
        statuses = list(plan.statuses)
        # Limits of requests have a limiter of their own: taking them into that of the files would compile all anew.
        limiter = self._brought(plan.brought) if plan.brought else self._limiter
        part = plan.alone
        if part is not None:  # nearly every request; inlined, as function calls cost here
            attempt = part.attempt
            decision = await limiter.decide(attempt.policy, attempt.subject, attempt.cost)
            over = not decision.allowed
            statuses[part.place] = status = _status(part.rule, decision.limits[0], over=over)
            outcome = "ok" if not over else "shadow" if self.modes.shadow_mode else "over_limit"
            self._metrics.descriptor(plan.domain, part.metric, outcome)
            if not over and part.rule.quota - status.remaining > part.near_above:
                self._near(plan.domain, part, status)
        else:
            over = await _Deciding(limiter, statuses).together(plan.parts)
            self._count(plan, statuses, over=over)
        return over and not self.modes.shadow_mode, statuses

    def _count(self, plan: Plan, statuses: list[Status], *, over: bool) -> None:
        for part in plan.parts:
            status = statuses[part.place]
            if not status.over:
                self._metrics.descriptor(plan.domain, part.metric, "ok")
                if part.attempt.cost and (part.own or not over):  # else it was only looked at
                    self._near(plan.domain, part, status)
                continue
            lets_through = part.rule.shadow or self.modes.shadow_mode
            self._metrics.descriptor(plan.domain, part.metric, "shadow" if lets_through else "over_limit")
            status.over = not part.rule.shadow

    def _near(self, domain: str, part: Part, status: Status) -> None:
        """Count the hits of this request that stand above the share of the limit that is near it."""
        above = part.rule.quota - status.remaining - part.near_above
        if above > 0:
            self._metrics.near_limit(domain, part.metric, min(above, part.attempt.cost))


class _Deciding:
    """One request of several parts under way; what becomes of each is put in its place of `statuses`."""

    def __init__(self, limiter: AsyncLimiter, statuses: list[Status]) -> None:
        self._limiter = limiter
        self._statuses = statuses

    async def together(self, parts: Sequence[Part]) -> bool:
        """Decide the parts in their order; whether they are over."""
        statuses = self._statuses
        refusing: list[Part] = []
        quota: list[Part] = []
        shadow: list[Part] = []
        for part in parts:
            (shadow if part.rule.shadow else quota if part.quota_mode else refusing).append(part)
        for part in parts:
            if not part.attempt.cost:
                await self._look(part)
            elif part.own:
                await self._debit(part)
        over = _any_over(refusing, statuses)
        hits = await self._joint(_to_decide(refusing), refused=over)
        over = _any_over(refusing, statuses)
        await self._each(_to_decide(quota), refused=over)
        if quota and not over and all(statuses[part.place].over for part in quota):
            over = True
            for attempt, hit in hits:
                await self._limiter.refund(attempt.policy, attempt.subject, hit, attempt.cost)
        await self._each(_to_decide(shadow), refused=over)
        return over

    async def _each(self, parts: list[Part], *, refused: bool) -> list[tuple[Attempt, int]]:
        """Decide each by itself, or look at it where the request is refused; what was consumed."""
        hits: list[tuple[Attempt, int]] = []
        for part in parts:
            if refused:
                await self._look(part)
            elif (hit := await self._alone(part)) is not None:
                hits.append((part.attempt, hit))
        return hits

    async def _joint(self, parts: list[Part], *, refused: bool) -> Sequence[tuple[Attempt, int | None]]:
        """Consume of all or of none; what was consumed."""
        if refused or len(parts) <= 1:
            return await self._each(parts, refused=refused)
        statuses = self._statuses
        attempts, numbers = _merged(parts)
        joint = await self._limiter.decide_all(attempts)
        for part, number in zip(parts, numbers, strict=True):
            limits, cost = joint.limits[number], attempts[number].cost
            if not limits:  # a cluster's slots decide in turn, and this one was not asked
                await self._look(part)
                continue
            statuses[part.place] = _status(part.rule, limits[0], over=not joint.allowed and limits[0].remaining < cost)
        if not joint.allowed and not any(statuses[part.place].over for part in parts):
            statuses[parts[numbers.index(joint.binds)].place].over = True  # the others took room in the meantime
        return list(zip(attempts, joint.hits, strict=True)) if joint.allowed else []

    async def _alone(self, part: Part) -> int | None:
        """Decide one by itself; the hit."""
        attempt = part.attempt
        decision = await self._limiter.decide(attempt.policy, attempt.subject, attempt.cost)
        self._statuses[part.place] = _status(part.rule, decision.limits[0], over=not decision.allowed)
        return decision.hit

    async def _look(self, part: Part) -> None:
        """Would it be allowed? Consumes nothing. With the addend 0: is no more counted than the limit has?"""
        attempt = part.attempt
        decision = await self._limiter.peek(attempt.policy, attempt.subject, 0)
        status = _status(part.rule, decision.limits[0], over=not decision.allowed)
        status.over = status.over or status.remaining < attempt.cost
        self._statuses[part.place] = status

    async def _debit(self, part: Part) -> None:
        """Count it, whatever the limit says; over where more is counted now than the limit has."""
        attempt = part.attempt
        await self._limiter.charge(attempt.policy, attempt.subject, attempt.cost)
        decision = await self._limiter.peek(attempt.policy, attempt.subject, 0)
        self._statuses[part.place] = _status(part.rule, decision.limits[0], over=not decision.allowed)


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
