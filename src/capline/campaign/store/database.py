"""The SQLite file of a campaign store and the lock beside it. `sqlite_store` describes the content.

SQLite keeps the file whole: a write-ahead log, synced at each commit (synchronous FULL), so that a step that was
acknowledged survives kill -9 and power loss, and readers see the last commit without waiting. The lock is `flock`: the
kernel releases it when its process ends, however that happens. `campaign run` holds it alone, workers share it.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

from capline.model.errors import CampaignError, CampaignStoreError
from capline.support.private import PRIVATE_FILE, create_private_file, make_private_directory
from capline.support.system import lock_file

_APPLICATION = 0x6361706C
"""SQLite's application_id: "capl"."""
_VERSION = 7
_SCHEMA = """
CREATE TABLE run (
  campaign TEXT PRIMARY KEY, run_id TEXT NOT NULL, fields BLOB NOT NULL, batches INTEGER NOT NULL,
  queued INTEGER NOT NULL DEFAULT 0, settled INTEGER NOT NULL DEFAULT 0, done INTEGER NOT NULL DEFAULT 0,
  begun_us INTEGER NOT NULL, due_us INTEGER NOT NULL, last_us INTEGER NOT NULL, elapsed_us INTEGER NOT NULL DEFAULT 0,
  finished INTEGER NOT NULL DEFAULT 0, paused INTEGER NOT NULL DEFAULT 0, cancelled INTEGER NOT NULL DEFAULT 0,
  priority INTEGER NOT NULL, keep_us INTEGER, next_us INTEGER, store BLOB,
  until_us INTEGER NOT NULL DEFAULT 0,
  changes INTEGER NOT NULL DEFAULT 0, changed_us INTEGER NOT NULL DEFAULT 0, changed_by TEXT NOT NULL DEFAULT ''
);
CREATE INDEX run_due ON run (due_us) WHERE NOT finished AND NOT paused;
CREATE INDEX run_next ON run (priority DESC, next_us) WHERE next_us IS NOT NULL;
CREATE TABLE batch (
  campaign TEXT NOT NULL, number INTEGER NOT NULL, rows INTEGER NOT NULL, settled INTEGER NOT NULL DEFAULT 0,
  aside TEXT, due_us INTEGER NOT NULL, owner TEXT, lease_us INTEGER, fence INTEGER NOT NULL DEFAULT 0,
  since_us INTEGER, claims INTEGER NOT NULL DEFAULT 0, error TEXT,
  first BLOB, last BLOB, data BLOB NOT NULL, decided BLOB, outcome BLOB, UNIQUE (campaign, number)
);
CREATE INDEX batch_waiting ON batch (campaign, due_us, number) WHERE NOT settled AND aside IS NULL AND owner IS NULL;
CREATE INDEX batch_leased ON batch (campaign, due_us) WHERE NOT settled AND aside IS NULL AND owner IS NOT NULL;
CREATE TABLE rate (rate_key TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE VIEW waiting AS SELECT * FROM batch WHERE NOT settled AND aside IS NULL AND owner IS NULL;
CREATE VIEW leased AS SELECT * FROM batch WHERE NOT settled AND aside IS NULL AND owner IS NOT NULL;
"""
_BUSY_S = 10.0
_LOCK_TRIES = 5
_LOCK_PAUSE_S = 0.05


class NotBegunError(CampaignError):
    """The file has no tables: its process was killed as it made them."""


def take_lock(path: Path, *, shared: bool, pause: Callable[[float], object] = time.sleep) -> int:
    """Lock the file for this process while the handle is open; `CampaignError` where another one is in the way."""
    handle = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, handle)
        for _ in range(_LOCK_TRIES):
            if lock_file(handle, shared=shared, wait=False):
                stack.pop_all()
                return handle
            # `status` holds it for an instant to see whether it is free; that must not refuse a run.
            pause(_LOCK_PAUSE_S)
    raise CampaignError(f"{path.parent}: another process is in this run; look with: capline campaign status")


def create(path: Path) -> None:
    """Make the file and its directory, private, where they are missing; `CampaignError` where that cannot be."""
    try:
        make_private_directory(path.parent)
        create_private_file(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CampaignError(f"{path.parent}: the ledger cannot be kept here: {reason}") from None


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open the file and check that it is a ledger of this version; a new one is created in one transaction.

    A reader that cannot write the directory, where SQLite keeps what readers share, may get a copy in memory.
    """
    uri = path.absolute().as_uri()
    with sqlite_errors(path):
        try:
            return _opened(path, f"{uri}?mode={'rwc' if write else 'ro'}", write=write)
        except sqlite3.OperationalError as error:
            if write or not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                raise
        wal = path.with_name(f"{path.name}-wal")
        with _locked(path, shared=False) as free:
            # Not before nobody is in it: closing a file takes away the locks that SQLite has for this process.
            if not free:
                raise CampaignError(f"{path.parent}: a process begins or ends this run just now; try again")
            with path.open("rb"):
                pass  # an account that may not read it is told so
            if not wal.exists() or not wal.stat().st_size:
                return _copied(path, f"{uri}?immutable=1")  # which would ignore the write-ahead log
            with tempfile.TemporaryDirectory() as private:
                for file in (path, wal):
                    shutil.copy(file, private)
                return _copied(path, Path(private, path.name).as_uri())


def _opened(path: Path, uri: str, *, write: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
    try:
        if write:
            _log_ahead(connection)
            connection.execute("PRAGMA synchronous = FULL")
        _check_version(connection, path, write=write)
    except BaseException:
        connection.close()
        raise
    return connection


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log; SQLite itself does not wait for who makes it just now."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > until:
                raise
            time.sleep(_LOCK_PAUSE_S)
        else:
            return


def _copied(path: Path, uri: str) -> sqlite3.Connection:
    with contextlib.closing(_opened(path, uri)) as file:
        memory = sqlite3.connect(":memory:", isolation_level=None)
        file.backup(memory)
        return memory


def _check_version(connection: sqlite3.Connection, path: Path, *, write: bool) -> None:
    with commits(connection) if write else contextlib.nullcontext():
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        empty = not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if write and empty:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            return
    if empty:
        raise NotBegunError(f"{path.parent}: the run was killed before it began; run it again")
    if application != _APPLICATION:
        raise CampaignError(f"{path}: not a capline ledger; name another directory with --ledger")
    if version != _VERSION:
        raise CampaignError(
            f"{path}: a ledger of version {version}, this capline reads {_VERSION}; it is left as it is: finish the "
            "run with the capline that began it, or begin a new one under another name ('campaign:')"
        )


@contextlib.contextmanager
def commits(connection: sqlite3.Connection) -> Generator[None]:
    """One transaction: on disk when the block ends, undone when it raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def sqlite_errors(path: Path) -> Generator[None]:
    """Turn what SQLite raises, or who may not read, into one line with the fix."""
    try:
        yield
    except OSError as error:
        file = error.filename or path.parent
        raise CampaignError(f"{file}: {error.strerror}; let this account read what is in {path.parent}") from None
    except sqlite3.Error as error:
        # Full disks come as "database or disk is full" or as "disk I/O error", by which call met them.
        full = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IOERR"))
        fix = (
            "free some disk space and run the same command again"
            if full
            else "restore it, or name another with --ledger"
        )
        raise CampaignStoreError(
            f"{path.parent}: the ledger cannot be used ({error}); what it holds is safe: {fix}"
        ) from None


def is_run_alone(path: Path) -> bool:
    """Whether a `campaign run` is at work with the file now; `CampaignError` where this account may not look."""
    with sqlite_errors(path), _locked(path, shared=True) as free:
        return not free


@contextlib.contextmanager
def _locked(path: Path, *, shared: bool) -> Generator[bool]:
    """Hold the lock for an instant: shared, beside workers, or alone; False where another process is in the way."""
    try:
        handle = os.open(_lock_of(path), os.O_RDONLY)
    except FileNotFoundError:
        yield True  # nobody was ever in it
        return
    try:
        yield lock_file(handle, shared=shared, wait=False)
    finally:
        os.close(handle)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-lock")
