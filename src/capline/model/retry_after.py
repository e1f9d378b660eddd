"""What a provider says about when to come back: `Retry-After` of an answer of 429 or 503, in seconds from now.

The rule: the header is untrusted text. The wait that it asks for is bounded, and a malformed header is ignored.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["LONGEST_SECONDS", "retry_after", "wait_asked"]

LONGEST_SECONDS = 3600.0
"""The longest that a provider can hold all hosts back by one answer."""

_STATUSES = (429, 503)
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,12})?", re.ASCII)
_LONGEST_TEXT = 64


def wait_asked(status: int, headers: Mapping[str, str]) -> float | None:
    """`retry_after` of an answer of 429 or 503; None for any other."""
    return retry_after(headers) if status in _STATUSES else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, 0 to an hour, of an answer's headers; None where they ask for no waiting.

    `headers` are a client's own, or a plain mapping by any case. A date is taken against the answer's own `Date`, so
    that clocks need not agree; without one against ours. Call it where the status is 429 or 503.

    >>> retry_after({"retry-after": "7"})
    7.0
    """
    header, date = _found(headers, "Retry-After"), _found(headers, "Date")
    if header is None:
        return None
    text = header.strip()
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    else:
        until = _instant(text)
        if until is None:
            return None
        seconds = (until - (_instant(date) or datetime.now(UTC))).total_seconds()
    return min(max(seconds, 0.0), LONGEST_SECONDS)


def _found(headers: Mapping[str, str], name: str) -> str | None:
    """The value of this name; clients' own mappings know no case, plain ones are looked through."""
    value = headers.get(name)
    if value is None:
        value = next((headers[key] for key in headers if key.lower() == name.lower()), None)
    return value


def _instant(text: str | None) -> datetime | None:
    """The instant of an HTTP date; None for any other text."""
    if text is None or len(text) > _LONGEST_TEXT:
        return None
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
