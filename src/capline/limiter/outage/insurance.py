"""Limits kept in this process for as long as the store cannot answer: each quota divided by the number of hosts.

The rule: all hosts together never admit more than a quota in any window of the outage. So a quota is rounded down. What
does not fit a share at all, as each attempt where the quota is below the number of hosts, is refused by the outage and
by no limit: for a second, and not for ever. What the store admitted before the outage is not known here, nor is what is
admitted here known to the store afterwards: a window across its beginning or its end may hold up to twice the quota.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from capline.limiter.arguments.checks import fingerprint
from capline.limiter.policies.rules import Rules
from capline.limiter.policies.unnamed import UnnamedPolicies
from capline.model.clock import SystemClock
from capline.model.errors import InvalidTypeError, InvalidValueError, quoted
from capline.store.columns import NEVER_US, NO_HIT
from capline.store.protocol import Batch, Operation, kept_rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capline.config.configuration import Configuration
    from capline.limiter.arguments.columns import AttemptColumns
    from capline.limiter.policies.overrides import Overridden
    from capline.limiter.policies.rules import Names
    from capline.model.attempt import Attempt
    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.limit import Limit
    from capline.model.policy import Policy
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.local.transaction import LocalRule
    from capline.store.protocol import Kind, Mode

ASK_AGAIN_US = 1_000_000
"""`retry_after` of a refusal by an outage: nobody knows when the store answers again, and None would mean never."""
MOST_HOSTS = 1_000_000
EXACT = 1 << 53
_Answer = TypeVar("_Answer", "Decision", "Joint")
_PRIMES = (2, 3, 5, 7)
"""The prime factors of usual windows."""


class Insurance(msgspec.Struct, frozen=True):
    """For `on_store_error`: while the store cannot answer, limits kept in this process, of quota divided by `hosts`.

    `hosts` (1 to a million) is how many limiters, in all processes on all hosts, may stand in for the store at once.
    Each quota is divided by it and rounded down: together they never admit more than the quota in any window of the
    outage. What fits no share, as each attempt where the quota is below the number of hosts, is refused as
    by `"deny"`: with origin `fallback`, no limit, and a `retry_after` of 1 s.
    """

    hosts: int = 8

    def __post_init__(self) -> None:
        if type(self.hosts) is not int:
            raise InvalidTypeError(f"Insurance takes a whole number of hosts, not {quoted(self.hosts)}")
        if not 1 <= self.hosts <= MOST_HOSTS:
            raise InvalidValueError(f"Insurance takes 1 to {MOST_HOSTS} hosts, not {quoted(self.hosts)}")


class Insurer:
    """The policies, and the limits of single subjects, with smaller quotas, over a store in memory.

    Its answers name no hit: a refund goes to the store, which has none of these. It ignores receipts, so a repeated
    batch consumes again, which errs towards refusing; an attempt with an id counts once.
    """

    def __init__(self, insurance: Insurance, rules: Rules, clock: Clock | None, beside: Insurer | None = None) -> None:
        from capline.store.local.memory import MemoryStore  # noqa: PLC0415 - loaded where somebody is insured

        self._hosts = insurance.hosts
        # One for all policies, also those that come with a call: an attempt may be over several.
        self._store = MemoryStore(clock or SystemClock()) if beside is None else beside._store  # noqa: SLF001
        self._rules, namespace = Rules((), rules.namespace), rules.namespace
        self._unnamed = UnnamedPolicies(lambda policy: Rules([_divided(policy, self._hosts)], namespace))
        self.use(rules)

    def use(self, rules: Rules, config: Configuration | None = None, names: Iterable[str] | None = None) -> None:
        """Take over other policies, and the overrides of a configuration; what was admitted stays counted."""
        names = (
            {**self._rules.policies, **self._rules.overrides, **rules.policies, **rules.overrides}
            if names is None
            else names
        )
        policies = {name: rules.policies.get(name) for name in names}
        divided = {name: policy and _divided(policy, self._hosts) for name, policy in policies.items()}
        self._rules = self._rules.having(divided, {name: rules.overrides.get(name) for name in names})
        self._rules_by_names: dict[Names, LocalRule] = {}
        self._overrides: Overridden | None = None
        if config is not None and rules.overrides:
            from capline.limiter.policies.overrides import Overridden  # noqa: PLC0415 - loaded where there are any

            self._overrides = Overridden(config, self._rules, self._store.compiled, self._shares)

    def single(self, kind: Kind, attempt: Attempt, **times: Any) -> Decision:
        """As a step of this kind; what is reserved here is an ordinary hit, as nobody can commit it."""
        if kind == "reserve":
            kind, times = "decide", {}
        answer: Decision = self._store.step(Operation(kind, *self._arguments(attempt), **times))
        return _insured(answer, hit=None)

    def many(self, mode: Mode, columns: AttemptColumns) -> Decisions:
        """As the store's columns."""
        columns = msgspec.structs.replace(columns, receipt=None, keeps=tuple(map(self._kept_share, columns.keeps)))
        kinds = [
            (columns.policy, segment, columns.channel, zone)
            for segment, zone in zip(columns.segments, columns.zones, strict=True)
        ]
        compiled = tuple(
            kept_rule(self._bound(names), keep_free, self._store.compiled)
            for names, keep_free in zip(kinds, columns.keeps, strict=True)
        )
        if self._overrides is None or columns.policy not in self._overrides.policies:
            batch = Batch(compiled, columns.subjects, columns.codes, columns.cost)
        else:
            batch = self._overrides.batch(columns, compiled, [self._rules.known(*names) for names in kinds])
        answers: Decisions = self._store.columns(batch, mode)
        answers.hit[:] = NO_HIT
        never = ~answers.allowed & (answers.retry_after_us == NEVER_US)
        answers.limit_index[never], answers.remaining[never] = -1, 0
        answers.retry_after_us[never], answers.reset_after_us[never] = ASK_AGAIN_US, NEVER_US
        answers.origin = "insurance"
        return answers

    def joint(self, kind: Kind, attempts: Sequence[Attempt], **times: Any) -> Joint:
        """As the store's joint step of this kind."""
        operations = [Operation(kind, *self._arguments(attempt), **times) for attempt in attempts]
        answer = self._store.joint(operations)
        return _insured(answer, hits=())

    def forget(self, subject: Subject) -> None:
        """As the store's `erase`, in every policy."""
        every = [self._rules.any_names(name) for name in self._rules.policies]
        self._store.erase([*map(self._bound, every), *(self._compiled(names, subject) for names in every)], subject)

    def sweep(self) -> None:
        """As the store's `sweep`."""
        self._store.sweep(())

    def _arguments(self, attempt: Attempt) -> tuple[LocalRule, Subject, int, int]:
        names = attempt.names
        if attempt.limits is not None:
            rules = self._unnamed.get(attempt.policy, attempt.limits)
            compiled = self._store.compiled(rules.rule(*rules.known(*names)))
        else:
            compiled = self._compiled(names, attempt.subject)
        compiled = kept_rule(compiled, self._kept_share(attempt.keep_free), self._store.compiled)
        return compiled, attempt.subject, attempt.cost, fingerprint(attempt.id)

    def _kept_share(self, keep_free: int | Sequence[int]) -> int | tuple[int, ...]:
        """The share of what must stay free, rounded up: all hosts together keep as much."""
        if isinstance(keep_free, int):
            return -(-keep_free // self._hosts)
        return tuple([-(-units // self._hosts) for units in keep_free])

    def _compiled(self, names: Names, subject: Subject) -> LocalRule:
        """The rule of the subject's override, or else the policy's."""
        own: Any = self._overrides and self._overrides.compiled(self._rules.known(*names), subject)
        return own or self._bound(names)

    def _shares(self, policy: str, limits: Sequence[Limit]) -> Sequence[Limit]:
        return _shares_of(self._rules.policy(policy), limits, self._hosts)

    def _bound(self, names: Names) -> LocalRule:
        known, names = self._rules_by_names, self._rules.known(*names)
        return known.get(names) or known.setdefault(names, self._store.compiled(self._rules.rule(*names)))


def _shares_of(policy: Policy, limits: Iterable[Limit], hosts: int) -> tuple[Limit, ...]:
    of = _round_share if policy.algorithm == "gcra" else _share
    return tuple(msgspec.structs.replace(limit, quota=of(limit, hosts)) for limit in limits)


def _divided(policy: Policy, hosts: int) -> Policy:
    """The policy with a share of each quota; layout and replicas mean nothing in memory."""

    def share(limits: Iterable[Limit]) -> tuple[Limit, ...]:
        return _shares_of(policy, limits, hosts)

    return policy.having(
        limits=share(policy.limits),
        by_segment={name: share(limits) for name, limits in policy.by_segment.items()},
        channels={name: share(limits) for name, limits in policy.channels.items()},
        layout="subject",
        wait_replicas=0,
    )


def _share(limit: Limit, hosts: int) -> int:
    return limit.quota // hosts


def _round_share(limit: Limit, hosts: int) -> int:
    """A share that gcra can keep exactly, rounded down to a multiple of a step.

    gcd(quota, window) is such a step; so is each divisor of it for which share * window / step stays below 2^53.
    """
    share, step = limit.quota // hosts, gcd(limit.quota, limit.window_us)
    for prime in _PRIMES:
        while step % prime == 0 and share * limit.window_us // (step // prime) < EXACT:
            step //= prime
    return share - share % step


def _insured(answer: _Answer, **no_hits: Any) -> _Answer:
    """Without hits. What never fits a share is refused as by an outage: it may fit the quota, which is the store's."""
    if answer.allowed or answer.retry_after_us is not None:
        return msgspec.structs.replace(answer, **no_hits, origin="insurance")
    return msgspec.structs.replace(
        answer, limit=None, remaining=0, retry_after_us=ASK_AGAIN_US, reset_after_us=None, origin="fallback", _seen=()
    )
