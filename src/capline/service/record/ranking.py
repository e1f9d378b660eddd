"""Who is refused most, and who uses most, in the recorded decisions: by policy, and by the limit that refused.

The rule: exact, unless there are more than `MOST` counts. Then those that are least are forgotten, so that memory is
bounded, and each count may be short by at most `short_by`, which is said. (Lossy counting, of Manku and Motwani; with
the record at hand it takes no sketch.) What was sent again with its id counts again, and so does what was given back.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capline.model.subject import Subject
    from capline.service.record.kept import RowTuple

MOST = 100_000
NAMED = 20
"""Subjects of each list."""

Group = tuple[str, str | None]
"""A policy, and what is counted: refusals by a limit ("" if none is known), or, for None, units that were used."""


class Ranking(NamedTuple):
    """Totals by group, and the subjects with most; `since_us` is the first decision, None where there is none."""

    since_us: int | None
    decisions: int
    short_by: int
    totals: dict[Group, int]
    most: dict[Group, list[tuple[Subject, int]]]


def ranking(pieces: Iterable[Iterable[RowTuple]], most: int = MOST) -> Ranking:
    """Count them all; some 2 µs a row."""
    counts: dict[tuple[Group, Subject], int] = {}
    totals: dict[Group, int] = defaultdict(int)
    since_us: int | None = None
    decisions = short_by = 0
    for rows in pieces:
        for kind, at_us, subject, allowed, _, limit in rows:
            group, units = ((kind[0], None), kind[4]) if allowed else ((kind[0], limit or ""), 1)
            since_us = at_us if since_us is None or at_us < since_us else since_us
            decisions += 1
            totals[group] += units
            key = group, subject
            counts[key] = counts.get(key, 0) + units
        if len(counts) > most:
            least = sorted(counts.values())[-(most // 2) - 1]
            counts = {key: count for key, count in counts.items() if count > least}
            short_by += least
    groups: dict[Group, list[tuple[Subject, int]]] = defaultdict(list)
    for (group, subject), count in counts.items():
        if count:
            groups[group].append((subject, count))
    named = {group: nlargest(NAMED, of, key=lambda pair: pair[1]) for group, of in groups.items()}
    return Ranking(since_us, decisions, short_by, dict(totals), named)
