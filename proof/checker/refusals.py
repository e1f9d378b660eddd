"""Every refusal, by replay in order: at some instant of the call the log has to have been as full as the answer says.

`retry_after_us` tells to the microsecond when a refusal was decided: at some point of the log's growth, the instant
from which the cost fits, less `retry_after_us`. The check looks for one such point within the call. That covers both
promises: the window was full, and the cost would have been refused one microsecond before its retry_after, and allowed
at it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from proof.checker.events import UNTOLD
from proof.checker.timeline import NEVER

if TYPE_CHECKING:
    from collections.abc import Generator

    from proof.checker.events import Attempt
    from proof.checker.hits import LogHistory, Value
    from proof.checker.joints import Joints
    from proof.checker.report import Report
    from proof.checker.timeline import Timeline

__all__ = ["check_refusals"]

MOST_CHOICES = 256
"""Refunds and settlements that overlap one refusal: each may have been before or after it. With more ways in which they
may, the check is only whether the window was full with all that its hits may have had."""


def check_refusals(history: LogHistory, line: Timeline, tolerance_us: int, joints: Joints, report: Report) -> None:
    """Every refusal was due and told the right time; every peek that said yes was right. O(log n) each.

    A part of a joint attempt may have been refused for another part: `joints` is told what this log says of it.
    """
    attempts_in_order = sorted([*history.refused, *history.peeked], key=lambda one: one.asked_us)
    changes = _Changes(line)
    doubts_us = sorted(history.doubts_us)
    for attempt in attempts_in_order:
        if doubts_us and any(
            begin_us <= attempt.answered_us and attempt.asked_us <= end_us for begin_us, end_us in doubts_us
        ):
            report.excused += 1
            joints.judged(attempt, due=True, right=True)
            continue
        changes.advance(attempt.asked_us)
        still_open = changes.still_open(attempt, tolerance_us)
        if prod(map(len, still_open.values())) > MOST_CHOICES:
            report.excused += 1
            bound = min if attempt.allowed else max
            still_open = {i: [bound(units)] for i, units in still_open.items()}
            attempt = replace(attempt, retry_after_us=UNTOLD)  # noqa: PLW2901 - a look at less of it
        due, right = _judge(attempt, line, still_open, tolerance_us)
        if attempt.joint is not None and not attempt.allowed:
            joints.judged(attempt, due=due, right=right)
        elif right:
            continue
        elif attempt.allowed:
            report.add("peek-wrong", attempt.line, f"{attempt.cost} units never fitted")
        elif due:
            told_us = attempt.retry_after_us
            report.add("retry-after-wrong", attempt.line, f"a retry_after of {told_us} us fits no instant")
        else:
            report.add("refusal-unjustified", attempt.line, f"{attempt.cost} units fitted all the time")
    changes.undo()


def _judge(attempt: Attempt, line: Timeline, still_open: dict[int, list[int]], tolerance_us: int) -> tuple[bool, bool]:
    """Whether at some instant of the call it had to be refused, and whether its answer is right for one."""
    from_us, to_us = attempt.asked_us - tolerance_us, attempt.answered_us + tolerance_us
    was_due = False
    with closing(_choices(line, still_open)) as choices:
        for _ in choices:
            for m in line.points(from_us, to_us):
                early_us, late_us = line.instants(m, from_us, to_us)
                if early_us > late_us:
                    continue
                if attempt.allowed:
                    if _has_room(attempt, line, m, late_us):
                        return False, True
                    continue
                due, right = _is_due(attempt, line, m, early_us, late_us)
                if right:
                    return True, True
                was_due = was_due or due
    return was_due, False


def _is_due(attempt: Attempt, line: Timeline, m: int, early_us: int, late_us: int) -> tuple[bool, bool]:
    """Whether it had to be refused between these instants, beside m hits; and whether it was told the right time."""
    fits_us = line.fits_at(m, attempt.cost, attempt.limits)
    told_us = attempt.retry_after_us
    if fits_us is None:
        return True, told_us is None or told_us == UNTOLD
    newest = line.newest(m)
    newest_us = NEVER if newest is None else newest.stamp_us
    # Nobody jumps the queue: before a slot that is taken, everybody waits.
    queue_us = newest_us if newest is not None and newest.is_ahead else NEVER
    if attempt.verb == "schedule":
        return _is_too_far(attempt, max(fits_us, newest_us + 1), early_us, late_us)
    due = fits_us > max(early_us, newest_us + 1) or queue_us > early_us
    if told_us == UNTOLD:
        return due, due
    if told_us is None or told_us <= 0:
        return due, False
    # At the instant of the last slot itself, the next stamp is already one later.
    if fits_us <= newest_us + 1:
        return due, queue_us != NEVER and early_us <= queue_us - told_us <= late_us
    return due, early_us <= fits_us - told_us <= late_us


def _is_too_far(attempt: Attempt, free_us: int, early_us: int, late_us: int) -> tuple[bool, bool]:
    """The same for a slot that lies farther than `max_wait_us`: the first that is free, and not before it is wanted."""
    wait_us, told_us = attempt.not_before_us, attempt.retry_after_us
    due = attempt.max_wait_us is not None and max(free_us - early_us, wait_us) > attempt.max_wait_us
    if told_us == UNTOLD or told_us is None or not due:
        return due, due and told_us is not None
    if told_us == wait_us and free_us - late_us <= wait_us:
        return due, True
    return due, told_us >= wait_us and early_us <= free_us - told_us <= late_us


def _has_room(attempt: Attempt, line: Timeline, m: int, late_us: int) -> bool:
    fits_us, newest = line.fits_at(m, attempt.cost, attempt.limits), line.newest(m)
    if fits_us is None:
        return False
    if newest is None:
        return fits_us <= late_us
    return fits_us <= max(late_us, newest.stamp_us + 1) and not (newest.is_ahead and newest.stamp_us > late_us)


def _choices(line: Timeline, still_open: dict[int, list[int]]) -> Generator[None]:
    """Each way in which these hits may have had their units; the timeline has them meanwhile."""
    before = [line.units[i] for i in still_open]
    try:
        for chosen in product(*still_open.values()):
            for i, units in zip(still_open, chosen, strict=True):
                line.set_units(i, units)
            yield
    finally:
        for i, units in zip(still_open, before, strict=True):
            line.set_units(i, units)


class _Changes:
    """The hits that were given back or settled, changed in the timeline as time goes on."""

    def __init__(self, line: Timeline) -> None:
        self._line = line
        values = [(value, i) for i, hit in enumerate(line.hits) for value in hit.values]
        self._by_end = sorted(values, key=lambda one: one[0].until_us, reverse=True)
        # The timeline has the first of each.
        changed = [(value, i) for value, i in values if value is not line.hits[i].values[0]]
        self._by_begin = sorted(changed, key=lambda one: one[0].from_us, reverse=True)
        self._begun: list[tuple[Value, int]] = []

    def advance(self, asked_us: int) -> None:
        """Let each hit count for the first that it may have had then."""
        changed = set[int]()
        while self._by_end and self._by_end[-1][0].until_us < asked_us:
            changed.add(self._by_end.pop()[1])
        for i in changed:
            possible = (value for value in self._line.hits[i].values if value.until_us >= asked_us)
            self._line.set_units(i, min(possible, key=lambda value: value.from_us).units)

    def still_open(self, attempt: Attempt, tolerance_us: int) -> dict[int, list[int]]:
        """The hits that may have changed before this attempt or after it, and count in a window of it: all they had."""
        hits, asked_us = self._line.hits, attempt.asked_us
        oldest_us = asked_us - tolerance_us - max((window_us for _, window_us in attempt.limits), default=0)
        while self._by_begin and self._by_begin[-1][0].from_us <= attempt.answered_us:
            self._begun.append(self._by_begin.pop())
        self._begun = [(value, i) for value, i in self._begun if not self._is_over(value, i, asked_us)]
        found: dict[int, list[int]] = {}
        for value, i in self._begun:
            if value.from_us <= attempt.answered_us and hits[i].stamp_us > oldest_us:
                units = found.setdefault(i, [self._line.units[i]])
                if value.units not in units:
                    units.append(value.units)
        return found

    def undo(self) -> None:
        """Let each count for what was granted."""
        for i, hit in enumerate(self._line.hits):
            self._line.set_units(i, hit.first_units)

    def _is_over(self, value: Value, i: int, asked_us: int) -> bool:
        """Whether the hit had others by then, or certainly has these from then on."""
        others = (other.until_us for other in self._line.hits[i].values if other is not value)
        return value.until_us < asked_us or all(until_us < asked_us for until_us in others)
