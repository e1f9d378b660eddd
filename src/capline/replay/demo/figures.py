"""The figures: a record as tables and series, each a pass over its columns.

Weeks are calendar weeks, Monday to Sunday (UTC), named by their Monday; the first and the last may be cut by the data.
A customer-week is one customer in one week in which at least one message was due to them.
"""

from datetime import UTC, datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

from capline.model.limit import DAY_US, Limit
from capline.replay.demo.messages import EPOCH_WEEKDAY, MESSAGES
from capline.replay.demo.recency import SEGMENTS
from capline.replay.demo.record import Record

NO_SEGMENT = "(none yet)"
"""The name for those in no segment: customers on the day of their first purchase."""


class Line(msgspec.Struct, frozen=True):
    """A row of a table: `asked` = `sent` + the sum of `refused`, which counts by the limit that refused."""

    name: str
    asked: int
    sent: int
    refused: dict[str, int]


class Week(msgspec.Struct, frozen=True):
    """One week: `refused` by the window of the limit that refused, `people` by segment on its last morning."""

    monday: str
    sent: int
    refused: dict[str, int]
    people: dict[str, int]


class Figures(msgspec.Struct, frozen=True):
    """What the demo shows. `without_caps` and `with_caps`: messages a customer-week -> how many customer-weeks.

    `windows` are the limits without their quotas: `day`, `calendar-day`; for quiet hours, the hours.
    """

    segments: tuple[Line, ...]
    messages: tuple[Line, ...]
    total: Line
    windows: tuple[str, ...]
    weeks: tuple[Week, ...]
    without_caps: dict[int, int]
    with_caps: dict[int, int]


def figures_of(record: Record, people_of_day: dict[int, dict[str, int]]) -> Figures:
    """Work out the figures; `people_of_day` has the size of each segment on each morning, by day since 1970."""
    segment_names = (NO_SEGMENT, *SEGMENTS)
    week = (record.at_us // DAY_US + EPOCH_WEEKDAY) // 7
    without_caps, with_caps = _per_customer_week(record, week)
    return Figures(
        tuple(_line(record, record.codes == code, name) for code, name in enumerate(segment_names)),
        tuple(_line(record, record.kinds == kind, message.name) for kind, message in enumerate(MESSAGES)),
        _line(record, np.ones(len(record), np.bool_), "all"),
        tuple(dict.fromkeys(map(_window, sorted(record.limits, key=lambda limit: (limit.window_us, str(limit)))))),
        tuple(
            _week(record, week == number, number, people_of_day)
            for number in range(int(week.min()), int(week.max()) + 1)
        ),
        without_caps,
        with_caps,
    )


def day_text(day: int) -> str:
    """Write a day since 1970 as an ISO date."""
    return f"{datetime.fromtimestamp(day * DAY_US // 1_000_000, UTC):%Y-%m-%d}"


def by_window(line: Line, window: str) -> int:
    """Count those of the line that were refused by limits over this window."""
    return sum(count for limit, count in line.refused.items() if (limit.partition("/")[2] or limit) == window)


def limit_name(window: str) -> str:
    """Name a limit by its window, as people do: "day limit", "2-week limit"."""
    if window.startswith("not "):
        return window
    count, _, unit = window.partition(" ")
    return f"{count}-{unit.removesuffix('s')} limit" if unit else f"{window} limit"


def _window(limit: Limit) -> str:
    return str(limit).partition("/")[2] or str(limit)


def _line(record: Record, rows: NDArray[np.bool_], name: str) -> Line:
    refused = np.bincount(record.limit[rows] + 1, minlength=len(record.limits) + 1).tolist()
    by_limit = {str(limit): count for limit, count in zip(record.limits, refused[1:], strict=True) if count}
    return Line(name, int(rows.sum()), int(refused[0]), by_limit)


def _week(record: Record, rows: NDArray[np.bool_], number: int, people_of_day: dict[int, dict[str, int]]) -> Week:
    counts = np.bincount(record.limit[rows] + 1, minlength=len(record.limits) + 1).tolist()
    refused: dict[str, int] = {}
    for limit, count in zip(record.limits, counts[1:], strict=True):
        window = _window(limit)
        refused[window] = refused.get(window, 0) + count
    monday = number * 7 - EPOCH_WEEKDAY
    mornings = [day for day in range(monday, monday + 7) if day in people_of_day]
    return Week(day_text(monday), int(counts[0]), refused, people_of_day[mornings[-1]] if mornings else {})


def _per_customer_week(record: Record, week: NDArray[np.int64]) -> tuple[dict[int, int], dict[int, int]]:
    """Count the customer-weeks by messages due, and by messages sent."""
    _, place = np.unique(record.subjects.astype(np.int64) * (int(week.max()) + 1) + week, return_inverse=True)
    due = np.bincount(place)
    sent = np.bincount(place, weights=record.allowed, minlength=due.size).astype(np.int64)
    return _histogram(due), _histogram(sent)


def _histogram(counts: NDArray[np.int64]) -> dict[int, int]:
    values, times = np.unique(counts, return_counts=True)
    return dict(zip(values.tolist(), times.tolist(), strict=True))
