"""Versions of the configuration as JSON answers show them; instants like 2026-11-21T16:00:00.000Z."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capline.config.records import Entry

__all__ = ["entry_facts", "instant_text"]


def entry_facts(entry: Entry) -> dict[str, Any]:
    """The version of an entry: its number, time, author, and the instant from which it is in force (None: at once)."""
    return {
        "version": entry.version,
        "at": instant_text(entry.at_us),
        "who": entry.who,
        "effective_at": instant_text(entry.effective_us) if entry.effective_us else None,
    }


def instant_text(at_us: int) -> str:
    """Microseconds since 1970 as text in UTC, to the millisecond."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
