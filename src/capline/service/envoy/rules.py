"""Which limit a descriptor has: domains, and below each a tree of descriptors.

At each level an entry of the request looks for its exact value, then for wildcards in the order of the files, then for
its key alone. A limit counts only where the request's entries end: a descriptor of two entries does not have the limit
of the first. Costs a look-up an entry, and one match for each wildcard of a level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from capline.model.limit import DAY_US, Limit
from capline.model.policy import Policy

UNITS_US = {
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY_US,
    "week": 7 * DAY_US,
    "month": 30 * DAY_US,
    "year": 365 * DAY_US,
}
"""The units by name; a month and a year have the length that envoyproxy/ratelimit gives them."""


class Rule(msgspec.Struct, frozen=True):
    """A limit: `quota` requests in each `unit`; neither where it is `unlimited`.

    `replaces` are the names of the rules that it takes the place of; `name` is its own. `shadow` never refuses;
    `quota_mode` refuses only together with all others of its kind. `detailed` counts by the values of the request.
    `metadata` is told to Envoy while there is room.
    """

    quota: int
    unit: str
    unlimited: bool = False
    name: str = ""
    replaces: tuple[str, ...] = ()
    shadow: bool = False
    quota_mode: bool = False
    detailed: bool = False
    metadata: dict[str, object] | None = None


class Match(msgspec.Struct, frozen=True):
    """What a descriptor has: its rule, the entries that it is counted by, and what metrics call it."""

    rule: Rule
    entries: tuple[tuple[str, str], ...]
    metric: str


class Descriptor:
    """One descriptor of the files, with those below it. Built once, then only read."""

    __slots__ = ("_by_key", "_exact", "_wild", "rule", "share_threshold", "value_to_metric")

    def __init__(
        self, rule: Rule | None = None, *, share_threshold: bool = False, value_to_metric: bool = False
    ) -> None:
        self.rule = rule
        self.share_threshold = share_threshold
        self.value_to_metric = value_to_metric
        self._exact: dict[tuple[str, str], Descriptor] = {}
        self._by_key: dict[str, Descriptor] = {}
        self._wild: list[tuple[str, list[str], str, Descriptor]] = []

    def has(self, key: str, value: str) -> bool:
        """Whether there is one of this key and value; the value "" is any."""
        return (key, value) in self._exact if value else key in self._by_key

    def add(self, key: str, value: str, below: Descriptor) -> None:
        """Put one below this; `*` in a value stands for any text."""
        if not value:
            self._by_key[key] = below
            return
        self._exact[key, value] = below
        if "*" in value:
            self._wild.append((key, value.split("*"), value, below))

    def below(self, key: str, value: str) -> tuple[Descriptor, str] | None:
        """The one that an entry leads to, and the value that it is written with: "" where it is any."""
        found = self._exact.get((key, value))
        if found is not None:
            return found, value
        for wild_key, pieces, written, wild in self._wild:
            if wild_key == key and _fits(value, pieces):
                return wild, written
        found = self._by_key.get(key)
        return None if found is None else (found, "")


class Configuration:
    """All domains."""

    def __init__(self) -> None:
        self.domains: dict[str, Descriptor] = {}
        self.rules: list[Rule] = []

    def match(self, domain: str, entries: Sequence[tuple[str, str]]) -> Match | None:
        """The limit of a descriptor, or None."""
        at = self.domains.get(domain)
        if at is None:
            return None
        counted: list[tuple[str, str]] = []
        names = [domain]
        for key, value in entries:
            found = at.below(key, value)
            if found is None:
                return None
            at, written = found
            shared = at.share_threshold and written != value
            counted.append((key, written if shared else value))
            names.append(_metric(key, written, value, shown=at.value_to_metric, shared=shared))
        if at.rule is None or not entries:
            return None
        if at.rule.detailed:
            names[1:] = [f"{key}_{value.removesuffix('*')}" for key, value in counted]
        return Match(at.rule, tuple(counted), ".".join(names))


def _fits(value: str, pieces: Sequence[str]) -> bool:
    """Whether a value is these pieces with any text between them. Reads it once: clients choose its length."""
    first, *between, last = pieces
    at, end = len(first), len(value) - len(last)
    if at > end or not (value.startswith(first) and value.endswith(last)):
        return False
    for piece in between:
        found = value.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _metric(key: str, written: str, value: str, *, shown: bool, shared: bool) -> str:
    """What metrics call an entry: as it is written in the file, or by the request's value where that is `shown`."""
    if shown:
        written = written.removesuffix("*") if shared else value
    return f"{key}_{written}" if written else key


def policy_name(quota: int, unit: str) -> str:
    """The policy of a limit."""
    return f"envoy.{unit}.{quota}"


def policies_of(limits: Iterable[tuple[int, str]]) -> list[Policy]:
    """The policies of these limits, each once. Those of one unit share a log: a changed quota finds earlier hits."""
    return [
        Policy(policy_name(quota, unit), [Limit(quota, UNITS_US[unit])], log=f"envoy.{unit}")
        for quota, unit in dict.fromkeys(limits)
    ]
