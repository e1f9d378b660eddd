"""Several policies that must all allow an attempt on one subject, as one: every limit holds, each over its own log.

An attempt is recorded in all the logs at one stamp, or in none. Its limits say whose they are: `global: 3/day`. A
segment, and a channel, bind those of the policies that list them. Refused are policies whose logs one step over plain
hits cannot read together.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from capline.model.errors import PolicyError, UnknownNameError, listed
from capline.model.limit import OWNED, Limit
from capline.model.policy import Policy

MARK = "+"
"""Between the names of the policies; no policy has it in its own."""
MOST_POLICIES = 16
MOST_IN_ALL = 64
"""Limits of one attempt."""


class JointPolicy(Policy):
    """These policies as one; `PolicyError` where they cannot be. Give a limiter their members too, under any names."""

    __slots__ = ("members",)

    members: tuple[Policy, ...]

    def __init__(self, members: Sequence[Policy], name: str | None = None) -> None:
        _check(members)
        first = members[0]
        plain = [policy for policy in members if policy.limits]
        bound = [policy for policy in members if not policy.limits]
        channels = dict.fromkeys(channel for policy in members for channel in policy.channels)
        usable = [channel for channel in channels if all(channel in policy.channels for policy in bound)]
        zones = [policy.zone for policy in members if policy.needs_zone]
        values: dict[str, Any] = {
            "members": tuple(members),
            "name": name or MARK.join(policy.name for policy in members),
            "log": MARK.join(policy.log for policy in members),
            # What limits channels alone has no limits without one.
            "limits": () if bound else tuple(_all_owned(plain, None)),
            "algorithm": first.algorithm,
            "count_denied": False,
            "layout": first.layout,
            "wait_replicas": max(policy.wait_replicas for policy in members),
            "population": first.population,
            "zone": zones[0] if zones else first.zone,
            "reservations": False,
            "shadow": False,
            "grain_us": 0,
        }
        segments = dict.fromkeys(segment for policy in members for segment in policy.by_segment)
        values["by_segment"] = {segment: tuple(_all_owned(members, segment)) for segment in segments}
        values["channels"] = {
            channel: tuple(
                _owned(limit, f"{policy.name}/{channel}")
                for policy in members
                if channel in policy.channels
                for limit in policy.limits_on(channel)
            )
            for channel in usable
        }
        if bound and not usable:
            names = ", ".join(policy.name for policy in bound)
            raise PolicyError(f"policies {names} limit channels only, and no channel is in all of them; name fewer")
        for field, value in values.items():
            object.__setattr__(self, field, value)
        sets = [self.limits, *self.by_segment.values()]
        if max(map(len, sets)) + max(map(len, self.channels.values()), default=0) > MOST_IN_ALL:
            raise PolicyError(f"policies {self.name} have more than {MOST_IN_ALL} limits together; name fewer")

    @property
    def needs_zone(self) -> bool:
        """Whether any limit of any of them depends on the subject's local time."""
        return any(policy.needs_zone for policy in self.members)

    def logs_for(self, segment: str | None, channel: str | None) -> list[tuple[str, str, tuple[Limit, ...]]]:
        """Those of each policy, one policy after the other."""
        if channel is not None and channel not in self.channels:
            raise UnknownNameError(
                f"policies {self.name} have no channel {channel!r} together; they have: {listed([*self.channels])}"
            )
        return [
            (log, title, tuple([_owned(limit, title) for limit in limits]))
            for policy in self.members
            for log, title, limits in policy.logs_for(
                segment if segment in policy.by_segment else None, channel if channel in policy.channels else None
            )
        ]


def members_of(policy: Policy) -> tuple[Policy, ...]:
    """The policies that this one is made of: itself, where it is one."""
    return policy.members if isinstance(policy, JointPolicy) else (policy,)


def _check(members: Sequence[Policy]) -> None:
    names = ", ".join(policy.name for policy in members)
    first, logs = members[0], [policy.log for policy in members]
    if not 1 < len(members) <= MOST_POLICIES:
        raise PolicyError(f"several policies are 2 to {MOST_POLICIES}, not {len(members)}")
    for policy in members:
        if policy.algorithm != "sliding_log":
            raise PolicyError(f"policy {policy.name!r} is {policy.algorithm}; beside others all must be sliding_log")
        which = next((option for option in ("count_denied", "reservations", "shadow") if getattr(policy, option)), "")
        if which:
            raise PolicyError(f"policy {policy.name!r} has {which}, which it cannot have beside others; take it alone")
        if logs.count(policy.log) > 1:
            raise PolicyError(f"policies {names}: log {policy.log!r} would count a message twice; name one of them")
        if (policy.layout, policy.population) != (first.layout, first.population):
            raise PolicyError(f"policies {names} have several layouts or populations; give all the same")
    if len({policy.zone for policy in members if policy.needs_zone}) > 1:
        raise PolicyError(f"policies {names} have calendars or quiet hours in several zones; give all one 'zone:'")


def _all_owned(members: Sequence[Policy], segment: str | None) -> list[Limit]:
    return [
        _owned(limit, policy.name)
        for policy in members
        for limit in policy.limits_for(segment if segment in policy.by_segment else None)
    ]


@lru_cache(4096)
def _owned(limit: Limit, owner: str) -> Limit:
    return OWNED[type(limit)](*msgspec.structs.astuple(limit), owner)
