"""A campaign store in one SQLite file, for the processes of one machine. `protocol` says what its verbs do.

    run     a campaign each: `fields` (MessagePack, as `StoredRun.fields`); `until_us` 0: never over; `next_us`: when it
            has a batch to claim, NULL for never; `store`: the identity of the limits' store, once it is frozen
    batch   a batch each: `aside`: why it was set aside; `due_us`: when it can be claimed, of an owner's when its lease
            ends; `lease_us` 0: of a run that has the file alone; `first`, `last` subject as `packed.sort_key`;
            `decided`, `outcome`: the halves of its steps
    rate    a rate that someone changed each
    the steps of a batch                         killed before the next line, the next process
    ───────────────────────────────────────────  ──────────────────────────────────────────────────────────────────
    inputs: frozen, with the store's identity    accepts other inputs
    claim
    limiter.decide_many(receipt="…/run id/7")    decides again: the receipt gives the same answers, consuming nothing
    record: decided
    record: about to be sent
    sender.send(messages with their keys)        sends again, with the same keys; refunds none of these
    record: delivered, retry, unsure or failed
    limiter.refund_many(the failed)              refunds again: the stamp makes it one refund
    record: refunded; settled

Each verb is one transaction, on disk when it returns. Readers (`status`) see the last commit, also during a run. Time
is the machine's clock; a lease that ends later than in two leases' time, as the clock was set back, has ended. A look
and a claim read heads of indexes. Cost: four commits a batch or more, 2 to 10 bytes a subject.

URLs: sqlite:///var/lib/capline/campaigns.sqlite, or sqlite://campaigns.sqlite in the working directory.
"""

import contextlib
import math
import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from capline.campaign.store.database import commits, connect, create, is_run_alone, sqlite_errors, take_lock
from capline.campaign.store.packed import sort_key
from capline.campaign.store.protocol import (
    EXPIRY_MS,
    MOST_CLAIMS,
    SILENT_S,
    Batch,
    CampaignStore,
    Change,
    How,
)
from capline.campaign.store.records import (
    PREPARE,
    Claimed,
    DeadLetter,
    DueCampaigns,
    InWork,
    Over,
    RetryBatch,
    State,
    StoredRun,
    Waiting,
)
from capline.campaign.store.rows import BatchRows
from capline.model.clock import Clock, SystemClock
from capline.model.errors import CampaignError
from capline.model.subject import Subject

_FIELDS = "SELECT fields FROM run WHERE campaign = ?"
_CLAIMED = "number, rows, owner, fence, claims, error, data, decided, outcome"
_PRIORITIES = """
WITH RECURSIVE band(priority) AS (
  SELECT max(priority) FROM run WHERE next_us IS NOT NULL
  UNION ALL SELECT (SELECT max(priority) FROM run WHERE next_us IS NOT NULL AND priority < band.priority)
  FROM band WHERE priority IS NOT NULL
) SELECT priority FROM band WHERE priority IS NOT NULL
"""
_JUMPED = """
SELECT campaign FROM run WHERE NOT finished AND NOT paused AND campaign IN (
  SELECT campaign FROM leased WHERE due_us > ? + 2 * lease_us
)
"""
"""Those with leases from before the clock was set back."""
_EXPIRED = """
SELECT campaign FROM run WHERE (finished OR max(due_us, coalesce(next_us, 0)) + ?1 < ?2)
AND last_us + coalesce(CASE WHEN finished THEN keep_us END, ?1) < ?2
"""
_UNTOUCHED_US = EXPIRY_MS * 1000
_FORGETS_US = 60_000_000
_SILENT_US = int(SILENT_S * 1e6)
_FRESH_US = 250_000
_ENDED = "(due_us <= ? OR due_us > ? + 2 * lease_us)"
"""A lease that ended, or that is from before the clock was set back."""
_RENEWED = "due_us = ? + lease_us"
_PARTIAL = "NOT cancelled AND (batches = 0 OR queued < batches)"
"""It is not prepared yet."""


class SqliteCampaignStore(CampaignStore):
    """The verbs, on one file. `alone`: for `campaign run`, which holds the lock; None for who only looks or steers.

    `write` off: for who only looks; the file must be there. Close it afterwards.
    """

    OTHER_VERSION = "begun by another version of capline"
    DAMAGED = "begin it anew under another name"
    IDENTITY = "store"

    def __init__(
        self,
        path: Path,
        *,
        write: bool = True,
        make: bool = True,
        alone: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = path
        self._alone = alone is True
        self._now_us = (clock or SystemClock()).now_us
        self._forgot_us = 0
        self._lock: int | None = None
        with contextlib.ExitStack() as stack:
            if write and make:
                create(path)
            with sqlite_errors(path):
                if not path.is_file():
                    raise CampaignError(f"{path.parent}: no ledger here; begin the campaign with: capline campaign run")
                if alone is not None:
                    self._lock = take_lock(path, shared=not alone)
                    stack.callback(os.close, self._lock)
            self._db = connect(path, write=write)
            stack.pop_all()

    @property
    def url(self) -> str:
        """The file as a URL."""
        return f"sqlite://{self.path}"

    @property
    def shown(self) -> str:
        return self.url

    def close(self) -> None:
        """Close the file and release the lock. May be called twice."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # ---- create

    def begin(self, run: StoredRun, worker: str = "", lease_s: float = 0) -> bool:
        self.forget(None if self._alone else _UNTOUCHED_US)
        name = run.facts.campaign
        with self._changes(name) as now_us:
            self._do(
                "DELETE FROM run WHERE campaign = ?1 AND NOT finished AND EXISTS (SELECT 1 FROM batch "
                "WHERE campaign = ?1 AND number = ?2 AND aside IS NOT NULL)",
                *(name, PREPARE),
            )
            is_new = self._do(
                "INSERT OR IGNORE INTO run (campaign, run_id, fields, batches, begun_us, due_us, last_us, priority, "
                "keep_us) VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?5, ?6, ?7)",
                *(name, run.facts.run_id, _packed(run.fields()), run.batches, now_us, run.priority, run.keep_us),
            )
            if is_new:
                self._begin_anew(name)
            if is_new and worker:
                self._give(name, PREPARE, worker, lease_s, now_us, is_new=True)
            return self._value("SELECT run_id FROM run WHERE campaign = ?", name) == run.facts.run_id

    def _begin_anew(self, campaign: str) -> None:
        """Only the batch that prepares is there; its fence goes on."""
        self._do("DELETE FROM batch WHERE campaign = ? AND number <> ?", campaign, PREPARE)
        self._do(
            "INSERT INTO batch (campaign, number, rows, data, due_us) VALUES (?, ?, 0, x'', 0) "
            "ON CONFLICT DO UPDATE SET aside = NULL, owner = NULL, claims = 0, due_us = 0, settled = 0",
            *(campaign, PREPARE),
        )

    def expired(self, untouched_us: int | None) -> list[str]:
        """The campaigns to forget: those finished longer than they say, the others after so long; None: never."""
        return [name for (name,) in self._all(_EXPIRED, untouched_us, self._now_us())]

    def forget(self, untouched_us: int | None) -> None:
        """Delete them, so that the file keeps no bytes of theirs."""
        if self.expired(untouched_us):
            with self._wipes():
                for name in self.expired(untouched_us):  # another process may have begun it anew meanwhile
                    self._do("DELETE FROM batch WHERE campaign = ?", name)
                    self._do("DELETE FROM run WHERE campaign = ?", name)

    def replace(self, campaign: str, run: StoredRun) -> None:
        """Put other inputs, perhaps another name, in the place of a run in which nothing was decided.

        What it was told stays: to wait, that it is paused or cancelled.
        """
        name = run.facts.campaign
        with self._changes(name):
            self._do("DELETE FROM batch WHERE campaign = ?", campaign)
            self._do(
                "UPDATE run SET campaign = ?, fields = ?, batches = ?, queued = 0 WHERE campaign = ?",
                *(name, _packed(run.fields()), run.batches, campaign),
            )
            self._begin_anew(name)

    def put_files(self, run: StoredRun) -> None:
        name = run.facts.campaign
        with self._changes():
            if (found := self._value(_FIELDS, name)) is not None:
                fields = _packed(msgspec.msgpack.decode(found) | run.texts())
                query = "UPDATE run SET fields = ?, priority = ?, keep_us = ? WHERE campaign = ?"
                self._do(query, fields, run.priority, run.keep_us, name)

    def describe(self, claimed: Claimed, run: StoredRun) -> None:
        name = claimed.campaign
        with self._changes(name):
            if self._owns(name, PREPARE, claimed.fence):
                query = "UPDATE run SET fields = ?, batches = ? WHERE campaign = ? AND batches = 0"
                self._do(query, _packed(run.fields()), run.batches, name)

    def _put(self, run: StoredRun, chunk: list[Batch], fence: int) -> int:
        name = run.facts.campaign
        with self._changes(name) as now_us:
            queued, prepares = self._queued(run), self._owns(name, PREPARE, fence)
            for number, rows, data, due_us, span in chunk:
                is_back = self._do(
                    "UPDATE batch SET aside = NULL, claims = 0, rows = ?, data = ?, due_us = ? "
                    "WHERE campaign = ? AND number = ? AND aside IS NOT NULL",
                    *(rows, data, due_us, name, number),
                )
                if not is_back and number == queued:
                    if not prepares:
                        return 0
                    self._insert(name, (number, rows, data, due_us, span))
                    queued += 1
            self._do(
                "DELETE FROM batch WHERE campaign = ?1 AND number = ?2 AND EXISTS (SELECT 1 FROM run "
                "WHERE campaign = ?1 AND 0 < batches AND batches <= ?3)",
                *(name, PREPARE, queued),
            )
            self._touch(name, queued, now_us)
            return queued

    def put_again(self, run: StoredRun, again: Iterable[RetryBatch]) -> int:
        """All of them in one transaction."""
        name = run.facts.campaign
        with self._changes(name) as now_us:
            queued, count = self._queued(run), 0
            for count, batch in enumerate(again, 1):
                back = 0
                if batch.number == queued:
                    self._insert(name, (batch.number, batch.rows, batch.data, 0, None))
                    queued += 1
                elif not (
                    back := self._do(
                        "UPDATE batch SET settled = 0, due_us = 0, owner = NULL, claims = 0, data = ? "
                        "WHERE campaign = ? AND number = ? AND settled",
                        *(batch.data, name, batch.number),
                    )
                ):
                    return count - 1
                for rows in batch.sources:
                    outcome = rows.pack(decided=False)[1]
                    self._do(
                        "UPDATE batch SET outcome = ? WHERE campaign = ? AND number = ?", outcome, name, rows.number
                    )
                self._do(
                    "UPDATE run SET finished = 0, batches = max(batches, ?), settled = settled - ?, done = done - ? "
                    "WHERE campaign = ?",
                    *(queued, back, batch.retried, name),
                )
                self._touch(name, queued, now_us)
            return count

    def _queued(self, run: StoredRun) -> int:
        name = run.facts.campaign
        found = self._value("SELECT queued FROM run WHERE campaign = ? AND run_id = ?", name, run.facts.run_id)
        if found is None:
            raise self._gone(name)
        return found

    def _insert(self, campaign: str, batch: Batch) -> None:
        *columns, span = batch
        query = "INSERT INTO batch (campaign, number, rows, data, due_us, first, last) VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._do(query, campaign, *columns, *(span or (None, None)))

    def _touch(self, campaign: str, queued: int, now_us: int) -> None:
        self._do("UPDATE run SET queued = ?, last_us = ? WHERE campaign = ?", queued, now_us, campaign)

    def _plan(self, campaign: str) -> None:
        """The end of each transaction that changes a campaign: when there is a batch to claim.

        A cancelled one is over when nobody has a batch and none waits.
        """
        self._do(
            "UPDATE run SET finished = 1 WHERE campaign = ?1 AND cancelled AND NOT EXISTS "
            "(SELECT 1 FROM batch WHERE campaign = ?1 AND NOT settled AND aside IS NULL)",
            campaign,
        )
        self._do(
            f"UPDATE run SET next_us = CASE WHEN NOT finished AND {_PARTIAL} THEN (SELECT due_us FROM batch "  # noqa: S608  # nosec B608
            f"WHERE campaign = ?1 AND number = {PREPARE} AND NOT settled AND aside IS NULL) "
            "WHEN NOT finished AND NOT paused THEN max(due_us, (SELECT min(due_us) FROM ("
            "SELECT (SELECT min(due_us) FROM waiting WHERE campaign = ?1) * (NOT run.cancelled) AS due_us "
            "UNION ALL SELECT min(due_us) FROM leased WHERE campaign = ?1))) END WHERE campaign = ?1",
            campaign,
        )

    # ---- steer

    def _steer(self, campaign: str, change: Change, due_us: int | None, until_us: int | None, by: str) -> bool:
        paused = {"pause": 1, "resume": 0, "cancel": 0}.get(change)
        with self._changes(campaign) as now_us:
            is_open = self._do(
                "UPDATE run SET due_us = CASE WHEN ?1 IS NULL THEN due_us WHEN ?1 = 0 THEN begun_us ELSE ?1 END, "
                "paused = coalesce(?2, paused), until_us = coalesce(?4, until_us), changes = changes + (?5 <> ''), "
                "changed_us = iif(?5 = '', changed_us, ?6), changed_by = iif(?5 = '', changed_by, ?5) WHERE campaign = "
                "?3 AND NOT finished AND NOT cancelled AND (due_us > ?6 OR ?1 IS NULL OR ?5 = '')",
                *(due_us, paused, campaign, until_us, by, now_us),
            )
            if is_open and change == "cancel":
                self._do("UPDATE run SET cancelled = 1, due_us = min(due_us, ?) WHERE campaign = ?", now_us, campaign)
                self._drop_undecided(campaign, "owner IS NULL")
            return is_open > 0

    def _drop_undecided(self, campaign: str, which: str, *values: object) -> None:
        self._do(
            f"DELETE FROM batch WHERE campaign = ? AND NOT settled AND aside IS NULL AND decided IS NULL AND ({which})",  # noqa: S608  # nosec B608
            *(campaign, *values),
        )

    def wake(self, campaign: str, numbers: Sequence[int]) -> None:
        with self._changes(campaign):
            for number in numbers:
                self._do(
                    "UPDATE batch SET due_us = 0 WHERE campaign = ? AND number = ? AND decided IS NOT NULL "
                    "AND NOT settled AND owner IS NULL",
                    *(campaign, number),
                )

    def _rate_record(self, key: str) -> bytes | None:
        return self._value("SELECT record FROM rate WHERE rate_key = ?", key)

    def _keep_rate(self, key: str, was: bytes, now: bytes) -> bool:
        with self._changes():
            is_same = (self._rate_record(key) or b"") == was
            if is_same and not now:
                self._do("DELETE FROM rate WHERE rate_key = ?", key)
            elif is_same:
                self._do("INSERT OR REPLACE INTO rate VALUES (?, ?)", key, now)
            return is_same

    def _values(self, campaign: str, *names: str) -> Sequence[Any]:
        query = f"SELECT {', '.join(names)} FROM run WHERE campaign = ?"  # noqa: S608  # nosec B608
        return self._first(query, campaign) or [None] * len(names)

    # ---- work

    def ages_s(self, within_s: float = 0, *, most: int = -1) -> dict[str, float]:
        now_us = self._now_us()
        found = self._all(
            "SELECT campaign, due_us FROM run WHERE NOT finished AND NOT paused AND due_us <= ? "
            "ORDER BY due_us LIMIT ?",
            now_us + within_s * 1e6,
            most,
        )
        return {campaign: (now_us - due_us) / 1e6 for campaign, due_us in found}

    def look(self, most: int) -> DueCampaigns:
        """Cost: two heads of an index for each priority that occurs."""
        now_us = self._now_us()
        if not 0 <= now_us - self._forgot_us < _FORGETS_US:
            self._forgot_us = now_us
            self.forget(_UNTOUCHED_US)
            now_us = self._now_us()
        with self._reads():
            names = [name for (name,) in self._all(_JUMPED, now_us)]
            next_us = math.inf
            for (priority,) in self._all(_PRIORITIES):
                query = "SELECT campaign FROM run WHERE priority = ? AND next_us <= ? ORDER BY next_us LIMIT ?"
                names += [name for (name,) in self._all(query, priority, now_us, most) if name not in names]
                query = "SELECT min(next_us) FROM run WHERE priority = ? AND next_us > ?"
                next_us = min(next_us, self._value(query, priority, now_us) or math.inf)
        return DueCampaigns(names[:most], (next_us - now_us) / 1e6)

    def _freeze(self, campaign: str, store: bytes) -> None:
        with self._changes():
            self._do("UPDATE run SET store = ? WHERE campaign = ? AND store IS NULL", store, campaign)

    def claim(self, campaign: str, worker: str, lease_s: float) -> Claimed | DeadLetter | Waiting | Over:
        with self._changes(campaign) as now_us:
            run = self._first(
                f"SELECT run_id, (paused OR due_us > ?) AND NOT cancelled, {_PARTIAL}, last_us, cancelled FROM run "  # noqa: S608  # nosec B608
                "WHERE campaign = ? AND NOT finished",
                *(now_us, campaign),
            )
            if run is None:
                return Over()
            run_id, waits, is_partial, last_us, cancelled = run
            if cancelled:
                self._drop_undecided(campaign, f"owner IS NULL OR owner = ? OR {_ENDED}", worker, now_us, now_us)
            found = None if waits and not is_partial else self._head(campaign, worker, now_us, cancelled=cancelled)
            if found is None or (is_partial and found[0] != PREPARE):  # which comes before all others
                in_work = self._value("SELECT count(*) FROM leased WHERE campaign = ?", campaign)
                return Waiting(in_work) if in_work or not cancelled else Over()
            number, rows, owner, fence, claims, error, data, decided, outcome = found
            is_new = owner != worker
            if claims >= MOST_CLAIMS and is_new:
                why = f"claimed {claims} times and never settled" + (f"; last error: {error}" if error else "")
                query = "UPDATE batch SET aside = ?, owner = NULL WHERE campaign = ? AND number = ?"
                self._do(query, why, campaign, number)
                return DeadLetter(number, why)
            self._give(campaign, number, worker, lease_s, now_us, is_new=is_new)
            work_us = now_us - last_us if self._is_leased_now(campaign, number, now_us) else 0
            query = "UPDATE run SET last_us = ?, elapsed_us = elapsed_us + ? WHERE campaign = ?"
            self._do(query, now_us, max(work_us, 0), campaign)
            return Claimed(campaign, run_id, number, fence + is_new, rows, data, decided, outcome)

    def _give(self, campaign: str, number: int, worker: str, lease_s: float, now_us: int, *, is_new: bool) -> None:
        """Give a worker the batch: a new one, or its own again."""
        lease_us = int(lease_s * 1e6)
        self._do(
            "UPDATE batch SET owner = ?, lease_us = ?, due_us = ?, since_us = ?, fence = fence + ?, "
            "claims = claims + ? WHERE campaign = ? AND number = ?",
            *(worker, lease_us, now_us + lease_us, now_us, is_new, is_new, campaign, number),
        )

    def _head(self, campaign: str, worker: str, now_us: int, *, cancelled: bool) -> tuple[Any, ...] | None:
        """The batch to claim: the worker's, the one whose lease ended first, the first that is due.

        Of a cancelled campaign that at once.
        """
        until_us = math.inf if cancelled else now_us
        for choice, also in (
            ("leased WHERE campaign = ? AND owner = ?", (worker,)),
            (f"leased WHERE campaign = ? AND {_ENDED} ORDER BY due_us", (now_us, now_us)),
            ("waiting WHERE campaign = ? AND due_us <= ? ORDER BY due_us, number", (until_us,)),
        ):
            query = f"SELECT {_CLAIMED} FROM {choice} LIMIT 1"  # noqa: S608  # nosec B608
            if found := self._first(query, campaign, *also):
                return found
        return None

    def _is_leased_now(self, campaign: str, number: int, now_us: int) -> bool:
        """Whether a worker has another batch: the time up to now was work."""
        query = "SELECT 1 FROM leased WHERE campaign = ? AND due_us - lease_us > ? AND number <> ? LIMIT 1"
        return self._value(query, campaign, now_us - _SILENT_US, number) is not None

    def _owns(self, campaign: str, number: int, fence: int) -> bool:
        """Whether the batch was claimed last under this fence, and not put back or settled since."""
        query = "SELECT 1 FROM leased WHERE campaign = ? AND number = ? AND fence = ?"
        return self._value(query, campaign, number, fence) is not None

    def renew(self, claimed: Claimed) -> bool:
        """Writes nothing where the lease was just renewed."""
        query = "SELECT due_us - lease_us FROM leased WHERE campaign = ? AND number = ? AND fence = ?"
        now_us, renewed_us = self._now_us(), self._value(query, claimed.campaign, claimed.number, claimed.fence)
        if renewed_us is None or 0 <= now_us - renewed_us < _FRESH_US:
            return renewed_us is not None
        with self._changes(claimed.campaign) as now_us:
            return self._write(claimed, _RENEWED, now_us)

    def record(self, claimed: Claimed, rows: BatchRows, *, decided: bool) -> bool:
        first, outcome = rows.pack(decided=decided)
        steps, values = "outcome = ?, error = NULL", [outcome]
        if decided:
            steps += ", decided = ?, first = ?, last = ?"
            values += [first, *rows.span]
        name, is_done = claimed.campaign, rows.is_done
        with self._changes(name) as now_us:
            if is_done:
                is_mine = self._write(claimed, f"{steps}, settled = 1, data = x''", *values)
            else:
                is_mine = self._write(claimed, f"{steps}, {_RENEWED}", *values, now_us)
            if not is_mine:
                query = (
                    "SELECT 1 FROM batch WHERE campaign = ? AND number = ? AND settled AND fence = ? AND outcome = ?"
                )
                return self._value(query, name, claimed.number, claimed.fence, outcome) is not None
            self._do(
                "UPDATE run SET elapsed_us = elapsed_us + max(?1 - last_us, 0), last_us = ?1, settled = settled + ?2, "
                "done = done + ?3, finished = settled + ?2 >= batches WHERE campaign = ?4",
                *(now_us, is_done, len(rows) if is_done else 0, name),
            )
            return True

    def release(self, claimed: Claimed, how: How, why: str = "", *, wait_s: float = 0.0) -> bool:
        change, *kept = {
            "give_back": ("claims = claims - 1",),
            "fail": ("error = ?", why),
            "set_aside": ("aside = ?", why),
        }[how]
        with self._changes(claimed.campaign) as now_us:
            due_us = now_us + int(wait_s * 1e6) if wait_s else 0
            return self._write(claimed, f"{change}, owner = NULL, due_us = ?", *kept, due_us)

    def _write(self, claimed: Claimed, changes: str, *values: object) -> bool:
        """Change a batch that is still held under this fence; whether it was changed."""
        done = self._do(
            f"UPDATE batch SET {changes} WHERE campaign = ? AND number = ? AND fence = ? "  # noqa: S608  # nosec B608
            "AND NOT settled AND aside IS NULL AND owner IS NOT NULL",
            *(*values, claimed.campaign, claimed.number, claimed.fence),
        )
        return done > 0

    # ---- look

    def page(self, after: str, limit: int) -> list[str]:
        found = self._all("SELECT campaign FROM run WHERE campaign > ? ORDER BY campaign LIMIT ?", after, limit)
        return [name for (name,) in found]

    def _fields(self, campaign: str) -> Mapping[bytes, bytes]:
        found = self._value(_FIELDS, campaign)
        fields = {} if found is None else msgspec.msgpack.decode(found, type=dict[str, Any])
        return {
            key.encode(): value if isinstance(value, bytes) else str(value).encode() for key, value in fields.items()
        }

    def _progress(self, campaign: str) -> tuple[Sequence[Any], float, tuple[InWork, ...], Mapping[int, str]]:
        now_us = self._now_us()
        with self._reads():
            *fields, next_us = self._values(campaign, *State.COUNTS, *State.MARKS, "next_us")
            leased = self._all(
                "SELECT number, owner, since_us, due_us - lease_us, claims, error FROM leased WHERE campaign = ? "
                "AND lease_us > 0 ORDER BY number",
                campaign,
            )
            aside = self._all(
                "SELECT number, aside FROM batch WHERE campaign = ? AND aside IS NOT NULL ORDER BY number", campaign
            )
        in_work = tuple(
            InWork(number, owner, since_us, max(now_us - renewed_us, 0) / 1e6, claims, error)
            for number, owner, since_us, renewed_us, claims, error in leased
        )
        return fields, next_us or 0, in_work, dict(aside)

    def _is_run_alone(self) -> bool:
        return is_run_alone(self.path)

    def steps(self, campaign: str, numbers: Sequence[int]) -> Iterator[BatchRows]:
        query = "SELECT decided, outcome FROM batch WHERE campaign = ? AND number = ? AND decided IS NOT NULL"
        for number in numbers:
            for decided, outcome in self._all(query, campaign, number):
                try:
                    yield BatchRows.unpack(number, decided, outcome)
                except CampaignError:
                    raise CampaignError(
                        f"{self.path.parent}: the ledger is damaged at batch {number}; restore it from a copy"
                    ) from None

    def holding(self, campaign: str, subject: Subject, *, to: Subject | None = None) -> list[int]:
        query = (
            "SELECT number FROM batch WHERE campaign = ? AND coalesce(first <= ? AND last >= ?, 1) AND number >= 0 "
            "ORDER BY number DESC"
        )
        keys = sort_key(subject if to is None else to), sort_key(subject)
        return [number for (number,) in self._all(query, campaign, *keys)]

    def stored(self, campaign: str, number: int) -> Claimed | None:
        found = self._first(
            "SELECT run_id, number, fence, rows, data, decided, outcome, iif(owner IS NULL, batch.due_us, 0) "
            "FROM batch JOIN run USING (campaign) WHERE campaign = ? AND number = ?",
            campaign,
            number,
        )
        return Claimed(campaign, *found) if found else None

    def rewrite(self, was: Claimed, now: Claimed, rows: BatchRows | None, fewer: int | None, *, done: bool) -> bool:
        """The file keeps no bytes of what was there."""
        span = (None, None) if rows is None else rows.span
        before = was.data, was.decided, was.outcome
        with self._wipes():
            run = self.find(was.campaign)
            written = self._do(
                "UPDATE batch SET rows = ?, data = ?, decided = ?, outcome = ?, first = coalesce(?, first), "
                "last = coalesce(?, last) WHERE campaign = ? "
                "AND number = ? AND (settled OR owner IS NULL) AND data = ? AND decided IS ? AND outcome IS ?",
                *(now.rows, now.data, now.decided, now.outcome, *span, was.campaign, was.number, *before),
            )
            if run is None or not written:
                return False
            fields = _packed(replace(run, facts=run.facts.without(fewer)).fields())
            self._do("UPDATE run SET fields = ?, done = done - ? WHERE campaign = ?", fields, done, was.campaign)
            return True

    def _do(self, query: str, *values: object) -> int:
        """Change rows, in a transaction; how many."""
        return self._db.execute(query, values).rowcount

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with sqlite_errors(self.path):
            return self._db.execute(query, values).fetchall()

    def _first(self, query: str, *values: object) -> tuple[Any, ...] | None:
        return next(iter(self._all(query, *values)), None)

    def _value(self, query: str, *values: object) -> Any:
        """The first column of the first row; None where there is none."""
        return (self._first(query, *values) or (None,))[0]

    @contextlib.contextmanager
    def _changes(self, campaign: str | None = None) -> Generator[int]:
        """A transaction, and the time once the file is ours, however long that took.

        At its end stands when there is a batch of this campaign to claim.
        """
        with sqlite_errors(self.path), commits(self._db):
            yield self._now_us()
            if campaign is not None:
                self._plan(campaign)

    @contextlib.contextmanager
    def _wipes(self) -> Generator[None]:
        """Changes after which the file has no bytes of what they delete or replace."""
        self._db.execute("PRAGMA secure_delete = ON")
        try:
            with self._changes():
                yield
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._db.execute("PRAGMA secure_delete = OFF")

    @contextlib.contextmanager
    def _reads(self) -> Generator[None]:
        """Several reads of one moment; `put_again` reads in its own transaction."""
        if self._db.in_transaction:
            yield
            return
        with sqlite_errors(self.path):
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("ROLLBACK")


_packed = msgspec.msgpack.encode


def sqlite_path(url: str) -> Path:
    """The file that a URL names; `CampaignError` where it names none."""
    path = unquote(url.removeprefix("sqlite://"))
    if not path or path.endswith("/"):
        raise CampaignError(f"{url!r} names no file; write it like sqlite:///var/lib/capline/campaigns.sqlite")
    return Path(path)
