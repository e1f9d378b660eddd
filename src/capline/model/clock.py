"""Time as an argument: a clock is anything with `now_us()`, integer microseconds since the Unix epoch.

Stores read it once per attempt, inside the atomic step, and never let it run backwards within one log.
"""

from __future__ import annotations

import time
from typing import Protocol

from capline.model.errors import InvalidTypeError, InvalidValueError, quoted

__all__ = ["LATEST_US", "Clock", "ManualClock", "SystemClock"]

LATEST_US = 1 << 53
"""The last instant a stamp may name (the year 2255): the largest integer that a double still holds."""


class Clock(Protocol):
    """What a store asks for the time."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch; may step back, the logs do not."""
        ...


class SystemClock:
    """The machine's wall clock."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "SystemClock()"

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return time.time_ns() // 1000


class ManualClock:
    """A clock that stands still until told: for tests, replays and simulations.

    >>> clock = ManualClock(start_us=1_000_000)
    >>> clock.advance_us(500); clock.now_us()
    1000500
    """

    __slots__ = ("_now_us",)

    def __init__(self, start_us: int = 0) -> None:
        self._now_us = _instant(start_us)

    def __repr__(self) -> str:
        return f"ManualClock(start_us={self._now_us})"

    def now_us(self) -> int:
        """The instant that was last set."""
        return self._now_us

    def advance_us(self, n: int) -> None:
        """Move by n microseconds; a negative n steps back, as real clocks do."""
        self._now_us = _instant(self._now_us + n)


def _instant(value: int) -> int:
    if type(value) is not int:
        raise InvalidTypeError(f"a clock takes whole microseconds as an int, not {quoted(value)}")
    if not 0 <= value <= LATEST_US:
        raise InvalidValueError(f"a clock stays between 0 and {LATEST_US} microseconds since 1970, not {quoted(value)}")
    return value
