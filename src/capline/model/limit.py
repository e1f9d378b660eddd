"""A limit: `quota` units in any `window`, and the text that people write for it.

    3/day    100/minute    5 per 10s    1/250ms    10/7 days    rolling: the last so many microseconds
    3/calendar-day    10/calendar-week                          since midnight, since Monday, where the subject is
    gap 30 minutes                                              at least so long between two hits: 1/30 minutes
    not between 22:00 and 08:00                                 quiet hours where the subject is

Equal limits are equal however they were written: `10/7 days` is `10/week`, and prints so. Months and years have no
fixed length and are refused; `30 days` says what is meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

from capline.model.errors import InvalidTypeError, InvalidValueError, quoted

LARGEST_QUOTA = (1 << 53) - 1
"""Units are exact in a double, so in a Lua number, up to here."""

LONGEST_WINDOW_US = 10 * 366 * 86_400_000_000
"""Ten years: beyond it a window is a slip of units."""

DAY_US = 86_400_000_000

CALENDAR_SLACK_US = 26 * 3_600_000_000
"""How much longer than its name a calendar's day or week can be: clocks are set back, once by a whole day."""

_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SPELLINGS = {
    **{name: name for name in _UNITS_US},
    **{f"{name}s": name for name in ("second", "minute", "hour", "day", "week")},
    "usec": "us",
    "microsecond": "us",
    "microseconds": "us",
    "µs": "us",
    "msec": "ms",
    "millisecond": "ms",
    "milliseconds": "ms",
    "s": "second",
    "sec": "second",
    "secs": "second",
    "m": "minute",
    "min": "minute",
    "mins": "minute",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "d": "day",
    "w": "week",
}
_SHORT = {"second": "s", "minute": "min", "hour": "h"}
_NUMBER = "([0-9]+(?:_[0-9]+)*)"
"""Digits, and between two of them an underscore: exactly what `int` reads."""
_FORM = re.compile(rf"\s*{_NUMBER}\s*(?:/|per)\s*{_NUMBER}?\s*([^\W\d_]+)\s*", re.IGNORECASE)
_SPAN = re.compile(rf"\s*{_NUMBER}?\s*([^\W\d_]+)\s*")
_GAP = re.compile(r"\s*(?:minimum\s+)?gap\s+(?:of\s+)?(.+)", re.IGNORECASE)
_CALENDAR = re.compile(rf"\s*{_NUMBER}\s*(?:/|per)\s*calendar[- ](day|week)\s*", re.IGNORECASE)
_QUIET = re.compile(r"\s*not\s+between\s+([0-9]{1,2}):([0-9]{2})\s+and\s+([0-9]{1,2}):([0-9]{2})\s*", re.IGNORECASE)
_SEPARATORS = re.compile("[;,|]")
_USUAL_DAYS = {"month": 30, "months": 30, "year": 365, "years": 365}
_LONGEST_TEXT = 64
MOST_IN_TEXT = 32
"""So many limits one text may list."""


class Limit(msgspec.Struct, frozen=True, gc=False):
    """At most `quota` units in any window of `window_us` microseconds; a hit exactly that old is out.

    A quota of 0 always refuses. A limit is immutable, hashable, and valid once built; bad values raise a `CaplineError`
    that is also a `ValueError` or `TypeError`.

    >>> Limit.parse("10/7 days") == Limit(10, 604_800_000_000)
    True
    >>> str(Limit.parse("5 per 10s"))
    '5/10s'
    """

    quota: int
    window_us: int

    def __post_init__(self) -> None:
        if type(self.quota) is not int or type(self.window_us) is not int:
            raise InvalidTypeError(
                f"a limit takes whole numbers: quota={quoted(self.quota)}, window_us={quoted(self.window_us)}; "
                "for text use Limit.parse('3/day')"
            )
        if not 0 <= self.quota <= LARGEST_QUOTA:
            raise InvalidValueError(f"a quota is 0 to {LARGEST_QUOTA} units, not {quoted(self.quota)}")
        if not 1 <= self.window_us <= LONGEST_WINDOW_US:
            raise InvalidValueError(
                f"a window is 1 microsecond to 3,660 days, not {quoted(self.window_us)} microseconds"
            )

    @classmethod
    def parse(cls, text: str, *, approximate: bool = False) -> Limit:
        """Read a limit of any kind, as the module's text has them; raises an error that says the fix.

        `approximate` takes months and years too, as 30 and 365 days.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidTypeError(f"a limit is text like '3/day', not {quoted(text)}")
        try:
            return _parse(text, approximate)
        except InvalidValueError as error:
            raise InvalidValueError(f"limit {text[:_LONGEST_TEXT]!r}: {error}") from None

    @classmethod
    def parse_many(cls, text: str, *, approximate: bool = False) -> tuple[Limit, ...]:
        """Read limits separated by `;`, `,` or `|`, as the package `limits` writes them; raises as `parse` does.

        `approximate` takes months and years too, as 30 and 365 days.

        >>> Limit.parse_many("5/15 minutes; 100 per hour")[1] == Limit(100, 3_600_000_000)
        True
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidTypeError(f"limits are text like '5/minute;100/hour', not {quoted(text)}")
        parts = _SEPARATORS.split(text, MOST_IN_TEXT)
        if len(parts) > MOST_IN_TEXT:
            raise InvalidValueError(f"more than {MOST_IN_TEXT} limits in one text; a policy has a few")
        return tuple(cls.parse(part, approximate=approximate) for part in parts)

    @classmethod
    def margin(cls, text: str, *, jitter: str, cost: int = 1) -> tuple[Limit, ...]:
        """The limits that keep a provider with this rolling limit from refusing, if the delay varies by up to `jitter`.

        Calls are counted here when they leave and there when they arrive. So the window is widened by the jitter, and a
        second limit spaces the calls, at nine tenths of their even distance. The price is the jitter's share of the
        window. `cost` is the most units of one call, as of tokens: the second limit then lets twice as many pass at
        once, since calls of different costs do not fill a step. See docs/howto/waiting.md. Raises as `parse` does.

        >>> Limit.margin("20/s", jitter="30ms")
        (Limit.parse('20/1030ms'), Limit.parse('1/45ms'))
        >>> Limit.margin("100000/min", jitter="1s", cost=4_000)
        (Limit.parse('100000/61s'), Limit.parse('8000/4320ms'))
        """
        if type(cost) is not int:
            raise InvalidTypeError(f"cost is the most units that one call takes, a whole number, not {quoted(cost)}")
        strict = cls.parse(text)
        if isinstance(strict, (CalendarLimit, QuietHours)):
            raise InvalidValueError(f"limit {text!r}: a margin is for a rolling limit, like '20/s'")
        wide = Limit(strict.quota, strict.window_us + parse_span(jitter, "jitter"))
        if not 1 <= cost <= max(1, strict.quota):
            raise InvalidValueError(f"limit {text!r}: a call takes 1 to {strict.quota} units, not {quoted(cost)}")
        step = 1 if cost == 1 else 2 * cost
        apart_us = strict.window_us * 9 * step // (10 * strict.quota) if strict.quota > step else 0
        return (wide, Limit(step, apart_us)) if apart_us else (wide,)

    @property
    def reach_us(self) -> int:
        """The age at which a hit can never count again: how long hits must be kept for this limit."""
        return self.window_us

    @property
    def needs_zone(self) -> bool:
        """Whether it depends on the subject's local time."""
        return False

    def __str__(self) -> str:
        """The shortest text that parses back to an equal limit."""
        return f"{self.quota}/{window_text(self.window_us)}"

    def __repr__(self) -> str:
        return f"Limit.parse({str(self)!r})"


class CalendarLimit(Limit, frozen=True, gc=False):
    """At most `quota` units in a day, or a week from Monday on, of the calendar where the subject is.

    A day begins when its midnight first strikes there. `window_us` is the usual length.
    """

    def __post_init__(self) -> None:
        Limit.__post_init__(self)
        if self.window_us not in _PERIODS:
            raise InvalidValueError("a calendar's period is a day or a week: '3/calendar-day', '10/calendar-week'")

    @property
    def reach_us(self) -> int:
        """A period may be longer than usual where clocks are set back."""
        return self.window_us + CALENDAR_SLACK_US

    @property
    def needs_zone(self) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return f"{self.quota}/calendar-{_PERIODS[self.window_us]}"


class QuietHours(Limit, frozen=True, gc=False):
    """No hit while the clock where the subject is shows `from_us` or later but not yet `until_us`, since midnight.

    It reads the clock and not the log. Its quota is 0, its window the length of the hours. If clocks are set back into
    the hours, these last longer.
    """

    from_us: int
    until_us: int

    def __post_init__(self) -> None:
        Limit.__post_init__(self)
        whole = 0 <= self.from_us < DAY_US and 0 <= self.until_us < DAY_US and self.from_us != self.until_us
        if not whole or self.quota or self.window_us != (self.until_us - self.from_us) % DAY_US:
            raise InvalidValueError("quiet hours are two times of day: 'not between 22:00 and 08:00'")

    @classmethod
    def between(cls, from_us: int, until_us: int) -> QuietHours:
        """Quiet from this time of the day until that one, in microseconds since midnight; over midnight too."""
        return cls(0, (until_us - from_us) % DAY_US or DAY_US, from_us, until_us)

    @property
    def needs_zone(self) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return f"not between {_clock_text(self.from_us)} and {_clock_text(self.until_us)}"


class _Owned:
    """Says whose it is, among the limits of several policies."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self.owner}{_OF}{super().__str__()}"  # type: ignore[attr-defined]


class OwnedLimit(_Owned, Limit, frozen=True, gc=False):
    """A limit of one of several policies."""

    owner: str


class _OwnedCalendar(_Owned, CalendarLimit, frozen=True, gc=False):
    owner: str


class _OwnedHours(_Owned, QuietHours, frozen=True, gc=False):
    owner: str


OWNED: dict[type[Limit], Callable[..., Limit]] = {
    Limit: OwnedLimit,
    CalendarLimit: _OwnedCalendar,
    QuietHours: _OwnedHours,
}
"""What says whose it is, by what it is of."""
_OF = ": "


def limit_of_text(text: str) -> Limit:
    """What was printed, with its owner if it has one: `global: 3/day`."""
    owner, _, own = text.rpartition(_OF)
    limit = Limit.parse(own)
    return OWNED[type(limit)](*msgspec.structs.astuple(limit), owner) if owner else limit


_PERIODS = {DAY_US: "day", 7 * DAY_US: "week"}


def _parse(text: str, approximate: bool) -> Limit:
    if len(text) > _LONGEST_TEXT:
        raise InvalidValueError("it is too long; write it like '3/day'")
    quiet = _QUIET.fullmatch(text)
    if quiet is not None:
        return QuietHours.between(_clock_us(*quiet.group(1, 2)), _clock_us(*quiet.group(3, 4)))
    calendar = _CALENDAR.fullmatch(text)
    gap = _GAP.fullmatch(text)
    if calendar is not None:
        return CalendarLimit(int(calendar[1]), _UNITS_US[calendar[2].lower()])
    if gap is not None:
        return Limit(1, parse_span(gap[1], "gap"))
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidValueError(
            "it is not 'quota/window'; write it like '3/day', '100/minute', '5 per 10s', '3/calendar-day', "
            "'gap 30 minutes' or 'not between 22:00 and 08:00'"
        )
    days = _USUAL_DAYS.get(match[3].lower())
    if days is not None and approximate:
        return Limit(int(match[1]), int(match[2] or 1) * days * DAY_US)
    try:
        return Limit(int(match[1]), _span_us(match[2], match[3]))
    except InvalidValueError as error:
        raise InvalidValueError(f"{error}{', or parse it with approximate=True' if days else ''}") from None


def parse_span(text: str, what: str) -> int:
    """A span such as `30 minutes`, `1min` or `250ms` in microseconds; raises an error that names `what`."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidTypeError(f"{what} is text like '1min', not {quoted(text)}")
    span = _SPAN.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if span is None:
        raise InvalidValueError(
            f"{what}: {text[:_LONGEST_TEXT]!r} is not a span; write it like '30 minutes' or '500ms'"
        )
    try:
        span_us = _span_us(*span.groups())
    except InvalidValueError as error:
        raise InvalidValueError(f"{what}: {error}") from None
    if not 1 <= span_us <= LONGEST_WINDOW_US:
        raise InvalidValueError(f"{what} is 1 microsecond to 3,660 days, not {text[:_LONGEST_TEXT]!r}")
    return span_us


def _span_us(count: str | None, word: str) -> int:
    unit, days = _SPELLINGS.get(word.lower()), _USUAL_DAYS.get(word.lower())
    if days is not None:
        raise InvalidValueError(
            f"a {word.lower().removesuffix('s')} has no fixed length; write '{int(count or 1) * days} days'"
        )
    if unit is None:
        raise InvalidValueError(
            f"unknown unit {word!r}; use us, ms, second, minute, hour, day or week "
            "(a month has no fixed length: write '30 days')"
        )
    return int(count or 1) * _UNITS_US[unit]


def _clock_us(hours: str, minutes: str) -> int:
    time_us = int(hours) * _UNITS_US["hour"] + int(minutes) * _UNITS_US["minute"]
    if time_us > DAY_US or int(minutes) * _UNITS_US["minute"] >= _UNITS_US["hour"]:
        raise InvalidValueError(f"{hours}:{minutes} is no time of day; 00:00 to 24:00")
    return time_us % DAY_US


def _clock_text(time_us: int) -> str:
    hours, minutes = divmod(time_us // _UNITS_US["minute"], 60)
    return f"{hours:02}:{minutes:02}"


def duration_text(span_us: int) -> str:
    """A span for people: `0.25 s`, `40 s`, `2 h 14 min`, `13 d 5 h`; rounded up from two minutes on."""
    if span_us < 120 * _UNITS_US["second"]:
        return f"{span_us / 1e6:.6g} s"
    minutes = -(-span_us // _UNITS_US["minute"])
    days, minutes = divmod(minutes, 1440)
    hours, minutes = divmod(minutes, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


@lru_cache(1024)
def window_text(window_us: int) -> str:
    """Name a window: `day`, `2 days`, `10s`, `250ms`."""
    unit = max((name for name, us in _UNITS_US.items() if window_us % us == 0), key=_UNITS_US.__getitem__)
    count = window_us // _UNITS_US[unit]
    if unit in ("us", "ms"):
        return f"{count}{unit}"
    if count == 1:
        return unit
    return f"{count}{_SHORT[unit]}" if unit in _SHORT else f"{count} {unit}s"
