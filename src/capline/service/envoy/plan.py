"""What a request leads to before anything is decided: the limits of its descriptors, and what each is counted under.

The rule: a plan follows from the request and the configuration alone, so the same request has the same plan until the
configuration changes, and a plan may be kept.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from capline.model.attempt import Attempt, check_cost
from capline.model.errors import InvalidValueError
from capline.model.subject import LONGEST_TEXT_BYTES
from capline.service.envoy.rules import UNITS_US, Match, Rule, policy_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.service.envoy.rules import Configuration

__all__ = ["LARGEST_REMAINING", "Ask", "Part", "Plan", "Status", "plan_of", "subject_of"]

MOST_DESCRIPTORS = 64
MOST_ENTRIES = 64

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


class Part(msgspec.Struct, frozen=True):
    """A descriptor to be decided, at its place in the request."""

    place: int
    rule: Rule
    metric: str
    attempt: Attempt
    own: bool

    @property
    def is_plain(self) -> bool:
        """Whether it refuses by itself, and is not a debit or a look."""
        return not (self.own or self.rule.shadow or self.rule.quota_mode)


class Plan(msgspec.Struct, frozen=True):
    """A request: its parts to be decided, the statuses of all others, and what of those is counted.

    `statuses` has a place for each descriptor; those of the parts are still empty. None of them is to be changed.
    `counted` is domain, rule and outcome. `alone` is the only part, where it is plain.
    """

    domain: str
    parts: tuple[Part, ...]
    statuses: tuple[Status, ...]
    counted: tuple[tuple[str, str, str], ...]
    alone: Part | None


def plan_of(configuration: Configuration, domain: str, asks: Sequence[Ask]) -> Plan:
    """The plan of a request; raises `InvalidValueError` for one that can have no answer."""
    _check(domain, asks)
    known = domain in configuration.domains
    matches = [_match(configuration, domain, ask) if known else None for ask in asks]
    replaced = {name for match in matches if match is not None for name in match.rule.replaces}
    parts: list[Part] = []
    statuses: list[Status] = []
    counted: list[tuple[str, str, str]] = []
    for place, (ask, match) in enumerate(zip(asks, matches, strict=True)):
        status = Status()
        if match is None:
            counted.append((domain, "", "no_limit") if known else ("", "", "no_domain"))
        elif match.rule.unlimited:
            status = Status(match.rule, remaining=LARGEST_REMAINING)
            counted.append((domain, match.metric, "unlimited"))
        elif match.rule.name in replaced:
            counted.append((domain, match.metric, "replaced"))
        else:
            policy = policy_name(match.rule.quota, match.rule.unit)
            attempt = Attempt(policy, subject_of(domain, match.entries), check_cost(ask.cost, 0))
            parts.append(Part(place, match.rule, match.metric, attempt, ask.own))
        statuses.append(status)
    alone = parts[0] if len(parts) == 1 and parts[0].is_plain else None
    return Plan(domain, tuple(parts), tuple(statuses), tuple(counted), alone)


def _match(configuration: Configuration, domain: str, ask: Ask) -> Match | None:
    if ask.limit is None:
        return configuration.match(domain, ask.entries)
    quota, unit = ask.limit
    if unit not in UNITS_US:
        raise InvalidValueError("the request's own limit has no unit; give it one, like MINUTE")
    names = [f"{key}_{value}" if value else key for key, value in ask.entries]
    return Match(Rule(quota, unit), ask.entries, ".".join([domain, *names]))


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
