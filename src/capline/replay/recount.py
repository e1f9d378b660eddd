"""The recount: a run judged once more, by counting, from its record alone.

The limiter decides by position, looking at one stamp per limit. Here every window is counted out, for every decision:

    a send at t      under each of its limits (q, W), that subject's sends in (t - W, t], itself included, are at most q
    a refusal at t   under the limit it names, that subject's sends in (t - W, t] are q or more: it really was full

A window that is over its quota at any instant is over it at the send that filled it: looking at sends sees every one.

All sends are sorted once, as `subject * SPAN + stamp`, which makes "how many of this subject since then" one binary
search over one array; some 0.2 µs a decision and limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from capline.model.limit import Limit
    from capline.replay.record import Record

__all__ = ["Recount", "recount"]


class Recount(msgspec.Struct, frozen=True):
    """What counting found; `holds` when nobody had one too many and every refusal was due.

    `windows` is how many were counted out, `fullest` the most that was found in one window of each limit.
    """

    windows: int
    over: int
    unjustified: int
    fullest: dict[str, int]

    @property
    def holds(self) -> bool:
        """Nobody had one too many, and every refusal was due."""
        return not self.over and not self.unjustified


def recount(record: Record, limits_of: Sequence[Sequence[Limit]]) -> Recount:
    """Count every window of the record; `limits_of[code]` are the limits that held for that segment code."""
    if not len(record):
        return Recount(0, 0, 0, {})
    # The order of decisions within a subject: what is counted for a row is what was decided before it.
    order = np.argsort(record.subjects, kind="stable")
    _, subject = np.unique(record.subjects[order], return_inverse=True)
    allowed, codes, limit = record.allowed[order], record.codes[order], record.limit[order]
    origin_us = int(record.at_us.min())
    widest_us = max(one.window_us for limits in limits_of for one in limits)
    # Between two subjects there is room for every stamp, and for a window to reach back before the first one.
    span_us = int(max(record.at_us.max(), record.hit.max())) - origin_us + 2 * widest_us + 2
    base = subject.astype(np.int64) * span_us + widest_us + 1
    sends = (base + record.hit[order] - origin_us)[allowed]
    sent_before = np.cumsum(allowed) - allowed
    moment = _moments(base + record.at_us[order] - origin_us, sends, sent_before)

    over = unjustified = windows = 0
    fullest: dict[str, int] = {}
    for code, limits in enumerate(limits_of):
        rows = np.flatnonzero(allowed & (codes == code))
        for one in limits:
            counted = _in_window(sends, moment[rows], sent_before[rows], one) + 1
            over += int((counted > one.quota).sum())
            windows += rows.size
            if rows.size:
                fullest[str(one)] = max(fullest.get(str(one), 0), int(counted.max()))
    for index, one in enumerate(record.limits):
        rows = np.flatnonzero(limit == index)
        unjustified += int((_in_window(sends, moment[rows], sent_before[rows], one) < one.quota).sum())
        windows += rows.size
    return Recount(windows, over, unjustified, fullest)


def _moments(asked: NDArray[np.int64], sends: NDArray[np.int64], sent_before: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the instant that each row was judged at: its own, or just after the subject's newest send if that is later.

    Within one subject stamps strictly increase, so of messages due at one instant the second is judged a microsecond
    later. The send before a subject's first is another subject's, and lies below everything of this one.
    """
    newest = np.concatenate((np.array([-1], np.int64), sends))[sent_before]
    return np.maximum(asked, newest + 1)


def _in_window(
    sends: NDArray[np.int64],
    moment: NDArray[np.int64],
    sent_before: NDArray[np.int64],
    limit: Limit,
) -> NDArray[np.int64]:
    """Count the sends before each row that are younger than the window: a hit exactly that old is out."""
    return sent_before - np.searchsorted(sends, moment - limit.window_us, side="right")
