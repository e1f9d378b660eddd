"""From policies to rules: which logs an attempt reads, and how long each log keeps its hits.

A log is named `namespace:log`, a channel's `namespace:log/channel`. Its hits are kept for the widest window that any
policy, in any segment or channel, has on it: then a changed limit, or a subject that changes segment, finds a true
history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy

from msgspec import Struct
from msgspec.structs import replace

from capline.config.records import Totals
from capline.limiter.policies.layered import InOrder, Layered
from capline.model.errors import InvalidTypeError, InvalidValueError, PolicyError, UnknownNameError, listed, quoted
from capline.model.limit import Limit, QuietHours
from capline.model.policy import NUMBERS, RESERVED, BoundPolicy, LogLimits, Policy, check_name
from capline.model.zone import check_zone
from capline.policy.joint import JointPolicy
from capline.policy.shared_log import check_shared_log

DEFAULT_NAMESPACE = "capline"

PAST_CHANNELS = 256
"""So many channels of a log are remembered, in force or not: who renames them without end fills no memory."""

_NO_OVERRIDES = Totals()

Names = tuple[str, str | None, str | None, str | None]
"""A policy, a segment, a channel and a time zone, as an attempt names them."""


class _LogFacts(Struct, frozen=True, gc=False):
    """Of one log: how long it keeps hits, its largest quota, the replicas to wait for, and the logs beside it."""

    retention_us: int
    largest: int
    replicas: int
    channel_logs: tuple[str, ...]
    meters: tuple[str, ...]


class Rules:
    """An immutable set of policies, and the rule of each for every segment and channel.

    `overrides` has by policy the widest window and largest quota of its overrides: its logs are kept for those too.
    `before` are the rules that these take the place of: a channel that is gone may still hold what is to be erased.
    `having` makes others from these, which costs by what changes.
    """

    def __init__(
        self,
        policies: Iterable[Policy],
        namespace: str = DEFAULT_NAMESPACE,
        overrides: Mapping[str, Totals] | None = None,
        before: Rules | None = None,
    ) -> None:
        self.overrides: Mapping[str, Totals] = overrides or {}
        self.namespace = check_name(namespace, "namespace")
        policies_by_name: dict[str, Policy] = {}
        sharing: dict[str, list[Policy]] = {}
        self._facts: dict[str, _LogFacts] = {}
        self._past_channels: dict[str, dict[str, None]] = {}
        """Of each log the channels it had, as far as this process knows; the newest last."""
        self._past_numbers: dict[str, Policy] = {}
        """Of each log the last policy that kept numbers there, as far as this process knows."""
        if isinstance(policies, (str, Mapping)) or not isinstance(policies, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidTypeError(
                f"policies come as a list, like policies=[Policy('promo', ['3/day'])], not {quoted(policies)}"  # pyright: ignore[reportUnknownArgumentType]
            )
        self._joint: dict[str, Policy] = {}
        for policy in policies:
            if isinstance(policy, JointPolicy):
                self._joint[policy.name] = policy
                continue
            if not isinstance(policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
                raise PolicyError(
                    f"policies are Policy objects, not {type(policy).__name__}; write Policy('promo', ['3/day'])"
                )
            if policy.name in policies_by_name:
                raise PolicyError(f"two policies are named {policy.name!r}; a name is one policy")
            policies_by_name[policy.name] = policy
            _share(sharing, policy)
        self.policies: Mapping[str, Policy] = policies_by_name
        self.in_order = InOrder(self.policies)
        self.in_shadow = _in_shadow(policies_by_name.values())
        self._sharing: Mapping[str, list[Policy]] = sharing
        if before is not None:
            self._past_channels.update(before._past_channels)  # noqa: SLF001 - of its kind
            self._past_numbers.update(before._past_numbers)  # noqa: SLF001 - the same
            self._remember(before.policies.values())
            for log in [log for log in (*self._past_channels, *self._past_numbers) if log not in sharing]:
                self._forget(log)

    def having(self, changes: Mapping[str, Policy | None], overrides: Mapping[str, Totals | None]) -> Rules:
        """These rules with other policies, and with other totals of overrides; None removes one."""
        rules = copy(self)
        rules._change(changes, overrides)  # noqa: SLF001 - of its kind
        return rules

    def _change(self, changes: Mapping[str, Policy | None], overrides: Mapping[str, Totals | None]) -> None:
        before, new = self.policies, [policy for policy in changes.values() if policy is not None]
        logs = self._logs_with((*changes, *overrides)) | {policy.log for policy in new}
        sharing = {log: [policy for policy in self._sharing.get(log, ()) if policy.name not in changes] for log in logs}
        for policy in new:
            _share(sharing, policy)
        self.policies = Layered(before, changes)
        self.in_order = InOrder(self.policies)
        self.in_shadow = (self.in_shadow - changes.keys()) | _in_shadow(new)
        self.overrides = Layered(self.overrides, overrides)
        self._sharing = Layered(self._sharing, {log: policies or None for log, policies in sharing.items()})
        self._facts, self._past_channels = {}, self._past_channels.copy()
        self._past_numbers = self._past_numbers.copy()
        self._remember(before[name] for name in changes if name in before)
        for log in [log for log in logs if not sharing[log]]:
            self._forget(log)

    def only(self, name: str) -> Rules:
        """The rules of this policy alone: it and those that share its log."""
        log = self.policy(name).log
        rules = Rules(self._sharing[log], self.namespace)
        rules._facts[log] = self._of_log(log)
        rules._past_numbers = self._past_numbers
        return rules

    def sharing(self, names: Iterable[str]) -> set[str]:
        """Those of these policies that there are, and those that share a log with one."""
        return {policy.name for log in self._logs_with(names) for policy in self._sharing[log]}

    def _logs_with(self, names: Iterable[str]) -> set[str]:
        return {self.policies[name].log for name in names if name in self.policies}

    def _remember(self, before: Iterable[Policy]) -> None:
        for policy in before:
            if policy.channels:
                named = {**self._past_channels.get(policy.log, {}), **dict.fromkeys(policy.channels)}
                self._past_channels[policy.log] = dict.fromkeys([*named][-PAST_CHANNELS:])
            if not policy.keeps_log:
                self._past_numbers[policy.log] = policy

    def _forget(self, log: str) -> None:
        self._past_channels.pop(log, None)
        self._past_numbers.pop(log, None)

    def _of_log(self, log: str) -> _LogFacts:
        """The facts of a log, from all policies on it; computed when first needed, as there may be many logs."""
        facts = self._facts.get(log)
        if facts is None:
            facts = self._facts[log] = self._put_together(log)
        return facts

    def _put_together(self, log: str) -> _LogFacts:
        retention_us = largest = replicas = 0
        channels = set(self._past_channels.get(log, ()))
        meters: list[str] = []
        for policy in self._sharing[log]:
            of_subjects = self.overrides.get(policy.name, _NO_OVERRIDES)
            widest_us = max(of_subjects.widest_us, *(limit.reach_us for limit in policy.all_limits()))
            # A sliding counter counts the window before as well.
            retention_us = max(retention_us, 2 * widest_us if policy.algorithm == "sliding_counter" else widest_us)
            largest = max(largest, of_subjects.largest, *(limit.quota for limit in policy.all_limits()))
            replicas = max(replicas, policy.wait_replicas)
            channels.update(policy.channels)
            if not policy.keeps_log:
                meters += [part.log for part in _apart(f"{self.namespace}:{log}", policy, 0)[1:]]
        named = tuple(f"{self.namespace}:{log}/{channel}" for channel in sorted(channels))
        return _LogFacts(retention_us, largest, replicas, named, tuple(meters))

    def policy(self, name: str) -> Policy:
        """The policy of this name; raises `UnknownNameError` that lists those there are."""
        try:
            return self.policies[name]
        except (KeyError, TypeError):
            if isinstance(name, str) and name in self._joint:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
                return self._joint[name]
            known = listed(self.in_order.names)
            raise UnknownNameError(f"no policy {quoted(name)}; there are: {known}") from None

    def on_logs(self, names: Collection[str] | None) -> list[Policy]:
        """The policies on these logs, by their full names or those of logs beside them; None: every policy."""
        if names is None:
            return [*self.policies.values()]
        space = f"{self.namespace}:"
        logs = {name.removeprefix(space).partition("/")[0] for name in names if name.startswith(space)}
        return [policy for log in logs for policy in self._sharing.get(log, ())]

    def check_reserves(self, name: str) -> None:
        """Raise `InvalidValueError` for a policy that has no reservations."""
        if not self.policy(name).reservations:
            raise InvalidValueError(f"policy {quoted(name)} has no reservations; give it reservations=True")

    def can_move(self, name: str) -> bool:
        """Whether slots of the policy can be moved."""
        return self.policy(name).keeps_hits

    def known(self, name: str, segment: str | None, channel: str | None, zone: str | None = None) -> Names:
        """These names without those that make no difference to the policy, so that their number is bounded."""
        policy = self.policy(name)
        if zone is not None and check_zone(zone) and not policy.needs_zone and name not in self.overrides:
            zone = None
        return name, segment if policy.by_segment else None, channel, zone

    def any_names(self, name: str) -> Names:
        """Names that select one rule of the policy; every rule of it names all its logs."""
        policy = self.policy(name)
        return name, None, None if policy.limits else next(iter(policy.channels)), None

    def rule(
        self,
        name: str,
        segment: str | None,
        channel: str | None,
        zone: str | None = None,
        limits: Sequence[Limit] | None = None,
        granularity: str | None = None,
    ) -> BoundPolicy:
        """The policy as it binds an attempt; raises `UnknownNameError` for a name that nobody defined.

        `limits` take the place of the policy's own, and of its segments'; `PolicyError` for some that it cannot have.
        So does `granularity`, where the policy has one.
        """
        policy = self.policy(name)
        if limits is not None:
            policy.limits_for(segment)
            own = {"granularity": granularity} if granularity and policy.grain_us else {}
            policy, segment = policy.having(limits=limits, by_segment={}, **own), None
        if isinstance(policy, JointPolicy):
            return self._joint_rule(policy, segment, channel, zone)
        facts = self._of_log(policy.log)
        log, retention_us = f"{self.namespace}:{policy.log}", facts.retention_us
        former: list[LogLimits] = []
        if not policy.keeps_log:
            policy.limits_for(segment)
            logs = _apart(log, policy, retention_us, shared=len(self._sharing[policy.log]) > 1)
            if channel is not None:
                policy.limits_on(channel)
        else:
            grain_us = policy.grain_us
            logs = tuple(
                LogLimits(
                    f"{self.namespace}:{own}", limits, retention_us, "sums" if grain_us else "hits", grain_us, title
                )
                for own, title, limits in policy.logs_for(segment, channel)
            )
            former = self._former(policy.log, logs[0], () if limits is None else logs[0].limits)
        needs_zone = any(limit.needs_zone for log_limits in logs for limit in log_limits.limits)
        return BoundPolicy(
            name,
            logs,
            facts.channel_logs,
            policy.layout,
            policy.wait_replicas,
            policy.population,
            policy.algorithm,
            (zone or policy.zone) if needs_zone else "",
            2 * facts.largest if policy.count_denied else 0,
            f"{log}/{RESERVED}" if policy.reservations else "",
            "" if policy.keeps_log and len(self._sharing[policy.log]) > 1 else f"{log}/{NUMBERS}",
            tuple(former),
        )

    def _former(self, log: str, own: LogLimits, overridden: Sequence[Limit] = ()) -> list[LogLimits]:
        """Where the numbers are that this log's policy kept before it kept hits: an override's own first."""
        before = self._past_numbers.get(log)
        if before is None or len(self._sharing[log]) > 1:
            return []
        kept = {_number_log(own.log, limit): limit for limit in (*overridden, *before.limits) if type(limit) is Limit}
        return [replace(own, log=name, limits=(limit,), keeps=before.algorithm) for name, limit in kept.items()]

    def _joint_rule(
        self, policy: JointPolicy, segment: str | None, channel: str | None, zone: str | None
    ) -> BoundPolicy:
        """All their logs keep hits as long as the widest window of any: no hit is too old for one of them."""
        facts = [self._of_log(member.log) for member in policy.members]
        retention_us = max(of_log.retention_us for of_log in facts)
        part_of = {member.log: part for part, member in enumerate(policy.members)}
        logs = tuple(
            LogLimits(f"{self.namespace}:{log}", limits, retention_us, title=title, part=part_of[log.partition("/")[0]])
            for log, title, limits in policy.logs_for(segment, channel)
        )
        others = [f"{self.namespace}:{member.log}" for member in policy.members[1:]]
        needs_zone = any(limit.needs_zone for log_limits in logs for limit in log_limits.limits)
        return BoundPolicy(
            policy.name,
            logs,
            (*others, *(name for of_log in facts for name in of_log.channel_logs)),
            policy.layout,
            policy.wait_replicas,
            policy.population,
            zone=(zone or policy.zone) if needs_zone else "",
            former=tuple(
                former
                for own in logs
                if (log := own.log.removeprefix(f"{self.namespace}:")) in part_of
                for former in self._former(log, own)
            ),
        )

    def log_rule(self, log: str) -> BoundPolicy:
        """A rule without limits over one log alone, by its name without the namespace."""
        full = f"{self.namespace}:{log}"
        own = log.partition("/")[0]
        policy = self._sharing[own][0] if own in self._sharing else None
        if policy is None or (log != own and full not in self._logs_of(own)):
            known = listed(name.partition(":")[2] for name in self.logs())
            raise UnknownNameError(f"no policy has a log {quoted(log)}; there are: {known}")
        if policy.algorithm != "sliding_log":
            raise PolicyError(
                f"log {log!r} is of algorithm {policy.algorithm!r}, which does not keep every hit; "
                "only a log of sliding_log can be exported or loaded"
            )
        log_limits = LogLimits(full, (), self._of_log(own).retention_us)
        replicas = self._of_log(own).replicas
        return BoundPolicy(policy.name, (log_limits,), (), policy.layout, replicas, policy.population)

    def retention_us(self, log: str) -> int:
        """How long a log, by its full name, keeps its hits."""
        return self._of_log(log.removeprefix(f"{self.namespace}:").split("/")[0]).retention_us

    def logs(self) -> list[str]:
        """The name of every log that any policy writes."""
        return [name for log in self._sharing for name in self._logs_of(log)]

    def _logs_of(self, log: str) -> list[str]:
        """The full names of a log, of the logs of its single limits and of its channels'."""
        return [f"{self.namespace}:{log}", *self._of_log(log).meters, *self._of_log(log).channel_logs]


def _in_shadow(policies: Iterable[Policy]) -> frozenset[str]:
    return frozenset(policy.name for policy in policies if policy.shadow)


def _share(sharing: dict[str, list[Policy]], policy: Policy) -> None:
    policies = sharing.setdefault(policy.log, [])
    policies.append(policy)
    check_shared_log(policy, policies[0])


def _number_log(log: str, limit: Limit) -> str:
    return f"{log}/{limit.quota}.{limit.window_us}us"


def _apart(log: str, policy: Policy, retention_us: int, *, shared: bool = False) -> tuple[LogLimits, ...]:
    """The logs of an algorithm that keeps numbers: one for each limit, after one for the hits that have an id."""
    numbered = [*enumerate(policy.limits)]
    quiet = [(position, limit) for position, limit in numbered if isinstance(limit, QuietHours)]
    own = LogLimits(
        log,
        tuple(limit for _, limit in quiet),
        retention_us,
        "ids",
        title=policy.name,
        places=tuple(position for position, _ in quiet),
        shared=shared,
    )
    return own, *(
        LogLimits(_number_log(log, limit), (limit,), retention_us, "sums", limit.window_us, policy.name, (position,))
        for position, limit in numbered
        if not isinstance(limit, QuietHours)
    )
