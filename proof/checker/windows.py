"""What was granted: no window over its quota, by the stamps and by wall time alone; stamps in their calls, in order.

First come, first served: who was decided later is stamped later, so nobody is given an instant before a slot that is
taken.

By wall time: more than the quota asked for and granted within less than one window is too much, wherever the stamps
are. This check is weaker than the one by stamps, and the only one that wrong stamps cannot deceive.
"""

from __future__ import annotations

from heapq import heappop, heappush
from operator import itemgetter
from typing import TYPE_CHECKING

from proof.checker.events import FOREVER_US
from proof.checker.timeline import NEVER

if TYPE_CHECKING:
    from proof.checker.hits import Hit
    from proof.checker.joints import Joints
    from proof.checker.report import Report
    from proof.checker.timeline import Timeline

__all__ = ["check_by_stamps", "check_by_wall", "check_order", "check_stamps"]


def check_stamps(line: Timeline, tolerance_us: int, report: Report) -> None:
    """Every hit was decided between its asking and its answer."""
    for hit in line.hits:
        if hit.late_us < hit.asked_us - tolerance_us or hit.early_us > hit.answered_us + tolerance_us:
            report.add(
                "stamp-outside-call",
                hit.attempt.line,
                f"{hit.stamp_us} is {hit.late_us - hit.asked_us} us after the asking and "
                f"{hit.answered_us - hit.early_us} us before the answer",
            )


def check_order(line: Timeline, report: Report) -> None:
    """Of two calls that do not overlap, the later one was decided later."""
    last: Hit | None = None
    for hit in line.hits:
        if hit.begins_us is not None:
            continue
        if last is not None and hit.answered_us < last.asked_us:
            report.add(
                "stamp-out-of-order",
                hit.attempt.line,
                f"{hit.stamp_us} was answered {last.asked_us - hit.answered_us} us before {last.stamp_us} was asked",
            )
        if last is None or hit.asked_us > last.asked_us:
            last = hit


def check_by_stamps(line: Timeline, tolerance_us: int, joints: Joints, report: Report) -> None:
    """Every hit, when it was recorded, fitted every limit beside the hits before it; a slot was the first that did.

    A charge need not have fitted. A slot of several logs is the first in one of them at least: `joints` is told what
    this log says of it.
    """
    least = _Least(line)
    # A slot that was moved is judged as of its move, beside those in front of it.
    for m, hit in sorted(enumerate(line.hits), key=lambda one: (one[1].early_us, one[0])):
        least.advance(hit.asked_us, min(hit.answered_us, hit.late_us + tolerance_us))
        charged = hit.attempt.verb == "charge"
        fits_us = NEVER if charged else line.fits_at(m, hit.units, hit.attempt.limits)
        if not hit.is_sure:
            continue
        if fits_us is None or fits_us > hit.stamp_us:
            when = "never" if fits_us is None else f"{fits_us - hit.stamp_us} us later"
            report.add("over-quota-by-stamps", hit.attempt.line, f"{hit.stamp_us} of {hit.units} units fits {when}")
            continue
        newest = line.newest(m)
        newest_us = NEVER if newest is None else newest.stamp_us
        if newest_us > hit.stamp_us:
            report.add(
                "queue-jumped", hit.attempt.line, f"{hit.stamp_us} is before {newest_us}, which was given before"
            )
        elif hit.attempt.verb == "schedule":
            _check_slot(line, hit, fits_us, newest_us, joints, report)
        if line.is_plain and hit.attempt.remaining is not None:
            _check_remaining(line, m, report)
    least.undo()


class _Least:
    """Lets each hit count for the least that it may have had when the next decision was made."""

    def __init__(self, line: Timeline) -> None:
        self._line = line
        values = [(value, i) for i, hit in enumerate(line.hits) for value in hit.values]
        self._begins = sorted(((value.from_us, i) for value, i in values), reverse=True)
        self._ends = sorted(((value.until_us, i) for value, i in values), reverse=True)
        self._since_us = self._now_us = 0

    def advance(self, asked_us: int, decided_us: int) -> None:
        """The next decision was made between these, and after those before it."""
        since_us = self._since_us = max(self._since_us, asked_us)
        now_us = self._now_us = max(self._now_us, decided_us, since_us)
        changed = set[int]()
        while self._begins and self._begins[-1][0] <= now_us:
            changed.add(self._begins.pop()[1])
        while self._ends and self._ends[-1][0] < since_us:
            changed.add(self._ends.pop()[1])
        for i in changed:
            self._line.set_units(i, min(self._line.hits[i].may_have(since_us, now_us)))

    def undo(self) -> None:
        """Let each count for what was granted."""
        for i, hit in enumerate(self._line.hits):
            self._line.set_units(i, hit.first_units)


def _check_slot(line: Timeline, hit: Hit, fits_us: int, newest_us: int, joints: Joints, report: Report) -> None:
    attempt = hit.attempt
    first_us = max(hit.early_us + attempt.not_before_us, fits_us, newest_us + 1)
    # Where hits are given back, the first free instant depends on when; a slot is behind those taken all the same. One
    # that is there at once is stamped as an attempt is; one that was asked for again by its id is nearer than it was.
    if hit.wait_us:
        is_late = hit.stamp_us > first_us and line.is_plain
        joints.placed(attempt, first=not is_late)
        is_wrong = hit.stamp_us < first_us or (is_late and attempt.joint is None)
    else:
        is_wrong = attempt.not_before_us > 0 and attempt.id is None
    if is_wrong:
        report.add("slot-not-first", attempt.line, f"{hit.stamp_us}, and the first free instant was {first_us}")
    if attempt.max_wait_us is not None and hit.wait_us > attempt.max_wait_us:
        report.add("slot-too-far", attempt.line, f"{hit.wait_us} us away, and {attempt.max_wait_us} us were asked for")


def _check_remaining(line: Timeline, m: int, report: Report) -> None:
    hit = line.hits[m]
    left = min(
        quota - hit.units - line.units_after(m, hit.stamp_us - window_us) for quota, window_us in hit.attempt.limits
    )
    if hit.attempt.verb == "charge":
        left = max(0, left)
    if left != hit.attempt.remaining:
        report.add("remaining-wrong", hit.attempt.line, f"{hit.attempt.remaining} were told, {left} remained")


def check_by_wall(hits: list[Hit], tolerance_us: int, report: Report) -> None:
    """For each window: whatever was asked for and answered within less than it is no more than its quota.

    Less by the tolerance, and by how far a run of hits in one instant is stamped ahead of it: a microsecond for each.
    Charges may pass it, and hits that were given back or settled are left out.
    """
    slack_us = tolerance_us + max((hit.late_us - hit.early_us for hit in hits), default=0)
    quotas: dict[int, int] = {}
    for limits in {hit.attempt.limits for hit in hits}:
        for quota, window_us in limits:
            quotas[window_us] = max(quotas.get(window_us, 0), quota)
    if not quotas:
        return
    known = [
        # A slot is used when it comes, not when it is given.
        (hit.asked_us + hit.wait_us, hit.answered_us + hit.wait_us, hit)
        for hit in hits
        if hit.answered_us < FOREVER_US and not hit.values and hit.is_sure and hit.attempt.verb != "charge"
    ]
    known.sort(key=itemgetter(0), reverse=True)
    for window_us, quota in quotas.items():
        bound = {limits for limits in {hit.attempt.limits for hit in hits} if any(w == window_us for _, w in limits)}
        within: list[tuple[int, int]] = []  # answered latest first: as the window moves back, these leave it for good
        units = 0
        for begin_us, end_us, hit in known:
            if hit.attempt.limits not in bound:
                continue
            heappush(within, (-end_us, hit.units))
            units += hit.units
            while within and -within[0][0] >= begin_us + window_us - slack_us:
                units -= heappop(within)[1]
            if units > quota:
                report.add(
                    "over-quota-by-wall",
                    hit.attempt.line,
                    f"{units} units granted in less than {window_us} us from {begin_us} on, the quota is {quota}",
                )
                break
