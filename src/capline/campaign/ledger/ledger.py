"""The ledger: every step of a run, on disk before the next one begins. A directory beside the campaign file:

    summer-sale.run/
    ├── lock             held (flock) by the process of the run; a second process is refused
    └── ledger.sqlite    SQLite, write-ahead log, synced at each commit: it survives a power loss

    run     key, value            campaign, run_id, policy, channel, cost, audience, segments (JSON: name and number of
                                  subjects, first those in none), begun_us, elapsed_us, finished, fixed (1: something
                                  may have been decided), due_us (not before), paused (1: not before it is resumed)
    input   name, digest, shown   the inputs of the run (`inputs`)
    batch   number                a row is added when the batch is decided
            settled               1 when nothing is left to do for it
            at_us, rows, limits   when it was decided, how many subjects, JSON: the limits that bind
            retried               how many of them were moved to a later batch
            lowest, highest       its first and last subject
            decided BLOB          ids, segments, binding limits, hits, retry_after: never changed
            outcome BLOB          states, attempts, reasons, as in `rows`: changed at each step
            reasons               JSON: the texts of the column of reasons
    retry   number, first, last   a further batch: the rows RETRIED of the batches from `first` to `last`; written in
                                  one step with that state

    the steps of a batch                         killed before the next line, the next process
    ───────────────────────────────────────────  ──────────────────────────────────────────────────────────────────
    inputs: frozen, with the store's identity    accepts other inputs
    limiter.decide_many(receipt="…/run id/7")    decides again: the receipt gives the same answers, consuming nothing
    batch 7: decided
    outcome: about to be sent
    sender.send(messages with their keys)        sends again, with the same keys; refunds none of these
    outcome: delivered, retry, unsure or failed
    limiter.refund_many(the failed)              refunds again: the stamp makes it one refund
    outcome: refunded; settled

Readers (`status`) see the last commit, also during a run. Cost: three commits a batch or more, 2 to 10 bytes a subject.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from capline.campaign.ledger.database import FILE, commits, connect, is_locked, sqlite_errors, take_lock
from capline.campaign.ledger.inputs import read_inputs, refuse_changes, write_inputs
from capline.campaign.ledger.retry import put_retries
from capline.campaign.ledger.rows import REFUNDED, RETRIED, BatchRows
from capline.model.errors import CampaignError
from capline.support.private import create_private_file, make_private_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from capline.campaign.ledger.inputs import Input

_PLAIN_FACTS = ("campaign", "policy", "channel", "cost", "audience", "begun_us")
"""Facts that are stored as they are."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of a run that never change. `segments`: name and number of subjects, first those in no segment."""

    campaign: str
    policy: str
    channel: str | None
    cost: int
    audience: int
    segments: tuple[tuple[str | None, int], ...]
    begun_us: int
    run_id: str = ""


class Ledger:
    """An open ledger: `begin` opens it to write, with the lock, `read` to read. A context manager."""

    def __init__(self, directory: Path, connection: sqlite3.Connection, lock: int | None) -> None:
        self.directory = directory
        self._db = connection
        self._lock = lock
        with self._errors():
            self.facts = self._read_facts()

    @classmethod
    def begin(cls, directory: Path, facts: RunFacts, inputs: tuple[Input, ...]) -> Self:
        """Begin a run in this directory, or resume the one that is there.

        `CampaignError` where another process runs it, where it was begun with other inputs, or where it cannot be
        written. A run in which nothing was decided yet accepts new inputs.
        """
        try:
            make_private_directory(directory)
            create_private_file(directory / FILE)
            lock = take_lock(directory)
        except OSError as error:
            raise CampaignError(f"{directory}: the ledger cannot be kept here: {_reason(error)}") from None
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, lock)
            connection = stack.enter_context(contextlib.closing(connect(directory / FILE, write=True)))
            with sqlite_errors(directory):
                _check_inputs(connection, directory, facts, inputs)
            ledger = cls(directory, connection, lock)
            stack.pop_all()
            return ledger

    @classmethod
    def read(cls, directory: Path, *, steer: bool = False) -> Self:
        """Open for reading, or to `steer`, also while a process writes; `CampaignError` where there is no ledger."""
        with sqlite_errors(directory):
            if not (directory / FILE).is_file():
                raise CampaignError(f"{directory}: no ledger here; begin the campaign with: capline campaign run")
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(contextlib.closing(connect(directory / FILE, write=steer)))
            ledger = cls(directory, connection, None)
            stack.pop_all()
            return ledger

    @classmethod
    def begun_inputs(cls, directory: Path) -> tuple[Input, ...]:
        """The inputs of the run in this directory; none where nothing was decided yet: they may still change."""
        with sqlite_errors(directory):
            if not (directory / FILE).is_file():
                return ()
        with contextlib.closing(connect(directory / FILE, write=False)) as db, sqlite_errors(directory):
            return read_inputs(db) if db.execute("SELECT 1 FROM run WHERE key = 'fixed'").fetchone() else ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release the lock. May be called twice."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_finished(self) -> bool:
        """Whether every batch is done, and none is being sent again."""
        with self._errors():
            return bool(self._value("finished")) and self._first_unsettled() is None

    @property
    def elapsed_us(self) -> int:
        """How long processes have worked on the run, up to the last step."""
        with self._errors():
            return int(self._value("elapsed_us") or 0)

    @property
    def is_running(self) -> bool:
        """Whether a process works on the run now."""
        return is_locked(self.directory)

    @property
    def due_us(self) -> float:
        """The instant before which nothing is decided or sent: 0 for at once, infinite while paused."""
        with self._errors():
            return math.inf if self._value("paused") else self._value("due_us") or 0

    def steer(self, *, due_us: int | None = None, paused: bool | None = None) -> None:
        """Change when the run is due, or pause or resume it; the process in it heeds that before its next hand-over."""
        changed = {"due_us": due_us, "paused": paused}
        with self._errors(), commits(self._db):
            self._db.executemany(
                "INSERT OR REPLACE INTO run VALUES (?, ?)", [one for one in changed.items() if one[1] is not None]
            )

    @property
    def is_frozen(self) -> bool:
        """Whether something may have been decided: the inputs can then no longer change."""
        with self._errors():
            return bool(self._value("fixed"))

    def freeze_inputs(self, store: Input) -> None:
        """Freeze the inputs and the identity of the store, before anything is decided.

        `CampaignError` where they were frozen with another store.
        """
        with self._errors(), commits(self._db):
            if self._value("fixed"):
                refuse_changes(self._db, self.directory, (store,))
                return
            write_inputs(self._db, (store,))
            self._db.execute("INSERT OR REPLACE INTO run VALUES ('fixed', 1)")

    def next_batch(self) -> int:
        """The number of the first batch that is not done; batches are delivered in order."""
        with self._errors():
            first = self._first_unsettled()
            row = self._db.execute("SELECT count(*) FROM batch").fetchone()
            return int(row[0]) if first is None else first

    def done_rows(self) -> int:
        """How many subjects are done."""
        with self._errors():
            row = self._db.execute("SELECT coalesce(sum(rows - retried), 0) FROM batch WHERE settled").fetchone()
            return int(row[0])

    def retries(self) -> int:
        """How many further batches there are."""
        with self._errors():
            return int(self._db.execute("SELECT count(*) FROM retry").fetchone()[0])

    def retried_ids(self, number: int) -> NDArray[np.uint32]:
        """The subjects of a further batch, ascending."""
        with self._errors():
            first, last = self._db.execute("SELECT first, last FROM retry WHERE number = ?", (number,)).fetchone()
            found = self._db.execute(
                f"{_SELECT} WHERE number BETWEEN ? AND ? AND retried ORDER BY number", (first, last)
            )
            parts = [rows.ids[rows.where(RETRIED)] for rows in (_rows(self.directory, row) for row in found)]
            return np.concatenate(parts)

    def retry_failed(self, number: int, most: int) -> int:
        """Move all failed rows of a finished run to further batches (`put_retries`); returns how many rows."""
        with self._errors(), commits(self._db):
            numbers = self._db.execute("SELECT number FROM batch ORDER BY number").fetchall()
            found = (self._db.execute(f"{_SELECT} WHERE number = ?", key).fetchone() for key in numbers)
            return put_retries(self._db, (_rows(self.directory, row) for row in found), number, most)

    def refused_for_good(self, attempts: int) -> int:
        """How many failed while attempts were left: their receiver said that it never takes them."""
        return sum(int((rows.attempts[rows.where(REFUNDED)] < attempts).sum()) for rows in self.batches())

    def batch(self, number: int) -> BatchRows | None:
        """The batch as last recorded; None where it is not decided yet."""
        with self._errors():
            found = self._db.execute(f"{_SELECT} WHERE number = ?", (number,)).fetchone()
            return None if found is None else _rows(self.directory, found)

    def batches(self) -> Iterator[BatchRows]:
        """Every decided batch, in order, as of one moment; one is in memory at a time."""
        with self._errors():
            for found in self._db.execute(f"{_SELECT} ORDER BY number"):
                yield _rows(self.directory, found)

    def batches_of(self, subject: int) -> Iterator[BatchRows]:
        """The decided batches that may hold this subject, the newest first. Cost: two comparisons a batch."""
        with self._errors():
            query = f"{_SELECT} WHERE lowest <= ? AND highest >= ? ORDER BY number DESC"
            for found in self._db.execute(query, (subject, subject)):
                yield _rows(self.directory, found)

    def add(self, rows: BatchRows) -> None:
        """Write a batch that was just decided."""
        halves = rows.pack_decided(), rows.pack_outcome()
        row = (
            rows.number,
            int(rows.is_done),
            rows.at_us,
            len(rows),
            0,
            int(rows.ids[0]),
            int(rows.ids[-1]),
            _json(rows.limits),
            *halves,
            _json(rows.reasons),
        )
        with self._errors(), commits(self._db):
            self._db.execute("INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def save(self, rows: BatchRows, elapsed_us: int) -> None:
        """Write a batch's outcomes, and how long processes have worked on the run."""
        row = (int(rows.is_done), rows.pack_outcome(), _json(rows.reasons), rows.number)
        with self._errors(), commits(self._db):
            self._db.execute("UPDATE batch SET settled = ?, outcome = ?, reasons = ? WHERE number = ?", row)
            self._db.execute("INSERT OR REPLACE INTO run VALUES ('elapsed_us', ?)", (elapsed_us,))

    def finish(self, elapsed_us: int) -> None:
        """Write that every batch is done."""
        with self._errors(), commits(self._db):
            self._db.execute("INSERT OR REPLACE INTO run VALUES ('elapsed_us', ?)", (elapsed_us,))
            self._db.execute("INSERT OR REPLACE INTO run VALUES ('finished', 1)")

    def _first_unsettled(self) -> int | None:
        row = self._db.execute("SELECT min(number) FROM batch WHERE NOT settled").fetchone()
        return row[0]

    def _value(self, key: str) -> Any:
        found = self._db.execute("SELECT value FROM run WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def _read_facts(self) -> RunFacts:
        values: dict[str, Any] = dict(self._db.execute("SELECT key, value FROM run"))
        try:
            segments = msgspec.json.decode(values["segments"], type=tuple[tuple[str | None, int], ...])
            plain = {name: values[name] for name in (*_PLAIN_FACTS, "run_id")}
            return RunFacts(segments=segments, **plain)
        except (KeyError, msgspec.DecodeError):
            raise CampaignError(f"{self.directory}: the run was killed before it began; run it again") from None

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return sqlite_errors(self.directory)


def default_directory(campaign_file: Path) -> Path:
    """The default directory of a campaign's ledger: `summer.run` beside `summer.yaml`."""
    return campaign_file.with_name(f"{campaign_file.stem}.run")


_SELECT = "SELECT number, at_us, rows, limits, decided, outcome, reasons FROM batch"


def _rows(directory: Path, found: tuple[Any, ...]) -> BatchRows:
    number, at_us, rows, limits, decided, outcome, reasons = found
    try:
        names = msgspec.json.decode(limits, type=tuple[str, ...])
        texts = msgspec.json.decode(reasons, type=list[str])
        return BatchRows.unpack(number, at_us, rows, names, decided, outcome, texts)
    except (msgspec.DecodeError, TypeError, ValueError):
        raise CampaignError(f"{directory}: the ledger is damaged at batch {number}; restore it from a copy") from None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _check_inputs(connection: sqlite3.Connection, directory: Path, facts: RunFacts, inputs: tuple[Input, ...]) -> None:
    """Write a new run's inputs; compare those of a run whose inputs are frozen."""
    with commits(connection):
        run: Mapping[str, Any] = dict(connection.execute("SELECT key, value FROM run"))
        if run.get("fixed"):
            refuse_changes(connection, directory, inputs)
            return
        # Nothing was decided under the old inputs, so a corrected file needs no new run.
        values: dict[str, Any] = {name: getattr(facts, name) for name in _PLAIN_FACTS}
        values |= {"segments": _json(facts.segments), "run_id": run.get("run_id") or secrets.token_hex(8)}
        connection.executemany("INSERT OR REPLACE INTO run VALUES (?, ?)", list(values.items()))
        connection.execute("DELETE FROM input")
        write_inputs(connection, inputs)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
