"""Instants as text: ISO 8601 in UTC."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(2255, 1, 1, tzinfo=UTC)
_LONGEST_SHOWN = 40


def instant_text(at_us: int, timespec: str = "auto") -> str:
    """Microseconds since 1970 as text, like 2026-11-21T16:00:00Z; `timespec` as in `datetime.isoformat`.

    By default what is below the second is written where there is any.
    """
    at = _EPOCH + timedelta(microseconds=at_us)
    return at.isoformat(timespec=timespec).removesuffix("+00:00") + "Z"


def zoned_instant_us(text: str) -> int:
    """The instant that a text says, in microseconds since 1970; ValueError with the fix where it says none."""
    shown, like = repr(text[:_LONGEST_SHOWN]), "write it like 2026-11-21T16:00:00Z"
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{shown} is not an instant; {like}") from None
    if instant.tzinfo is None:
        raise ValueError(f"{shown} does not say in which time zone; {like}")
    if not _EPOCH <= instant < _LATEST:
        raise ValueError(f"{shown} is not between 1970 and 2255")
    return (instant - _EPOCH) // timedelta(microseconds=1)
