"""Every refusal, by replay in order: at some instant of the call the log has to have been as full as the answer says.

`retry_after_us` tells to the microsecond when a refusal was decided: at some point of the log's growth, the instant
from which the cost fits, less `retry_after_us`. The check looks for one such point within the call. That covers both
promises: the window was full, and the cost would have been refused one microsecond before its retry_after, and allowed
at it.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import closing
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from proof.checker.events import FOREVER_US, UNTOLD
from proof.checker.timeline import NEVER

if TYPE_CHECKING:
    from collections.abc import Generator

    from proof.checker.events import Attempt
    from proof.checker.hits import LogHistory
    from proof.checker.joints import Joints
    from proof.checker.report import Report
    from proof.checker.timeline import Timeline

__all__ = ["check_refusals"]

MOST_OPEN = 8
"""Refunds that overlap one refusal: each may have been before or after it. With more, the check is only whether the
window was full with none of them done."""


def check_refusals(history: LogHistory, line: Timeline, tolerance_us: int, joints: Joints, report: Report) -> None:
    """Every refusal was due and told the right time; every peek that said yes was right. O(log n) each.

    A part of a joint attempt may have been refused for another part: `joints` is told what this log says of it.
    """
    attempts_in_order = sorted([*history.refused, *history.peeked], key=lambda one: one.asked_us)
    refunds = _Refunds(line)
    doubts_us = sorted(history.doubts_us)
    for attempt in attempts_in_order:
        if doubts_us and any(
            begin_us <= attempt.answered_us and attempt.asked_us <= end_us for begin_us, end_us in doubts_us
        ):
            report.excused += 1
            joints.judged(attempt, due=True, right=True)
            continue
        refunds.advance(attempt.asked_us)
        still_open = refunds.still_open(attempt, tolerance_us)
        if len(still_open) > MOST_OPEN:
            report.excused += 1
            attempt, still_open = replace(attempt, retry_after_us=UNTOLD), []  # noqa: PLW2901 - a look at less of it
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
    refunds.undo()


def _judge(attempt: Attempt, line: Timeline, still_open: list[int], tolerance_us: int) -> tuple[bool, bool]:
    """Whether at some instant of the call it had to be refused, and whether its answer is right for one."""
    from_us, to_us = attempt.asked_us - tolerance_us, attempt.answered_us + tolerance_us
    was_due = False
    with closing(_subsets(line, still_open)) as subsets:
        for _ in subsets:
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


def _subsets(line: Timeline, hits: list[int]) -> Generator[None]:
    """Each way in which these hits may have been given back already; they are out of the timeline meanwhile."""
    for size in range(len(hits) + 1):
        for chosen in combinations(hits, size):
            for i in chosen:
                line.take_out(i)
            try:
                yield
            finally:
                for i in chosen:
                    line.put_back(i)


class _Refunds:
    """The hits that were given back, taken out of the timeline as time goes on."""

    def __init__(self, line: Timeline) -> None:
        self._line = line
        numbers = [i for i, hit in enumerate(line.hits) if hit.refund_from_us < FOREVER_US]
        self._by_end = sorted(numbers, key=lambda i: line.hits[i].refund_by_us)
        self._by_begin = sorted(numbers, key=lambda i: line.hits[i].refund_from_us)
        self._begins_us = [line.hits[i].refund_from_us for i in self._by_begin]
        self._out = 0
        self._open_from = 0

    def advance(self, asked_us: int) -> None:
        """Take out what was given back before this."""
        while self._out < len(self._by_end) and self._line.hits[self._by_end[self._out]].refund_by_us < asked_us:
            self._line.take_out(self._by_end[self._out])
            self._out += 1

    def still_open(self, attempt: Attempt, tolerance_us: int) -> list[int]:
        """Hits that may have been given back before this attempt or after it, and that count in one of its windows."""
        hits = self._line.hits
        oldest_us = attempt.asked_us - tolerance_us - max((window_us for _, window_us in attempt.limits), default=0)
        while self._open_from < len(self._by_begin) and self._is_over(
            self._by_begin[self._open_from], attempt.asked_us
        ):
            self._open_from += 1
        return [
            i
            for i in self._by_begin[self._open_from : bisect_left(self._begins_us, attempt.answered_us + 1)]
            if not self._is_over(i, attempt.asked_us) and hits[i].stamp_us > oldest_us
        ]

    def undo(self) -> None:
        """Put everything back."""
        for i in self._by_end[: self._out]:
            self._line.put_back(i)

    def _is_over(self, i: int, asked_us: int) -> bool:
        return self._line.hits[i].refund_by_us < asked_us
