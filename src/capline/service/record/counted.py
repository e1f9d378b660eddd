"""What was counted in a minute, by policy, limit and verdict: as the row of an hour, and several rows joined.

    row     msgpack: [[policy, limit ("" where none binds), verdict, first minute, [counts by minute]], ...]

Among them are those that `instances` draws; a verdict that a reader does not know is left out.
Cost: some 40 bytes a policy and verdict, and 1 to 3 a minute; at most `MOST_ROWS` of them, then those counted least are
one, "other".
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from capline.observe.metrics import OTHER
from capline.service.http.scope import EVERYTHING, Scope

MOST_ROWS = 128
HOUR = 60
VERDICTS = ("allowed", "refused", "shadow", "error")
"""Allowed by a policy in shadow that would have refused is apart."""

_NOT = ("refused", "shadow")

Key = tuple[str, str, str]
"""A policy, a limit, a verdict."""

Row = tuple[str, str, str, int, list[int]]


class Span(NamedTuple):
    """So many minutes until now, in steps of so many."""

    minutes: int
    step: int


SPANS = {"5m": Span(5, 1), "hour": Span(60, 1), "day": Span(1440, 15), "week": Span(10_080, 60)}


class Joined(NamedTuple):
    """Counted from `begin` on, in minutes since 1970: by verdict in each step, and all by key; `first` had a count."""

    begin: int
    step: int
    series: dict[str, list[int]]
    rows: dict[Key, int]
    first: int | None

    def by_policy(self) -> list[dict[str, Any]]:
        """Policies with most refusals first, then most attempts: what was counted, and what each limit refused.

        In `shadow` are those that would have been refused.
        """
        found: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(VERDICTS, 0))
        limits: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: dict.fromkeys(_NOT, 0)))
        for (policy, limit, verdict), count in self.rows.items():
            found[policy][verdict] += count
            if verdict in _NOT:
                limits[policy][limit][verdict] += count
        order = sorted(found, key=lambda policy: (-found[policy]["refused"], -found[policy]["allowed"], policy))
        return [{"policy": policy, **found[policy], "limits": _limits(limits[policy])} for policy in order]


def _limits(counts: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    return [{"limit": limit, **counts[limit]} for limit in sorted(counts, key=lambda row: -sum(counts[row].values()))]


def packed(counts: Mapping[Key, Sequence[int]], more: Iterable[Row] = ()) -> bytes:
    """The row of an hour; `counts` has one for each of its minutes, `more` comes after them."""
    kept = [*counts]
    if len(kept) > MOST_ROWS:
        kept = sorted(counts, key=lambda key: -sum(counts[key]))[: MOST_ROWS - len(VERDICTS)]
    rest: dict[Key, list[int]] = {}
    for key in counts.keys() - kept:
        row = rest.setdefault((OTHER, OTHER, key[2]), [0] * HOUR)
        row[:] = map(sum, zip(row, counts[key], strict=True))
    rows = (*map(_row, kept, map(counts.__getitem__, kept)), *map(_row, rest, rest.values()), *more)
    return msgspec.msgpack.encode(rows)


def _row(key: Key, counts: Sequence[int]) -> Row:
    seen = [minute for minute, count in enumerate(counts) if count] or [0]
    return *key, seen[0], [*counts[seen[0] : seen[-1] + 1]]


_ROWS = msgspec.msgpack.Decoder(list[Row])


def joined(hours: Iterable[tuple[int, bytes]], span: Span, minute: int, scope: Scope = EVERYTHING) -> Joined:
    """Rows of these hours joined, over a span that ends with this minute; what is not a row is left out."""
    end, step = minute + 1, span.step
    begin = -(-(end - span.minutes) // step) * step
    series = {verdict: [0] * -(-(end - begin) // step) for verdict in VERDICTS}
    found: dict[Key, int] = defaultdict(int)
    first: int | None = None
    for hour, data in hours:
        for policy, limit, verdict, from_minute, counts in read(data):
            base = hour * HOUR + from_minute
            at, until = max(begin, base), min(end, base + len(counts))
            if at >= until or verdict not in series or policy not in scope:
                continue
            first = at if first is None else min(at, first)
            found[policy, limit, verdict] += sum(counts[at - base : until - base])
            while at < until:
                place = (at - begin) // step
                after = min(until, begin + (place + 1) * step)
                series[verdict][place] += sum(counts[at - base : after - base])
                at = after
    return Joined(begin, step, series, dict(found), first)


def read(data: bytes) -> list[Row]:
    """The rows in a value; none where it is something else."""
    try:
        return _ROWS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
