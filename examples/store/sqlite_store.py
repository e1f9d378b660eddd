"""A store of your own in an afternoon: capline's logs in one SQLite file, for `sqlite:///path/to/file`.

    "sqlite:///f"  ->  open_store  ->  entry point `capline.stores`, `sqlite`  ->  SqliteStore(url, clock, create)

`LocalStore` has every instruction; a store says only where logs lie. A log is a row: the hits as MessagePack.
"""

# ruff: noqa: ARG002, D102 - arguments and texts are those of `LocalStore`

from __future__ import annotations

import sqlite3
from threading import RLock
from typing import TYPE_CHECKING, Any

from msgspec import msgpack

from capline.model.errors import InvalidValueError, NoStoreError, StoreUnavailableError
from capline.store.local.base import LocalStore
from capline.store.local.log import ColumnLog
from capline.store.local.transaction import LogTransaction, take_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from capline.model.clock import Clock
    from capline.model.subject import Subject
    from capline.store.local.transaction import LocalRule, LogRef, StoredLog

TABLES = """
CREATE TABLE IF NOT EXISTS log (name TEXT, subject BLOB, kept_until INTEGER, hits BLOB, PRIMARY KEY (name, subject));
CREATE TABLE IF NOT EXISTS name (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS receipt (name BLOB PRIMARY KEY, kept_until INTEGER, answers BLOB);
"""


class SqliteStore(LocalStore, LogTransaction):
    """Every step is one transaction that locks the file, so threads and processes may share it."""

    def __init__(self, url: str, clock: Clock, *, create: bool = True) -> None:
        super().__init__(clock)
        path = url.partition("://")[2]
        if not path:
            raise InvalidValueError(f"store URL {url!r}: name a file, like 'sqlite:///var/lib/limits.db'")
        try:
            mode = "rwc" if create else "rw"
            self._file = sqlite3.connect(f"file:{path}?mode={mode}", 60, uri=True, check_same_thread=False)
        except sqlite3.OperationalError as error:
            raise NoStoreError(f"{path}: {error}; name a file that is there, or let it be made") from None
        self._file.isolation_level = None
        self._lock = RLock()
        self._retention_us: dict[str, int] = {}
        self._file.executescript(f"PRAGMA journal_mode = WAL;{TABLES}")

    def _transact(self, work: Callable[[LogTransaction], Any]) -> Any:
        with self._lock:
            try:
                self._file.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise StoreUnavailableError(f"the file of the store: {error}") from error
            try:
                answer = work(self)
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")
            return answer

    def _handle(self, name: str, retention_us: int) -> object:
        self._retention_us[name] = max(retention_us, self._retention_us.get(name, 0))
        with self._lock:
            self._file.execute("INSERT OR IGNORE INTO name VALUES (?)", (name,))
        return name

    def _beside(self, name: str) -> list[str]:
        with self._lock:
            named = self._file.execute("SELECT name FROM name WHERE name > ? AND name < ?", (f"{name}/", f"{name}0"))
            return [beside for (beside,) in named]

    # --- a transaction ----------------------------------------------------------------------------------------------

    def learn(self, compiled: LocalRule) -> None:
        own = compiled.refs[0]
        for name in (names := self._beside(own.name)):
            self._retention_us.setdefault(name, own.retention_us)
        take_up(compiled, zip(names, names, strict=True))

    def stored(self, ref: LogRef, subject: Subject) -> ColumnLog | None:
        row = self._file.execute(
            "SELECT hits FROM log WHERE name = ? AND subject = ?", (ref.name, msgpack.encode(subject))
        ).fetchone()
        return None if row is None else _unpacked(*row)

    def save(self, ref: LogRef, subject: Subject, log: StoredLog) -> None:
        kept_until = max(log.last_us(), log.high_water_us) + self._retention_us[ref.name]
        hits = msgpack.encode((log.high_water_us, list(log.recorded()), log.reserved))
        self._file.execute(
            "REPLACE INTO log VALUES (?, ?, ?, ?)", (ref.name, msgpack.encode(subject), kept_until, hits)
        )

    def remove(self, ref: LogRef, subject: Subject) -> bool:
        removed = self._file.execute(
            "DELETE FROM log WHERE name = ? AND subject = ?", (ref.name, msgpack.encode(subject))
        )
        return removed.rowcount > 0

    def receipt(self, name: bytes) -> bytes | None:
        row = self._file.execute(
            "SELECT answers FROM receipt WHERE name = ? AND kept_until > ?", (name, self._clock.now_us())
        ).fetchone()
        return None if row is None else row[0]

    def keep_receipt(self, name: bytes, value: bytes, expires_us: int) -> None:
        self._file.execute("REPLACE INTO receipt VALUES (?, ?, ?)", (name, expires_us, value))

    # --- all logs ---------------------------------------------------------------------------------------------------

    def _walk(
        self, transaction: LogTransaction, ref: LogRef, after: object
    ) -> Iterator[tuple[object, Subject | None, StoredLog]]:
        found = "SELECT subject, hits FROM log WHERE name = ? AND subject > ? ORDER BY subject"
        for subject, hits in self._file.execute(found, (ref.name, after or b"")):
            yield subject, msgpack.decode(subject), _unpacked(hits)

    def sweep(self, compiled: Sequence[LocalRule], /) -> int:
        with self._lock:
            now = (self._clock.now_us(),)
            self._file.execute("DELETE FROM receipt WHERE kept_until <= ?", now)
            return self._file.execute("DELETE FROM log WHERE kept_until <= ?", now).rowcount

    def close(self) -> None:
        self._file.close()


def _unpacked(hits: bytes) -> ColumnLog:
    log = ColumnLog()
    high_water_us, rows, log.reserved = msgpack.decode(hits)
    for stamp_us, units, fingerprint in rows:
        log.record(stamp_us, units, 0, fingerprint)
    log.high_water_us = high_water_us
    return log
