"""Instants as text: ISO 8601 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant_text(at_us: int, timespec: str = "auto") -> str:
    """Microseconds since 1970 as text, like 2026-11-21T16:00:00Z; `timespec` as in `datetime.isoformat`.

    By default what is below the second is written where there is any.
    """
    at = _EPOCH + timedelta(microseconds=at_us)
    return at.isoformat(timespec=timespec).removesuffix("+00:00") + "Z"
