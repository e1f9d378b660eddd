"""Segments by recency: where each customer stands on a given morning, from their purchases before it.

    new       first purchase 1 to 30 days ago
    active    not new, last purchase 1 to 90 days ago
    lapsing   last purchase 91 to 180 days ago
    churned   last purchase more than 180 days ago

A snapshot of day d knows only the purchases before day d, like a nightly job. So a customer who buys for the first time
on day d is in no segment until the next morning, and has the policy's plain `limits`.

The state is two integers a customer. A day costs one pass over them and four bitmaps: about 1 ms for 23,570 customers.
"""

from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from capline.model.limit import DAY_US
from capline.replay.events import ReplayError
from capline.segment import IdSet, Snapshot

NEW_DAYS = 30
ACTIVE_DAYS = 90
LAPSING_DAYS = 180

SEGMENTS = ("new", "active", "lapsing", "churned")

_NEVER = -1


class Recency:
    """First and last purchase of each customer, as days since 1970; fed in order of days.

    `ids` are the customers, ascending, each once.
    """

    __slots__ = ("_first", "_ids", "_known_to", "_last")

    def __init__(self, ids: NDArray[np.uint32]) -> None:
        self._ids = ids
        self._first = np.full(ids.size, _NEVER, np.int64)
        self._last = np.full(ids.size, _NEVER, np.int64)
        self._known_to = _NEVER

    def add(self, day: int, buyers: NDArray[np.uint32]) -> None:
        """Take in who bought on this day; a day before one already taken in raises `ReplayError`."""
        if day < self._known_to:
            raise ReplayError(f"purchases of day {day} come after those of day {self._known_to}; give days in order")
        self._known_to = day
        places = np.searchsorted(self._ids, buyers)
        self._first[places[self._first[places] == _NEVER]] = day
        self._last[places] = day

    def snapshot(self, day: int) -> Snapshot:
        """Make the segments of the morning of `day`: disjoint, and together everyone who bought before it.

        Raises `ReplayError` when purchases of that day or a later one were taken in: the morning cannot know them.
        """
        if self._known_to >= day:
            raise ReplayError(f"the morning of day {day} cannot know the purchases of day {self._known_to}")
        code = np.select(
            [
                self._first == _NEVER,
                day - self._first <= NEW_DAYS,
                day - self._last <= ACTIVE_DAYS,
                day - self._last <= LAPSING_DAYS,
            ],
            [0, 1, 2, 3],
            4,
        )
        sets = {name: IdSet.from_array(self._ids[code == number]) for number, name in enumerate(SEGMENTS, start=1)}
        morning = datetime.fromtimestamp(day * DAY_US // 1_000_000, UTC)
        return Snapshot(sets, version=f"{morning:%Y-%m-%d}", created_us=day * DAY_US)
