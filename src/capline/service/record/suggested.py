"""Limits that the recorded decisions suggest, with what every other quota would have refused of them.

    rows of the policy, a decision an event  ->  columns  ->  what `capline suggest` counts of a file  ->  a few quotas

The rule: what is counted is exact, and what is not is said. An event is a decision of one unit; one that was sent again
with its id is the same event. Left out are other costs, and subjects with limits of their own. Of more than
`MOST_EVENTS` the newest are counted, which bounds the time: 2 s for most, some 6 where one subject has them all.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from capline.model.errors import InvalidValueError
from capline.model.limit import Limit, parse_span
from capline.replay.suggest.events import Past
from capline.replay.suggest.facts import suggestion_facts
from capline.replay.suggest.suggestion import Bound, suggest

if TYPE_CHECKING:
    from capline.model.policy import Policy
    from capline.model.subject import Subject
    from capline.service.record.kept import Record

_HOUR_US = 3_600_000_000
MOST_EVENTS, MOST_WINDOWS, MOST_SEGMENTS, MOST_QUOTAS = 300_000, 3, 20, 200
NO_SEGMENT = "-"


class Asked(NamedTuple):
    """Windows of these widths, the bound, and whether each segment is asked for too."""

    widths_us: list[int]
    bound: Bound
    by_segment: bool


def asked_of(policy: Policy, windows: Sequence[str], refuse_at_most: str, of: str, *, by_segment: bool) -> Asked:
    """What is asked; the windows of the policy's limits where none is named. Raises for what cannot be counted."""
    if policy.algorithm != "sliding_log" or policy.count_denied:
        counts = "refusals too" if policy.count_denied else policy.algorithm
        raise InvalidValueError(
            f"policy {policy.name!r} counts {counts}; limits are suggested where sliding_log counts"
        )
    widths_us = list(dict.fromkeys(parse_span(text, "windows") for text in windows))
    if not widths_us:
        rolling = {limit.window_us for limit in policy.all_limits() if type(limit) is Limit}
        widths_us = sorted(rolling or {_HOUR_US})[:MOST_WINDOWS]
    if len(widths_us) > MOST_WINDOWS:
        raise InvalidValueError(f"at most {MOST_WINDOWS} windows are counted at once; ask again for the others")
    return Asked(widths_us, Bound.parse(refuse_at_most, of, "refuse_at_most"), by_segment)


class Decided(NamedTuple):
    """Recorded decisions of one policy as columns, and how many are not among them."""

    since_us: int | None
    past: Past | None
    """None where there is no decision."""
    subjects: list[Subject]
    left_out: int
    overridden: int
    """Subjects with limits of their own."""
    older: int
    """Decisions before the newest `MOST_EVENTS`."""


def decided(
    record: Record,
    policy: str,
    owns: Callable[[Sequence[Subject]], Sequence[object]],
    segment_of: Callable[[Subject], str | None] | None,
) -> Decided:
    """Read the record; `segment_of` a subject is asked where the decision knew of none."""
    codes: dict[Subject, int] = {}
    kinds: dict[str | None, int] = {}
    subjects, at_us, segments = array("i"), array("q"), array("i")
    ids: set[tuple[int, str]] = set()
    left_out, since_us = 0, None
    for rows in record.pieces():
        since_us = min([row[1] for row in rows] + ([] if since_us is None else [since_us]), default=None)
        for (name, segment, _channel, _zone, cost, keep_free, _who), stamp_us, subject, _, id, _ in rows:
            if name != policy:
                continue
            if cost != 1 or keep_free:
                left_out += 1
                continue
            code = codes.setdefault(subject, len(codes))
            if id is not None:
                if (code, id) in ids:
                    continue
                ids.add((code, id))
            subjects.append(code)
            at_us.append(stamp_us)
            segments.append(kinds.setdefault(segment or (segment_of and segment_of(subject)), len(kinds)))
        time.sleep(0)  # who decides goes first
    own = np.array([limits is not None for limits in owns([*codes])], np.bool_)
    of, at, kind = np.frombuffer(subjects, np.int32), np.frombuffer(at_us, np.int64), np.frombuffer(segments, np.int32)
    counted = ~own[of]
    older = max(0, int(np.count_nonzero(counted)) - MOST_EVENTS)
    if older:
        since_us = int(np.partition(at[counted], older)[older])
        counted &= at >= since_us
    past = Past(of[counted], at[counted], kind[counted], [*kinds]) if counted.any() else None
    return Decided(since_us, past, [*codes], left_out, int(np.count_nonzero(own)), older)


def suggestions(policy: Policy, found: Decided, asked: Asked, *, hashed: bool) -> dict[str, Any]:
    """The suggestion for all events, and by segment those for the largest segments."""
    past = found.past
    if past is None:
        return {}

    def name_of(code: int) -> Subject:
        return f"hash:{found.subjects[code]:016x}" if hashed else found.subjects[code]

    def facts(histories: Any, in_force: Sequence[Limit]) -> dict[str, Any]:
        return suggestion_facts(
            suggest(histories, asked.widths_us, asked.bound, name_of), name_of, MOST_QUOTAS, in_force
        )

    told = facts(past.histories, policy.limits)
    if asked.by_segment:
        parts = sorted(past.segments().items(), key=lambda part: -part[1].events)
        told["segments"] = {
            segment or NO_SEGMENT: facts(histories, policy.by_segment.get(segment or "", policy.limits))
            for segment, histories in parts[:MOST_SEGMENTS]
        }
        told["of_segments"] = len(parts)
    return told
