"""A policy: a named, ordered set of limits that must all hold over one log of one subject.

A subject's segment picks other limits, but never another log: whoever moves from one segment to another keeps their
history. A channel has limits of its own over a log of its own, beside the policy's log, which counts across channels;
an attempt on a channel is decided against both and recorded in both, or in neither.

`BoundPolicy` is the policy resolved for one segment and channel, as the logs to read; stores take this form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import msgspec

from capline.model.errors import (
    CaplineError,
    InvalidTypeError,
    InvalidValueError,
    PolicyError,
    UnknownNameError,
    listed,
    quoted,
    whole_number,
)
from capline.model.limit import LONGEST_WINDOW_US, CalendarLimit, Limit, QuietHours, parse_span, window_text
from capline.model.zone import UTC_ZONE, check_zone

ALGORITHMS = ("sliding_log", "bucketed", "sliding_counter", "fixed_window", "gcra")
LOGS = ("sliding_log", "bucketed")
"""The algorithms that keep a log which other limits can be read from as well."""

_INSTEAD = {
    "leakybucket": "take 'gcra' for a meter; for a queue 'sliding_log', with slots by `schedule` or `acquire`",
    "tokenbucket": "take 'gcra', which is the same: the quota at once, then a unit every window / quota",
    "slidingwindow": "take 'sliding_log', which is exact, or 'sliding_counter', which is two numbers",
    "slidingwindowlog": "take 'sliding_log'",
    "slidingwindowcounter": "take 'sliding_counter'",
    "fixedwindow": "take 'fixed_window'",
    "fixedwindowcounter": "take 'fixed_window'",
}
"""What to take instead of algorithms that go by other names here; without case, spaces, `-` and `_`."""

LARGEST_DENIED = 1 << 40
"""The largest quota with `count_denied`."""

MOST_COUNTED = 1 << 32
"""The largest quota of a `sliding_counter`: units times the steps of a window's age stay below 2^53."""

GRAINS = 60
"""Buckets in the narrowest window, unless the policy says otherwise."""

LAYOUTS = ("subject", "bucket")
MOST_LIMITS = 16
"""Limits in one set: every decision reads each of them."""

MOST_NAMES = 1024
"""Segments or channels in one policy."""

MOST_REPLICAS = 16
"""Replicas that a hit may wait for."""

RESERVED = "+reserved"
"""Suffix of the log that records pending reservations; no channel can have this name."""

NUMBERS = "+numbers"
"""Suffix of the value that has all numbers of a policy, a row for each limit."""

POPULATION = 10_000_000
"""Text subjects that `layout="bucket"` expects unless the policy says otherwise."""

LARGEST_POPULATION = 10**12

NAME_FORM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""Names become parts of keys, labels and file names: 1 to 64 of letters, digits, `_`, `.`, `-`."""


POLICY_FORM = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_.:/-]{0,63}", re.ASCII)
"""A policy may be named like a route, `GET:/search`; its log then has `%3A` and `%2F` in the name, as a log's name ends
at a `/` and begins behind a `:`."""

LOG_FORM = re.compile(r"(?:[A-Za-z0-9_]|%2F)(?:[A-Za-z0-9_.-]|%3A|%2F){0,63}", re.ASCII)


POLICY_KEYS = (
    "limits",
    "by_segment",
    "channels",
    "algorithm",
    "count_denied",
    "layout",
    "log",
    "wait_replicas",
    "population",
    "zone",
    "reservations",
    "shadow",
    "granularity",
)
"""What a policy takes beside its name: here, in a policy file and in a configuration store. Each but `granularity` is a
field."""

_MARKS = "'_', '.' or '-'", "'.' or '-'"


class LogLimits(msgspec.Struct, frozen=True, gc=False):
    """One log of an attempt: its name, the limits that must hold over it, and how long its hits are kept.

    `retention_us` is the widest window that any policy, in any segment, has on that log: hits are trimmed by that age
    alone. `keeps` is what the log holds: `hits`, each hit; `sums`, one sum for all hits of a span of `grain_us`; `ids`,
    only hits with an id, beside logs of sums. `title` is the name of its limits for people: the policy, or
    `policy/channel`. `places` are the positions of its limits in the policy, if the logs are in another order. `shared`
    if several policies have a log of ids. `keep_free` has the units of each limit that must stay free; None: none must.
    `part` is the number of its policy among several that are asked as one (`capline.policy.joint`).
    """

    log: str
    limits: tuple[Limit, ...]
    retention_us: int
    keeps: str = "hits"
    grain_us: int = 0
    title: str = ""
    places: tuple[int, ...] = ()
    shared: bool = False
    keep_free: tuple[int, ...] | None = None
    part: int = 0


def places_of(logs: Sequence[LogLimits]) -> list[int]:
    """The place in the policy's order of each limit, in the order of the logs."""
    places: list[int] = []
    for log_limits in logs:
        places += log_limits.places or range(len(places), len(places) + len(log_limits.limits))
    return places


class BoundPolicy(msgspec.Struct, frozen=True, gc=False):
    """A policy bound to a segment, a channel and a zone: the limits of every log must hold, then each log gets the hit.

    The first of `logs` is the policy's own log. `channel_logs` names the logs of all its channels, which a refund has
    to search. `zone` is empty if no limit needs one. `denied_units` is how many units of refusals a log keeps; 0 if
    refusals do not count. `reserved` is the name of the record of reservations, and `numbers` that of the value of all
    its numbers; empty where there are none. `former` are the logs of the numbers that a policy of hits kept before, as
    far as the process knows, each with their algorithm as what it `keeps`.
    """

    policy: str
    logs: tuple[LogLimits, ...]
    channel_logs: tuple[str, ...] = ()
    layout: str = "subject"
    wait_replicas: int = 0
    population: int = POPULATION
    algorithm: str = "sliding_log"
    zone: str = ""
    denied_units: int = 0
    reserved: str = ""
    numbers: str = ""
    former: tuple[LogLimits, ...] = ()

    def keeping(self, keep_free: int | Sequence[int]) -> BoundPolicy:
        """The rule for attempts with this `Attempt.keep_free`: the logs are the same.

        Raises `InvalidValueError` for a list that has not one number for each limit; zeros may follow, as in a row for
        attempts whose segments have several numbers of limits.
        """
        limits = [limit for log_limits in self.logs for limit in log_limits.limits]
        if not isinstance(keep_free, int):
            if len(keep_free) < len(limits) or any(keep_free[len(limits) :]):
                raise InvalidValueError(
                    f"keep_free has {len(keep_free)} numbers, and policy {self.policy!r} {len(limits)} limits here; "
                    "give one for each, in the order of decision.limits, or a single one for all"
                )
            kept = [keep_free[place] for place in places_of(self.logs)]
        else:
            kept = [0 if isinstance(limit, QuietHours) else keep_free for limit in limits]
        if not any(kept):
            return self
        if any(units and isinstance(limit, QuietHours) for units, limit in zip(kept, limits, strict=True)):
            raise InvalidValueError("quiet hours have no units that could stay free; give 0 for them in keep_free")
        # More than that refuses as much.
        most = iter([min(units, limit.quota + 1) for units, limit in zip(kept, limits, strict=True)])
        logs = [
            msgspec.structs.replace(log_limits, keep_free=tuple(next(most) for _ in log_limits.limits))
            for log_limits in self.logs
        ]
        return msgspec.structs.replace(self, logs=tuple(logs))


@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """A named set of limits; see the module's text for segments and channels.

    `limits` (and every value of `by_segment` and `channels`) is a list of `Limit` or of text such as `"3/day"`.
    `log` shares a log between policies: those that name the same one count each other's hits.
    `wait_replicas` (0 to 16, a redis store only): a hit counts as allowed only when so many replicas have it, and every
    verb that could later admit too much waits for them.
    `population` (1 to 10^12): how many text subjects a `layout="bucket"` policy expects. It fixes the number of
    buckets, so it must not change while there are logs.
    `algorithm` is `sliding_log`, exact; `bucketed`, which keeps one sum for each `granularity` (like `"1min"`; else a
    60th of the narrowest window) and errs only towards refusing; `sliding_counter`, `fixed_window` or `gcra`, some
    numbers a limit.
    `count_denied` records refusals too, so that a subject who keeps retrying stays blocked.
    `zone` is the time zone for calendar limits and quiet hours, unless the attempt names one.
    `reservations` allows `reserve`: each attempt then looks at what is pending too.
    `shadow` lets everybody pass: what would be refused is allowed, with `origin` "shadow"; the log goes on as if it
    bound.
    Raises `PolicyError` (a `ValueError`) or `InvalidTypeError` for a policy that cannot be decided on.

    >>> Policy("promo", ["1/day", "2/week"], by_segment={"active": ["3/day", "10/week"]}).limits_for("active")[0].quota
    3
    """

    name: str
    limits: tuple[Limit, ...]
    by_segment: Mapping[str, tuple[Limit, ...]]
    channels: Mapping[str, tuple[Limit, ...]]
    algorithm: str
    count_denied: bool
    layout: str
    log: str
    wait_replicas: int
    population: int
    zone: str
    reservations: bool
    shadow: bool
    grain_us: int

    def __init__(
        self,
        name: str,
        limits: Sequence[Limit | str],
        by_segment: Mapping[str, Sequence[Limit | str]] | None = None,
        channels: Mapping[str, Sequence[Limit | str]] | None = None,
        algorithm: str = "sliding_log",
        count_denied: bool = False,
        layout: str = "subject",
        log: str | None = None,
        *,
        wait_replicas: int = 0,
        population: int = POPULATION,
        zone: str = UTC_ZONE,
        reservations: bool = False,
        shadow: bool = False,
        granularity: str | None = None,
    ) -> None:
        where = f"policy {quoted(name)}"
        values = {
            "name": check_name(name, "policy"),
            "limits": _limits(limits, where),
            "by_segment": _named_limits(by_segment, where, "segment"),
            "channels": _named_limits(channels, where, "channel"),
            "algorithm": _algorithm(algorithm, f"{where}: algorithm"),
            "count_denied": _flag(count_denied, f"{where}: count_denied"),
            "layout": _one_of(layout, LAYOUTS, f"{where}: layout"),
            "log": name.replace(":", "%3A").replace("/", "%2F") if log is None else check_name(log, "log"),
            "wait_replicas": _whole(wait_replicas, 0, MOST_REPLICAS, f"{where}: wait_replicas"),
            "population": _whole(population, 1, LARGEST_POPULATION, f"{where}: population"),
            "zone": _zone(zone, where),
            "reservations": _flag(reservations, f"{where}: reservations"),
            "shadow": _flag(shadow, f"{where}: shadow"),
        }
        if not (values["limits"] or values["channels"]):
            raise PolicyError(f"{where} has no limit at all; give it at least one, like ['3/day']")
        for field, value in values.items():
            object.__setattr__(self, field, value)
        object.__setattr__(self, "grain_us", self._grain(granularity, where))
        self._check_algorithm(where)

    def __hash__(self) -> int:
        return hash((self.name, self.limits))

    def limits_for(self, segment: str | None) -> tuple[Limit, ...]:
        """The limits across channels for a subject in this segment; None is a subject in no segment.

        A policy that does not differ by segment takes any; one that does refuses a name it does not list.
        """
        if segment is None or not self.by_segment:
            return self.limits
        try:
            return self.by_segment[segment]
        except KeyError:
            raise _unknown("segment", segment, self.name, self.by_segment) from None

    def limits_on(self, channel: str) -> tuple[Limit, ...]:
        """The limits of one channel alone."""
        try:
            return self.channels[channel]
        except KeyError:
            raise _unknown("channel", channel, self.name, self.channels) from None

    def logs_for(self, segment: str | None, channel: str | None) -> list[tuple[str, str, tuple[Limit, ...]]]:
        """The logs of an attempt: name, title and limits of each, in the order of `decision.limits`."""
        logs = [(self.log, self.name, self.limits_for(segment))]
        if channel is not None:
            logs.append((f"{self.log}/{channel}", f"{self.name}/{channel}", self.limits_on(channel)))
        elif not logs[0][2]:
            known = listed(sorted(self.channels))
            raise UnknownNameError(f"policy {self.name!r} limits channels only; name one: {known}")
        return logs

    def having(self, **changes: Any) -> Policy:
        """The same policy with these arguments changed."""
        same: dict[str, Any] = {field: getattr(self, field) for field in ("name", *POLICY_KEYS[:-1])}
        if self.grain_us:
            same["granularity"] = f"{self.grain_us}us"
        return Policy(**{**same, **changes})

    @property
    def needs_zone(self) -> bool:
        """Whether any of its limits depends on the subject's local time."""
        return any(limit.needs_zone for limit in self.all_limits())

    @property
    def keeps_log(self) -> bool:
        """Whether its algorithm keeps a log, which other limits can be read from as well."""
        return self.algorithm in LOGS

    @property
    def keeps_hits(self) -> bool:
        """Whether each hit stands for itself in its log, and refusals do not: what reservations and `move` need."""
        return self.algorithm == "sliding_log" and not self.count_denied

    def _grain(self, granularity: str | None, where: str) -> int:
        """The span of a bucket; 0 for other algorithms."""
        if self.algorithm != "bucketed":
            if granularity is not None:
                raise PolicyError(
                    f"{where}: granularity is of algorithm 'bucketed'; leave it out of {self.algorithm!r}"
                )
            return 0
        windows_us = [limit.window_us for limit in self.all_limits() if limit.quota]
        # If all quotas are 0 nothing is ever kept, so any span will do.
        narrowest_us = min(windows_us, default=LONGEST_WINDOW_US)
        if granularity is None:
            return max(1, narrowest_us // GRAINS)
        try:
            grain_us = parse_span(granularity, f"{where}: granularity")
        except InvalidValueError as error:
            raise PolicyError(str(error)) from None
        if grain_us * 2 > narrowest_us:
            raise PolicyError(
                f"{where}: granularity {granularity!r} is more than half of its narrowest window, "
                f"{window_text(narrowest_us)}; take a finer one"
            )
        return grain_us

    def _check_algorithm(self, where: str) -> None:
        algorithm = f"algorithm {self.algorithm!r}"
        if self.channels and self.algorithm != "sliding_log":
            raise PolicyError(f"{where}: channels need every hit, which {algorithm} does not keep; take sliding_log")
        if self.reservations and not self.keeps_hits:
            raise PolicyError(f"{where}: reservations need sliding_log without count_denied; leave them out")
        if self.count_denied:
            if not self.keeps_log:
                raise PolicyError(f"{where}: count_denied goes with {' or '.join(LOGS)}, not with {algorithm}")
            if any(limit.quota > LARGEST_DENIED for limit in self.all_limits()):
                raise PolicyError(f"{where}: beside count_denied a quota is at most {LARGEST_DENIED}")
        if not self.keeps_log:
            self._check_numbers(where, algorithm)

    def _check_numbers(self, where: str, algorithm: str) -> None:
        """Refuse what an algorithm that keeps numbers instead of a log cannot do."""
        if self.by_segment:
            raise PolicyError(
                f"{where}: limits by segment are read from one log, which {algorithm} does not keep; "
                "take sliding_log or bucketed"
            )
        for limit in self.limits:
            if isinstance(limit, CalendarLimit):
                raise PolicyError(f"{where}: limit {limit} needs a log, which {algorithm} does not keep")
            if self.algorithm == "sliding_counter" and limit.quota > MOST_COUNTED:
                raise PolicyError(f"{where}: limit {limit}: a sliding_counter counts to {MOST_COUNTED}")
            if self.algorithm == "gcra" and limit.quota * limit.window_us // gcd(limit.quota, limit.window_us) >> 53:
                raise PolicyError(
                    f"{where}: limit {limit}: gcra cannot keep it exactly; take a rounder quota, or sliding_log"
                )

    def all_limits(self) -> Iterator[Limit]:
        """Every limit that may count over the policy's own log or a channel's."""
        yield from self.limits
        for limits in (*self.by_segment.values(), *self.channels.values()):
            yield from limits


def check_no_replicas(policy: Policy | BoundPolicy) -> None:
    """Raise `InvalidValueError` for a policy that waits for replicas, in a store that has none."""
    if policy.wait_replicas:
        name = policy.name if isinstance(policy, Policy) else policy.policy
        raise InvalidValueError(
            f"policy {name!r}: wait_replicas needs a redis store, which has replicas; leave it out here"
        )


def check_name(name: str, what: str) -> str:
    """Return the name, or raise a `PolicyError`: names become parts of keys and labels."""
    form = {"policy": POLICY_FORM, "log": LOG_FORM}.get(what, NAME_FORM)
    if not isinstance(name, str) or not form.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        marks, first = ("'_', '.', '-', ':' or '/'", "'.', '-' or ':'") if what == "policy" else _MARKS
        raise PolicyError(
            f"{what} name {quoted(name)} is not 1 to 64 letters, digits, {marks} (not starting with {first})"
        )
    return name


def _limits(limits: Sequence[Limit | str], where: str) -> tuple[Limit, ...]:
    if isinstance(limits, (str, Limit)) or not isinstance(limits, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        problem = f"limits come as a list, like ['3/day', '10/week'], not {quoted(limits)}"
        raise InvalidTypeError(f"{where}: {problem}")
    try:
        parsed = tuple(limit if isinstance(limit, Limit) else Limit.parse(limit) for limit in limits)
    except InvalidTypeError as error:
        raise InvalidTypeError(f"{where}: {error}") from None
    except CaplineError as error:
        raise PolicyError(f"{where}: {error}") from None
    if len(parsed) > MOST_LIMITS:
        raise PolicyError(f"{where}: {len(parsed)} limits in one set; at most {MOST_LIMITS}")
    windows = [(type(limit), limit.window_us) for limit in parsed if not isinstance(limit, QuietHours)]
    if len(set(windows)) < len(windows):
        raise PolicyError(f"{where}: two limits over the same window; keep the smaller quota")
    return parsed


def _named_limits(
    named: Mapping[str, Sequence[Limit | str]] | None, where: str, what: str
) -> Mapping[str, tuple[Limit, ...]]:
    if named is None:
        return {}
    if not isinstance(named, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"{where}: limits by {what} come as a mapping, not {quoted(named)}")
    if len(named) > MOST_NAMES:
        raise PolicyError(f"{where}: {len(named)} {what}s; at most {MOST_NAMES}")
    parsed = {check_name(name, what): _limits(limits, f"{where}, {what} {name!r}") for name, limits in named.items()}
    for name, limits in parsed.items():
        if not limits:
            raise PolicyError(
                f"{where}, {what} {name!r} has no limit at all; give it one, like '3/day', or leave it out"
            )
    return parsed


def _algorithm(name: str, where: str) -> str:
    instead = _INSTEAD.get(re.sub(r"[\s_-]", "", name).lower()) if isinstance(name, str) else None  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
    if instead is not None and name not in ALGORITHMS:
        raise PolicyError(f"{where} {quoted(name)} is not offered; {instead}")
    return _one_of(name, ALGORITHMS, where)


def _one_of(value: str, known: tuple[str, ...], where: str) -> str:
    if value not in known:
        raise PolicyError(f"{where} {quoted(value)} is not known; use {' or '.join(known)}")
    return value


def _whole(value: int, least: int, most: int, where: str) -> int:
    number = whole_number(value, f"{where} is a whole number")
    if not least <= number <= most:
        raise PolicyError(f"{where} is {least} to {most}, not {quoted(number)}")
    return number


def _flag(value: bool, where: str) -> bool:
    if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"{where} is True or False, not {quoted(value)}")
    return value


def _zone(zone: str, where: str) -> str:
    try:
        return check_zone(zone)
    except UnknownNameError as error:
        raise PolicyError(f"{where}: {error}") from None


def _unknown(what: str, name: str, policy: str, known: Mapping[str, object]) -> UnknownNameError:
    return UnknownNameError(f"policy {quoted(policy)} has no {what} {quoted(name)}; it has: {listed(sorted(known))}")
