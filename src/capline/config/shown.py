"""Versions of the configuration as JSON answers show them; instants like 2026-11-21T16:00:00.000Z."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.support.instant import instant_text

if TYPE_CHECKING:
    from capline.config.records import Entry


def entry_facts(entry: Entry) -> dict[str, Any]:
    """The version of an entry: its number, time, author, and the instant from which it is in force (None: at once)."""
    return {
        "version": entry.version,
        "at": instant_text(entry.at_us, "milliseconds"),
        "who": entry.who,
        "effective_at": instant_text(entry.effective_us, "milliseconds") if entry.effective_us else None,
    }
