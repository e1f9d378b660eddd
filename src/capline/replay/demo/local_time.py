"""Midnights and times of day for the recount, by the standard library alone: a check on capline's own tables."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np

from capline.model.limit import DAY_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.model.limit import QuietHours

_SECOND_US = 1_000_000
_BEFORE = 8
"""Days before the first one asked for, so that a Monday is among them."""


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
