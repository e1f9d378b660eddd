"""Times as they stand in files of events: ISO 8601, or seconds since 1970 with or without a fraction."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from capline.model.clock import LATEST_US
from capline.model.errors import InvalidValueError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
_SECONDS = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,6})0*)?")
_HOUR_24 = re.compile(r"[^\d:.+W-]24")
"""24:00, which only Python 3.14 and later read: refused, so that a file means the same everywhere."""
_LONGEST_SHOWN = 40


@lru_cache(maxsize=4096)
def read_time_us(text: str, name: str = "time") -> int:
    """Read an ISO 8601 date or time, or seconds since 1970, as microseconds since 1970; raises `InvalidValueError`.

    Without an offset a time is in UTC.
    """
    seconds = _SECONDS.fullmatch(text.strip())
    if seconds:
        at_us = int(seconds[1]) * 1_000_000 + int((seconds[2] or "").ljust(6, "0"))
        if at_us > LATEST_US:
            raise InvalidValueError(
                f"{name} {text!r} is past the year 2255; numbers are seconds since 1970, not milliseconds"
            )
        return at_us
    try:
        at = datetime.fromisoformat("" if _HOUR_24.search(text) else text.strip())
    except ValueError:
        raise InvalidValueError(
            f"{name} {shown(text)} is neither ISO 8601, like 2025-03-01T16:00:00Z, nor seconds since 1970"
        ) from None
    at_us = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND
    if not 0 <= at_us <= LATEST_US:
        raise InvalidValueError(f"{name} {text!r} is not between 1970 and 2255")
    return at_us


def has_zone(text: str) -> bool:
    """Whether a time is seconds since 1970, or says its distance from UTC; or is no time at all."""
    try:
        return datetime.fromisoformat(text.strip()).tzinfo is not None
    except ValueError:
        return True


def shown(text: str) -> str:
    """The text in quotes, cut where it is long."""
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")
