"""The ledger's files: the SQLite database and the lock beside it. `ledger` describes their content.

SQLite keeps the file whole: a write-ahead log, synced at each commit (synchronous FULL), so that a step that was
acknowledged survives kill -9 and power loss, and readers see the last commit without waiting. The lock is `flock`: the
kernel releases it when its process ends, however that happens.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from capline.model.errors import CampaignError
from capline.support.private import PRIVATE_FILE
from capline.support.system import lock_file

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

FILE = "ledger.sqlite"
_LOCK = "lock"
_APPLICATION = 0x6361706C
"""SQLite's application_id: "capl"."""
_VERSION = 2
_SCHEMA = """
CREATE TABLE run (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE input (name TEXT PRIMARY KEY, digest TEXT NOT NULL, shown TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE batch (
  number INTEGER PRIMARY KEY, settled INTEGER NOT NULL, at_us INTEGER NOT NULL, rows INTEGER NOT NULL, retried INTEGER
  NOT NULL, lowest INTEGER NOT NULL, highest INTEGER NOT NULL, limits TEXT NOT NULL, decided BLOB NOT NULL, outcome BLOB
  NOT NULL, reasons TEXT NOT NULL
);
CREATE TABLE retry (number INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL);
"""
_BUSY_S = 10.0
_LOCK_TRIES = 5
_LOCK_PAUSE_S = 0.05


def take_lock(directory: Path, pause: Callable[[float], object] = time.sleep) -> int:
    """Lock the run for this process while the handle is open; `CampaignError` where another one holds the lock."""
    handle = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, handle)
        for _ in range(_LOCK_TRIES):
            if lock_file(handle, wait=False):
                stack.pop_all()
                return handle
            # `status` holds it for an instant to see whether it is free; that must not refuse a run.
            pause(_LOCK_PAUSE_S)
    raise CampaignError(f"{directory}: another process is in this run; look with: capline campaign status")


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open the file and check that it is a ledger of this version; a new one is created in one transaction.

    A reader that cannot write the directory, where SQLite keeps what readers share, may get a copy in memory.
    """
    uri = path.absolute().as_uri()
    with sqlite_errors(path.parent):
        try:
            return _opened(path, f"{uri}?mode={'rwc' if write else 'ro'}", write=write)
        except sqlite3.OperationalError as error:
            if write or not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                raise
        wal = path.with_name(f"{path.name}-wal")
        with path.open("rb"), _kept_out(path.parent) as free:
            if not free:
                raise CampaignError(f"{path.parent}: a process begins or ends this run just now; try again")
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
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        _check_version(connection, path, write=write)
    except BaseException:
        connection.close()
        raise
    return connection


def _copied(path: Path, uri: str) -> sqlite3.Connection:
    with contextlib.closing(_opened(path, uri)) as file:
        memory = sqlite3.connect(":memory:", isolation_level=None)
        file.backup(memory)
        return memory


def _check_version(connection: sqlite3.Connection, path: Path, *, write: bool) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    empty = not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if write and empty:
        with commits(connection):
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
    elif empty:
        raise CampaignError(f"{path.parent}: the run was killed before it began; run it again")
    elif application != _APPLICATION:
        raise CampaignError(f"{path}: not a capline ledger; name another directory with --ledger")
    elif version != _VERSION:
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
def sqlite_errors(directory: Path) -> Generator[None]:
    """Turn what SQLite raises, or who may not read, into one line with the fix."""
    try:
        yield
    except OSError as error:
        file = error.filename or directory
        raise CampaignError(f"{file}: {error.strerror}; let this account read what is in {directory}") from None
    except sqlite3.Error as error:
        # Full disks come as "database or disk is full" or as "disk I/O error", by which call met them.
        full = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IOERR"))
        fix = (
            "free some disk space and run the same command again"
            if full
            else "restore it, or name another with --ledger"
        )
        raise CampaignError(f"{directory}: the ledger cannot be used ({error}); what it holds is safe: {fix}") from None


def is_locked(directory: Path) -> bool:
    """Whether a process is in the run now; `CampaignError` where this account may not look."""
    with sqlite_errors(directory), _kept_out(directory) as free:
        return not free


@contextlib.contextmanager
def _kept_out(directory: Path) -> Generator[bool]:
    """Let no process into the run meanwhile; False where one is in it."""
    try:
        handle = os.open(directory / _LOCK, os.O_RDONLY)
    except FileNotFoundError:
        yield True  # nobody was ever in it
        return
    try:
        yield lock_file(handle, shared=True, wait=False)
    finally:
        os.close(handle)
