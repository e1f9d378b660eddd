"""The inputs of a run: what must be the same when it is resumed.

They may still change before anything was decided; then they are frozen, with the identity of the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from capline.model.errors import CampaignError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a run: its digest, and a short text for people."""

    name: str
    digest: str
    shown: str = ""


def read_inputs(db: sqlite3.Connection) -> tuple[Input, ...]:
    """The inputs in a ledger."""
    return tuple(Input(*row) for row in db.execute("SELECT name, digest, shown FROM input"))


def write_inputs(db: sqlite3.Connection, inputs: Iterable[Input]) -> None:
    """Add or replace inputs in a ledger. Call it in a transaction."""
    rows = [(each.name, each.digest, each.shown) for each in inputs]
    db.executemany("INSERT OR REPLACE INTO input VALUES (?, ?, ?)", rows)


def refuse_changes(db: sqlite3.Connection, directory: Path, inputs: tuple[Input, ...]) -> None:
    """`CampaignError` where one of these inputs differs from the ledger's."""
    changed = changed_inputs(read_inputs(db), inputs)
    if changed:
        raise CampaignError(
            f"{directory}: this run was begun with another {', another '.join(changed)}; put it back to go on, "
            "or begin a new run under another name ('campaign:')"
        )


def changed_inputs(begun: Iterable[Input], inputs: Iterable[Input]) -> list[str]:
    """The inputs that differ from those that the run was begun with, in words."""
    before = {each.name: each for each in begun}
    changed: list[str] = []
    for now in inputs:
        was = before.get(now.name)
        if was is None or was.digest != now.digest:
            shown = was is not None and was.shown and now.shown and was.shown != now.shown
            changed.append(f"{now.name} (was {was.shown}, is {now.shown})" if was and shown else now.name)
    return changed
