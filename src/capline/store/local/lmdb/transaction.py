"""The logs in the file as one transaction sees them: short ones a value, long ones a value and pages."""

from __future__ import annotations

import struct
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast

from capline.model.errors import CaplineError, StoreError
from capline.store.local.lmdb.keys import LOG_KEY, LOG_META, LOG_NUMBER, log_key, log_prefix, subject_key
from capline.store.local.log import ColumnLog
from capline.store.local.log_bytes import BLOCKS, NUMBERS, PAGED, pack_log, read_words, seal, unpack_log, unseal
from capline.store.local.log_pages import LEAD_WORDS, TAIL_HITS, IdTables, PagedLog, PageIds, Pages, page_key
from capline.store.local.numbers import StoredNumbers, pack_numbers, unpack_numbers
from capline.store.local.transaction import SWEEP_RECEIPTS, LocalRule, LogRef, LogTransaction, StoredLog, take_up
from capline.support.override import override

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capline.model.clock import Clock
    from capline.model.subject import Subject
    from capline.store.local.lmdb.environment import Transaction

_PAST_ALL = b"\xff" * 8
_EXPIRY = struct.Struct(">Q")


class LmdbTransaction(LogTransaction):
    """`fresh` counts the subjects that got their first hit: old logs are swept at the pace of new ones."""

    __slots__ = ("_clock", "_next_forms", "fresh", "ids", "tables", "txn")

    def __init__(
        self,
        txn: Transaction,
        tables: Mapping[bytes, Any],
        clock: Clock,
        ids: dict[bytes, PageIds],
        *,
        next_forms: bool,
    ) -> None:
        self.txn = txn
        self.tables = tables
        self.ids = IdTables(ids)
        self.fresh = 0
        self._clock = clock
        self._next_forms = next_forms

    @override
    def learn(self, compiled: LocalRule) -> None:
        """As in `LogTransaction`; some microseconds, and then only where any log was begun since."""
        meta = self.tables[b"meta"]
        names = self.txn.stat(meta)["entries"]
        if compiled.names != names:
            take_up(compiled, logs_beside(self.txn, meta, compiled.refs[0].name))
            compiled.names = names

    @override
    def stored(self, ref: LogRef, subject: Subject) -> StoredLog | None:
        key = log_key(ref, subject)
        value = self.txn.get(key, db=self.tables[b"logs"])
        return None if value is None else self._open(key, value)

    @override
    def save(self, ref: LogRef, subject: Subject, log: StoredLog) -> None:
        key = log_key(ref, subject)
        if isinstance(log, StoredNumbers):
            self.txn.put(key, pack_numbers(log, key), db=self.tables[b"logs"])
            self.fresh += log.fresh
            return
        if isinstance(log, ColumnLog) and len(log) > TAIL_HITS:
            log.pack()
            log = PagedLog(log, LmdbPages(self.txn, self.tables[b"pages"], key), self.ids)
        value = log.value() if isinstance(log, PagedLog) else pack_log(log, key)  # pyright: ignore[reportArgumentType] - the two
        if isinstance(log, ColumnLog) and len(log) == 1:  # a level stays one entry
            self.fresh += self.txn.get(key, db=self.tables[b"logs"]) is None
        self.txn.put(key, value, db=self.tables[b"logs"])

    @override
    def remove(self, ref: LogRef, subject: Subject) -> bool:
        return self.remove_at(log_key(ref, subject))

    @override
    def remove_all(self, refs: Iterable[LogRef], subject: Subject) -> int:
        """Looks at the log names that hold something, in the order of their numbers: many names may hold nothing."""
        tail, cursor = subject_key(subject), self.txn.cursor(self.tables[b"logs"])
        found: list[bytes] = []
        at = b""
        for prefix in sorted({log_prefix(ref) for ref in refs}):
            key = prefix + tail
            if key > at:  # else nothing lies between the key that was asked for last and `at`
                at = cursor.key() if cursor.set_range(key) else _PAST_ALL
            if key == at:
                found.append(key)
        return sum([self.remove_at(key) for key in found])

    def remove_at(self, key: bytes) -> bool:
        """Remove the log with this key, and its pages; whether there was one."""
        value = self.txn.pop(key, db=self.tables[b"logs"])
        if value is None:
            return False
        if value[0] & PAGED:
            log = self._open(key, value)
            if isinstance(log, PagedLog):
                log.remove_pages()
        return True

    @override
    def receipt(self, name: bytes) -> bytes | None:
        kept = self.txn.get(name, db=self.tables[b"receipts"])
        if kept is None:
            return None
        value = unseal(name, kept)
        return value[_EXPIRY.size :] if _EXPIRY.unpack_from(value)[0] > self._clock.now_us() else None

    @override
    def keep_receipt(self, name: bytes, value: bytes, expires_us: int) -> None:
        receipts = self.tables[b"receipts"]
        self.txn.put(name, seal(name, _EXPIRY.pack(expires_us) + value), db=receipts)
        # A batch may come without a new subject, so each checks its successors in turn. Names are hashes: that is
        # anywhere in the table.
        cursor, now_us = self.txn.cursor(receipts), self._clock.now_us()
        cursor.set_key(name)
        for _ in range(SWEEP_RECEIPTS):
            if not (cursor.next() or cursor.first()):
                break
            if _has_expired(cursor.key(), cursor.value(), now_us):
                cursor.delete()
                cursor.prev()

    def sweep_receipts(self) -> None:
        """Remove all receipts that have expired."""
        receipts, now_us = self.tables[b"receipts"], self._clock.now_us()
        expired = [key for key, value in self.txn.cursor(receipts) if _has_expired(key, value, now_us)]
        for key in expired:
            self.txn.delete(key, db=receipts)

    def read(self, key: bytes, value: bytes) -> StoredLog | CaplineError:
        """The log that this value of this key is, or why it is none."""
        try:
            return self._open(key, value)
        except StoreError as error:
            return error

    def _open(self, key: bytes, value: bytes) -> StoredLog:
        kind, words = read_words(value, key)
        if kind == NUMBERS:
            return cast("StoredLog", unpack_numbers(words))
        if not kind & PAGED:
            return unpack_log(kind, words)[0]
        tail, lead = unpack_log(kind, words, LEAD_WORDS)
        pages, blocks = LmdbPages(self.txn, self.tables[b"pages"], key), bool(kind & BLOCKS)
        return PagedLog(tail, pages, self.ids, lead, blocks=blocks, next_forms=self._next_forms)


def logs_beside(txn: Transaction, meta: Any, name: str) -> list[tuple[str, bytes]]:
    """The logs whose names go on from this one after a slash, each with its number."""
    prefix, cursor = LOG_KEY + f"{name}/".encode(), txn.cursor(meta)
    rows = takewhile(lambda row: row[0].startswith(prefix), cursor.iternext()) if cursor.set_range(prefix) else ()
    return [
        (key[len(LOG_KEY) :].decode(), LOG_NUMBER.pack(LOG_META.unpack(unseal(key, value))[0])) for key, value in rows
    ]


def _has_expired(name: bytes, kept: bytes, now_us: int) -> bool:
    """Whether this receipt may go; a damaged one is left for its reader to report."""
    try:
        return _EXPIRY.unpack_from(unseal(name, kept))[0] <= now_us
    except StoreError:
        return False


class LmdbPages(Pages):
    """The pages of the log with this key."""

    __slots__ = ("_table", "_txn", "key")

    def __init__(self, txn: Transaction, table: Any, key: bytes) -> None:
        self.key = key
        self.within(txn, table)

    def within(self, txn: Transaction, table: Any) -> None:
        """Read and write in this transaction from now on."""
        self._txn = txn
        self._table = table

    @override
    def read(self, number: int) -> bytes | None:
        return self._txn.get(page_key(self.key, number), None, self._table)

    @override
    def write(self, number: int, value: bytes | None) -> None:
        key = page_key(self.key, number)
        if value is None:
            self._txn.delete(key, db=self._table)
        else:
            self._txn.put(key, value, db=self._table)
