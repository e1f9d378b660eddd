"""All checks, one log after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proof.checker.hits import gather
from proof.checker.joints import Joints
from proof.checker.refusals import check_refusals
from proof.checker.report import Report
from proof.checker.timeline import Timeline
from proof.checker.windows import check_by_stamps, check_by_wall, check_order, check_stamps

if TYPE_CHECKING:
    from proof.checker.events import Records

__all__ = ["TOLERANCE_US", "check"]

TOLERANCE_US = 1000
"""How far the callers' clock and the stamps' may be apart: a millisecond, for callers and server on one machine."""


def check(records: Records, tolerance_us: int = TOLERANCE_US) -> Report:
    """Whether every promise was kept, as far as these records can tell. O(n log n); about 10 µs a record.

    `tolerance_us` is how far the callers' clock and the clock of the stamps may be apart. It widens each call by so
    much on either side, and nothing else: the stamps among themselves are judged to the microsecond.
    """
    report = Report(
        attempts=records.attempts, logs=len(records.logs), unanswered=records.unanswered, stood_in=records.stood_in
    )
    joints = Joints()
    for log in records.logs.values():
        joints.note(log.attempts)
        history = gather(log, tolerance_us, report)
        line = Timeline(history.hits)
        report.hits += len(history.hits)
        report.refused += len(history.refused)
        check_stamps(line, tolerance_us, report)
        check_order(line, report)
        check_by_stamps(line, tolerance_us, joints, report)
        check_by_wall(history.hits, tolerance_us, report)
        check_refusals(history, line, tolerance_us, joints, report)
    joints.check(report)
    return report
