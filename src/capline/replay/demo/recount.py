"""The recount: checks a run by counting, from its record alone.

The limiter decides by position, looking at one stamp per limit. Here every window is counted, for every decision:

    a send at t      under each of its limits (q, W), that subject's sends in (t - W, t], itself included, are at most q
    a refusal at t   under the limit it names, that subject's sends in (t - W, t] are q or more: the window was full
    calendar limits  the same, counted from the last midnight, or Monday, in the policy's time zone
    quiet hours      no send in them; a refusal by them only in them

A window that is over its quota at any instant is over it at the send that filled it: checking the sends finds every
one.

Midnights and times of day are by the standard library alone, a check on capline's own tables. Only a log of every hit
can be counted out: policies of other algorithms, or whose refusals count, are refused (`check_countable`).

All sends are sorted once, as `subject * SPAN + stamp`, which makes "how many of this subject since then" one binary
search over one array; some 0.2 µs a decision and limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import numpy as np

from capline.model.limit import DAY_US, CalendarLimit, QuietHours
from capline.model.zone import UTC_ZONE
from capline.replay.events import ReplayError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.model.limit import Limit
    from capline.model.policy import Policy
    from capline.replay.demo.record import Record

_SECOND_US = 1_000_000
_BEFORE = 8
"""Days before the first one asked for, so that a Monday is among them."""


class Recount(msgspec.Struct, frozen=True):
    """What counting found; `holds` when no window was over its quota and every refusal was justified.

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


def check_countable(policy: Policy) -> None:
    """Raise `ReplayError` for a policy whose decisions cannot be counted out from a record of sends."""
    if policy.algorithm != "sliding_log":
        raise ReplayError(
            f"policy {policy.name!r} is {policy.algorithm}, whose windows cannot be counted out from sends; "
            "take sliding_log, or replay it with: capline replay"
        )
    if policy.count_denied:
        raise ReplayError(
            f"policy {policy.name!r} counts refusals too, so its windows cannot be counted out from sends; "
            "leave count_denied out, or replay it with: capline replay"
        )


def recount(record: Record, limits_of: Sequence[Sequence[Limit]], zone: str = UTC_ZONE) -> Recount:
    """Count every window of the record; `limits_of[code]` are the limits that held for that segment code.

    `zone` is where all subjects are, for calendar limits and quiet hours.
    """
    if not len(record):
        return Recount(0, 0, 0, {})
    rows = _rows(record, max(limit.reach_us for limits in limits_of for limit in limits), zone)
    over = unjustified = windows = 0
    fullest: dict[str, int] = {}
    for code, limits in enumerate(limits_of):
        sent = np.flatnonzero(rows.allowed & (rows.codes == code))
        for limit in limits:
            windows += sent.size
            if isinstance(limit, QuietHours):
                over += int(is_quiet(rows.at_us[sent], limit, zone).sum())
                continue
            found = rows.before(sent, limit) + 1
            over += int((found > limit.quota).sum())
            if sent.size:
                fullest[str(limit)] = max(fullest.get(str(limit), 0), int(found.max()))
    for index, limit in enumerate(record.limits):
        refused = np.flatnonzero(rows.limit == index)
        windows += refused.size
        unjustified += int((~rows.shut(refused, limit)).sum())
    return Recount(windows, over, unjustified, fullest)


class _Rows(NamedTuple):
    """The decisions by subject; `sent_before` is how many of all sends precede each.

    All subjects are on one number line: instant t of a row's subject is at `base + t`. `sends` are places on it.
    """

    allowed: NDArray[np.bool_]
    codes: NDArray[np.uint8]
    limit: NDArray[np.int16]
    at_us: NDArray[np.int64]
    base: NDArray[np.int64]
    sends: NDArray[np.int64]
    sent_before: NDArray[np.int64]
    zone: str

    def before(self, rows: NDArray[np.intp], limit: Limit) -> NDArray[np.int64]:
        """How many sends before each of these rows are within the limit's window: a hit exactly that old is out."""
        at_us = self.at_us[rows]
        if isinstance(limit, CalendarLimit) and rows.size:
            mondays = limit.window_us > DAY_US
            begins_us = midnights_us(self.zone, int(at_us.min()), int(at_us.max()), mondays=mondays)
            since_us = begins_us[np.searchsorted(begins_us, at_us, side="right") - 1] - 1
        else:
            since_us = at_us - limit.window_us
        return self.sent_before[rows] - np.searchsorted(self.sends, self.base[rows] + since_us, side="right")

    def shut(self, rows: NDArray[np.intp], limit: Limit) -> NDArray[np.bool_]:
        """Whether this limit had no room at each of these rows."""
        if isinstance(limit, QuietHours):
            return is_quiet(self.at_us[rows], limit, self.zone)
        return self.before(rows, limit) >= limit.quota


def _rows(record: Record, widest_us: int, zone: str) -> _Rows:
    # The order of decisions within a subject: what is counted for a row is what was decided before it.
    order = np.argsort(record.subjects, kind="stable")
    _, subject = np.unique(record.subjects[order], return_inverse=True)
    allowed = record.allowed[order]
    origin_us = int(record.at_us.min())
    # Between two subjects there is room for every stamp, and for a window to reach back before the first one.
    span_us = int(max(record.at_us.max(), record.hit.max())) - origin_us + 2 * widest_us + 2
    base = subject.astype(np.int64) * span_us + widest_us + 1 - origin_us
    sends = (base + record.hit[order])[allowed]
    sent_before = np.cumsum(allowed) - allowed
    at_us = _moments(base + record.at_us[order], sends, sent_before) - base
    return _Rows(allowed, record.codes[order], record.limit[order], at_us, base, sends, sent_before, zone)


def _moments(at_us: NDArray[np.int64], sends: NDArray[np.int64], sent_before: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the instant that each row was judged at: its own, or just after the subject's newest send if that is later.

    Within one subject stamps strictly increase, so of messages due at one instant the second is judged a microsecond
    later. The send before a subject's first is another subject's, and lies below everything of this one.
    """
    newest = np.concatenate((np.array([-1], np.int64), sends))[sent_before]
    return np.maximum(at_us, newest + 1)


def midnights_us(zone: str, first_us: int, last_us: int, *, mondays: bool = False) -> NDArray[np.int64]:
    """When each day there began, or each week, from the last one before the first instant to the last instant."""
    where = ZoneInfo(zone)
    day = datetime.fromtimestamp(first_us // _SECOND_US, where).date() - timedelta(days=_BEFORE)
    last = datetime.fromtimestamp(last_us // _SECOND_US, where).date() + timedelta(days=1)
    found: set[int] = set()
    while day <= last:
        if not mondays or day.weekday() == 0:
            found.add(_midnight_us(day, where))
        day += timedelta(days=1)
    return np.array(sorted(found), np.int64)


def is_quiet(at_us: NDArray[np.int64], hours: QuietHours, zone: str) -> NDArray[np.bool_]:
    """Whether the clock there shows quiet hours at each instant; they begin and end with a whole second."""
    where = ZoneInfo(zone)
    seconds, place = np.unique(at_us // _SECOND_US, return_inverse=True)
    shown = [datetime.fromtimestamp(second, where) for second in seconds.tolist()]
    clock_us = np.array([(at.hour * 3600 + at.minute * 60 + at.second) * _SECOND_US for at in shown], np.int64)
    return ((clock_us - hours.from_us) % DAY_US < hours.window_us)[place]


def _midnight_us(day: date, where: ZoneInfo) -> int:
    """The day's first midnight; the instant of the change where the zone skips midnight, or the whole day."""
    return round(datetime(day.year, day.month, day.day, tzinfo=where).astimezone(UTC).timestamp()) * _SECOND_US
