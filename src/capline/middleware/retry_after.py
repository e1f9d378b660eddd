"""What a provider says about when to come back: `Retry-After` of an answer of 429 or 503, in seconds from now.

The rule: the header is untrusted text. The wait that it asks for is bounded, and a malformed header is ignored.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LONGEST_SECONDS", "retry_after"]

LONGEST_SECONDS = 3600.0
"""The longest that a provider can hold all hosts back by one answer."""

_STATUSES = (429, 503)
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,12})?", re.ASCII)
_LONGEST_TEXT = 64


def retry_after(headers: Mapping[str, str], status: int = 429) -> float | None:
    """Seconds to wait, 0 to an hour, that an answer with these headers asks for; None where it asks for no waiting.

    Only 429 and 503 ask. `headers` is any client's; a plain dict may have its names in any case. A date is taken
    against the answer's own `Date` header, so that clocks need not agree; without one against ours.

    >>> retry_after({"Retry-After": "2.5"})
    2.5
    """
    header, date = _field(headers, "Retry-After"), _field(headers, "Date")
    if status not in _STATUSES or header is None:
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


def _field(headers: Mapping[str, str], name: str) -> str | None:
    found = headers.get(name)
    if found is None and type(headers) is dict:  # the mappings of clients know no case; a plain one does
        plain: dict[str, str] = {**headers}
        found = next((text for key, text in plain.items() if key.lower() == name.lower()), None)
    return found if isinstance(found, str) else None  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers


def _instant(text: str | None) -> datetime | None:
    """An HTTP date; None where it is none."""
    if text is None or len(text) > _LONGEST_TEXT:
        return None
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
