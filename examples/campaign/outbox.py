"""A sender of your own: an outbox, a table of SQLite that another program empties.

    [project.entry-points."capline.senders"]
    outbox = "outbox:OutboxSender"      # in your package's pyproject.toml

    sender: {outbox: outbox.sqlite}

The key is the table's: what a campaign that was killed sends again is there once. What a receiver refuses for good is
PERMANENT, what it may have taken UNKNOWN. `most` messages are handed over at a time, `at_once` of them leave together.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, ClassVar

from capline.campaign.senders.protocol import TRANSIENT, Messages, Outcomes, RunInfo
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from capline.forms.fields import Fields


class OutboxSender:
    """See the module's text."""

    main: ClassVar[str] = "path"
    tuning: ClassVar[frozenset[str]] = frozenset()
    most: int | None = 1000

    def __init__(self, options: Fields) -> None:
        self._path = options.path("path")

    def open(self, run: RunInfo) -> None:
        """Make the table; nothing is sent."""
        try:
            with closing(sqlite3.connect(self._path)) as outbox:
                outbox.execute("CREATE TABLE IF NOT EXISTS outbox (key TEXT PRIMARY KEY, id TEXT, fields TEXT)")
        except sqlite3.Error as error:
            raise CampaignError(f"sender outbox: {error}; nothing of {run.campaign} was sent") from None

    def send(self, messages: Messages) -> Outcomes:
        """Put all of them into the table, or none."""
        outcomes = Outcomes.delivered(len(messages))
        all_of = map(messages.__getitem__, range(len(messages)))
        rows = [(each.key, str(each.id), json.dumps(dict(each.fields))) for each in all_of]
        try:
            with closing(sqlite3.connect(self._path)) as outbox, outbox:
                outbox.executemany("INSERT OR IGNORE INTO outbox VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            for row in range(len(messages)):
                outcomes.fail(row, TRANSIENT, str(error))
        return outcomes

    def close(self) -> None:
        """Nothing is open."""
