"""What a request leads to before anything is decided: the limits of its descriptors, and what each is counted under.

The rule: a plan follows from the request and the configuration alone, so the same request has the same plan until the
configuration changes, and a plan may be kept.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from capline.model.attempt import Attempt, check_cost
from capline.model.errors import InvalidValueError
from capline.model.subject import LONGEST_TEXT_BYTES
from capline.service.envoy.rules import UNITS_US, Configuration, Match, Rule, policy_name
from capline.service.settings.values import USUAL_MODES, Modes

MOST_DESCRIPTORS = 64
MOST_ENTRIES = 64

LARGEST_REMAINING = (1 << 32) - 1

REQUESTS = "(request)"
"""What metrics call every limit that a request brought along: clients choose its entries, so no label holds them."""

_ROUNDING = 1e-6
"""0.29 of 100 is 29, though a float of it is a little less."""

_SURELY_SHORT = LONGEST_TEXT_BYTES // 4
"""A text of at most so many characters has no more than `LONGEST_TEXT_BYTES` in UTF-8."""


class Descriptor(msgspec.Struct, frozen=True, gc=False):
    """One descriptor: its entries, its cost, whether the cost is its `own`, and the limit that it brings, if any."""

    entries: tuple[tuple[str, str], ...]
    cost: int = 1
    own: bool = False
    limit: tuple[int, str] | None = None


class Status(msgspec.Struct, gc=False):
    """What becomes of one descriptor; without a rule there is no limit, and `over` is never true."""

    rule: Rule | None = None
    over: bool = False
    remaining: int = 0
    reset_us: int = 0


_NO_LIMIT = Status()


class Part(msgspec.Struct, frozen=True, gc=False):
    """A descriptor to be decided, at its place in the request. Hits past `near_above` are near the limit."""

    place: int
    rule: Rule
    metric: str
    attempt: Attempt
    own: bool
    quota_mode: bool
    near_above: int

    @property
    def is_plain(self) -> bool:
        """Whether it refuses by itself, and is not a debit or a look."""
        return not (self.own or self.rule.shadow or self.quota_mode)


class Plan(msgspec.Struct, frozen=True, gc=False):
    """A request: its parts to be decided, the statuses of all others, and what of those is counted.

    `statuses` has a place for each descriptor; those of the parts are still empty. None of them is to be changed.
    `counted` is domain, rule and outcome. `alone` is the only part, where it is plain. `form` is what the response is
    made of before anything is decided: the rules and their places, and what is left of all others. `brought` are the
    limits of all parts where the request brought one of them along, else empty.
    """

    domain: str
    parts: tuple[Part, ...]
    statuses: tuple[Status, ...]
    counted: tuple[tuple[str, str, str], ...]
    alone: Part | None
    form: object
    brought: tuple[tuple[int, str], ...] = ()


def plan_of(
    configuration: Configuration, domain: str, descriptors: Sequence[Descriptor], modes: Modes = USUAL_MODES
) -> Plan:
    """The plan of a request; raises `InvalidValueError` for one that can have no answer."""
    _check(domain, descriptors)
    has_domain = domain in configuration.domains
    matches = [_match(configuration, domain, descriptor) if has_domain else None for descriptor in descriptors]
    replaced = {name for match in matches if match is not None for name in match.rule.replaces}
    parts: list[Part] = []
    statuses: list[Status] = []
    counted: list[tuple[str, str, str]] = []
    form: list[object] = []
    for place, (descriptor, match) in enumerate(zip(descriptors, matches, strict=True)):
        status = _NO_LIMIT
        if match is None:
            counted.append((domain, "", "no_limit") if has_domain else ("", "", "no_domain"))
            form.append(0)
        elif (rule := match.rule).unlimited:
            status = Status(rule, remaining=LARGEST_REMAINING)
            counted.append((domain, match.metric, "unlimited"))
            form.append(LARGEST_REMAINING)
        elif rule.name in replaced:
            counted.append((domain, match.metric, "replaced"))
            form.append(0)
        else:
            policy = policy_name(rule.quota, rule.unit)
            attempt = Attempt(policy, subject_of(domain, match.entries), check_cost(descriptor.cost, 0))
            quota_mode = rule.quota_mode or modes.quota_mode
            near_above = int(rule.quota * modes.near_limit_ratio + _ROUNDING)
            parts.append(Part(place, rule, match.metric, attempt, descriptor.own, quota_mode, near_above))
            form.append((rule.name, rule.quota, rule.unit))
        statuses.append(status)
    alone = parts[0] if len(parts) == 1 and parts[0].is_plain else None
    brought: tuple[tuple[int, str], ...] = ()
    if any(descriptors[part.place].limit is not None for part in parts):
        brought = tuple(sorted({(part.rule.quota, part.rule.unit) for part in parts}))
    return Plan(domain, tuple(parts), tuple(statuses), tuple(counted), alone, tuple(form), brought)


def _match(configuration: Configuration, domain: str, descriptor: Descriptor) -> Match | None:
    if descriptor.limit is None:
        return configuration.match(domain, descriptor.entries)
    quota, unit = descriptor.limit
    if unit not in UNITS_US:
        raise InvalidValueError("the request's own limit has no unit; give it one, like MINUTE")
    return Match(Rule(quota, unit), descriptor.entries, f"{domain}.{REQUESTS}")


def subject_of(domain: str, entries: Sequence[tuple[str, str]]) -> str:
    """The subject that a descriptor is counted under: `edge|path=/a|user=7`, where a backslash escapes `|` and `=`.

    Different descriptors are different subjects. Above 512 bytes it is a SHA-256, behind a `|` that no other begins
    with.
    """
    subject = _escaped(domain)
    for key, value in entries:
        subject += f"|{_escaped(key)}={_escaped(value)}"
    if len(subject) <= _SURELY_SHORT:
        return subject
    encoded = subject.encode()
    return subject if len(encoded) <= LONGEST_TEXT_BYTES else f"|sha256={hashlib.sha256(encoded).hexdigest()}"


def _escaped(text: str) -> str:
    if "|" not in text and "=" not in text and "\\" not in text:
        return text
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("=", "\\=")


def _check(domain: str, descriptors: Sequence[Descriptor]) -> None:
    if not domain:
        raise InvalidValueError("rate limit domain must not be empty")
    if not descriptors:
        raise InvalidValueError("rate limit descriptor list must not be empty")
    if len(descriptors) > MOST_DESCRIPTORS:
        raise InvalidValueError(f"{len(descriptors)} descriptors in one request; at most {MOST_DESCRIPTORS}")
    for descriptor in descriptors:
        if len(descriptor.entries) > MOST_ENTRIES:
            raise InvalidValueError(f"{len(descriptor.entries)} entries in one descriptor; at most {MOST_ENTRIES}")
