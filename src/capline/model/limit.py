"""A limit: `quota` units in any `window`, and the text that people write for it.

    3/day    100/minute    5 per 10s    1/250ms    10/7 days

Equal limits are equal however they were written: `10/7 days` is `10/week`, and prints so. Months and years have no
fixed length and are refused; `30 days` says what is meant.
"""

from __future__ import annotations

import re

import msgspec

from capline.model.errors import InvalidTypeError, InvalidValueError

__all__ = ["LARGEST_QUOTA", "LONGEST_WINDOW_US", "Limit", "duration_text", "window_text"]

LARGEST_QUOTA = (1 << 53) - 1
"""Units are exact in a double, so in a Lua number, up to here."""

LONGEST_WINDOW_US = 10 * 366 * 86_400_000_000
"""Ten years: beyond it a window is a slip of units."""

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
_FORM = re.compile(r"\s*([0-9][0-9_]*)\s*(?:/|\bper\b)\s*([0-9][0-9_]*)?\s*([^\W\d_]+)\s*", re.IGNORECASE)
_LONGEST_TEXT = 64


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
                f"a limit takes whole numbers: quota={self.quota!r}, window_us={self.window_us!r}; "
                "for text use Limit.parse('3/day')",
            )
        if not 0 <= self.quota <= LARGEST_QUOTA:
            raise InvalidValueError(f"a quota is 0 to {LARGEST_QUOTA} units, not {self.quota}")
        if not 1 <= self.window_us <= LONGEST_WINDOW_US:
            raise InvalidValueError(f"a window is 1 microsecond to 3,660 days, not {self.window_us} microseconds")

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read `quota/window` or `quota per window`; raises an error that says the mend."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidTypeError(f"a limit is text like '3/day', not {text!r}")
        match = _FORM.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
        if match is None:
            raise InvalidValueError(
                f"limit {text[:_LONGEST_TEXT]!r} is not 'quota/window'; "
                "write it like '3/day', '100/minute' or '5 per 10s'",
            )
        quota, count, word = match.groups()
        unit = _SPELLINGS.get(word.lower())
        if unit is None:
            raise InvalidValueError(
                f"limit {text!r}: unknown unit {word!r}; use us, ms, second, minute, hour, day or week "
                "(a month has no fixed length: write '30 days')",
            )
        try:
            return cls(int(quota), int(count or 1) * _UNITS_US[unit])
        except InvalidValueError as error:
            raise InvalidValueError(f"limit {text!r}: {error}") from None

    def __str__(self) -> str:
        """The shortest text that parses back to an equal limit."""
        return f"{self.quota}/{window_text(self.window_us)}"


def duration_text(span_us: int) -> str:
    """A span for people: `0.25 s`, `40 s`, `2 h 14 min`, `13 d 5 h`; never shorter than it is."""
    if span_us < 120 * _UNITS_US["second"]:
        return f"{span_us / 1e6:.6g} s"
    minutes = -(-span_us // _UNITS_US["minute"])
    days, minutes = divmod(minutes, 1440)
    hours, minutes = divmod(minutes, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    first = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def window_text(window_us: int) -> str:
    """Name a window: `day`, `2 days`, `10s`, `250ms`."""
    unit = max((name for name, us in _UNITS_US.items() if window_us % us == 0), key=_UNITS_US.__getitem__)
    count = window_us // _UNITS_US[unit]
    if unit in ("us", "ms"):
        return f"{count}{unit}"
    if count == 1:
        return unit
    return f"{count}{_SHORT[unit]}" if unit in _SHORT else f"{count} {unit}s"
