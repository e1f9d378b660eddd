"""Time as an argument: a clock is anything with `now_us()`, integer microseconds since the Unix epoch.

Stores read it once per attempt, inside the atomic step, and never let it run backwards within one log. A caller's clock
is checked when it is given, and each reading is checked: nanoseconds taken for microseconds would make every window a
thousand times shorter.
"""

import time
from datetime import UTC, datetime, timedelta
from operator import index
from typing import Protocol

from capline.model.errors import InvalidTypeError, InvalidValueError, quoted

LATEST_US = 1 << 53
"""Every instant is before this one, in the year 2255: a double, and so a number in Lua, is exact up to here."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


class Clock(Protocol):
    """Where a store reads the time."""

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
    """A clock that stands still until it is moved: for tests, replays and simulations.

    It begins at `start_us` microseconds since 1970, or at `start`: ISO 8601 with its zone, or a `datetime` with one.
    Raises an `InvalidValueError` or `InvalidTypeError` for what is no instant between 1970 and 2255.

    >>> clock = ManualClock(start_us=1_000_000)
    >>> clock.advance_us(500); clock.now_us()
    1000500
    >>> clock = ManualClock(start="2026-11-21T16:00Z")
    >>> clock.advance(seconds=0.25); clock.now_us()
    1795276800250000
    """

    __slots__ = ("_now_us",)

    def __init__(self, start_us: int = 0, *, start: str | datetime | None = None) -> None:
        if start is not None and start_us:
            raise InvalidTypeError("a ManualClock begins at start_us or at start; give one of them")
        self._now_us = _instant(start_us if start is None else _instant_of(start))

    def __repr__(self) -> str:
        return f"ManualClock(start_us={self._now_us})"

    def now_us(self) -> int:
        """The instant that was last set."""
        return self._now_us

    def advance_us(self, n: int) -> None:
        """Move by n microseconds; a negative n steps back, as real clocks do."""
        if type(n) is not int:
            raise InvalidTypeError(
                f"advance_us takes whole microseconds as an int, not {quoted(n)}; see advance(seconds=…)"
            )
        self._now_us = _instant(self._now_us + n)

    def advance(self, seconds: float) -> None:
        """Move by so many seconds, to the nearest microsecond; a negative number steps back."""
        try:
            by_us = round(seconds * 1_000_000)
        except (TypeError, ValueError, OverflowError):
            raise InvalidTypeError(f"advance takes a number of seconds, not {quoted(seconds)}") from None
        self.advance_us(by_us)


class CheckedClock:
    """A caller's clock, of which each reading is checked; see `check_clock`."""

    __slots__ = ("_read",)

    def __init__(self, clock: Clock) -> None:
        self._read = clock.now_us

    def now_us(self) -> int:
        """The clock's reading; raises if it is not whole microseconds between 1970 and 2255. Takes some 0.1 µs."""
        now_us = self._read()
        if type(now_us) is int and 0 <= now_us < LATEST_US:
            return now_us
        try:
            return _instant(index(now_us))
        except TypeError:
            raise InvalidTypeError(
                f"the clock says {quoted(now_us)}: now_us() returns whole microseconds since 1970, as an int"
            ) from None
        except InvalidValueError:
            raise InvalidValueError(
                f"the clock says {quoted(now_us)}: now_us() returns microseconds since 1970, from 0 to {LATEST_US - 1}"
                f"{_unit_of(now_us)}"
            ) from None


def check_clock(clock: Clock) -> Clock:
    """Return the clock with every reading checked; raises `InvalidTypeError` for what is not a clock."""
    if type(clock) in (SystemClock, ManualClock, CheckedClock):
        return clock
    if isinstance(clock, type) or not callable(getattr(clock, "now_us", None)):
        raise InvalidTypeError(
            f"a clock is an object with now_us(), microseconds since 1970, not {quoted(clock)}; "
            "give SystemClock() or ManualClock(), or leave it out"
        )
    return CheckedClock(clock)


def _instant(value: int) -> int:
    if type(value) is not int:
        raise InvalidTypeError(f"a clock takes whole microseconds as an int, not {quoted(value)}")
    if not 0 <= value < LATEST_US:
        raise InvalidValueError(
            f"a clock stays between 0 and {LATEST_US - 1} microseconds since 1970, not {quoted(value)}"
        )
    return value


def _instant_of(start: str | datetime) -> int:
    """Microseconds since 1970 of ISO 8601 text or a `datetime`, with its zone."""
    wrong = InvalidTypeError
    if isinstance(start, (str, datetime)):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        wrong = InvalidValueError
        try:
            at = datetime.fromisoformat(start) if isinstance(start, str) else start
            if at.tzinfo is not None:
                return (at - _EPOCH) // _US
        except ValueError:
            pass
    raise wrong(f"start is an instant with its zone, like '2026-11-21T16:00Z', not {quoted(start)}")


def _unit_of(value: int) -> str:
    """A hint if the number looks like another unit: a present-day instant in nanoseconds."""
    return "; these look like nanoseconds, divide by 1000" if 10**18 <= value < 10**19 else ""
