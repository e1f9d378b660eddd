"""`lmdb:///path`: durable logs in one file, shared by every process and thread of the machine. The default store.

    table     key                                              value
    meta      "format"                                         which layout this is
              "begun"                                          u64 when the store was made (us), u64 drawn then
              "log:" + name                                    u32 number of that log, u64 longest window on it (us)
    logs      u32 log, subject                                 a packed log (`log_bytes`), or the head of a
    paged one
    pages     u32 log, subject, u32 page                       sealed pages of long logs (`log_pages`)
    receipts  16-byte hash of the receipt's name               u64 expiry, then the answers

    Every value but "format" carries a checksum of itself and its key: logs and pages in their heads, the others before
    the value (`seal`).

    subject   "i" + u64 for an integer; "t" + UTF-8 for text; "h" + 32-byte hash for text longer than 400 bytes

Numbers in keys are big-endian, so integer subjects lie in their order: a campaign in the order of ids walks the file.
A decision is one write transaction, so exact among processes; LMDB's lock is robust, so a killed process blocks nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from capline.model.errors import CaplineError, StoreDamagedError, StoreError
from capline.model.override import override
from capline.model.subject import Subject, check_subject
from capline.store.local.base import (
    ROWS_A_TRANSACTION,
    LocalRule,
    LocalStore,
    LogRef,
    LogTransaction,
    StoredLog,
    rows_of,
)
from capline.store.local.fast_path import FastRule, decide_one, first_decision
from capline.store.local.lmdb.environment import Environment, Transaction, open_environment
from capline.store.local.log import ColumnLog
from capline.store.local.log_bytes import (
    PAGED,
    pack_first_hit,
    pack_log,
    pack_unit_log,
    read_plain,
    read_words,
    seal,
    unpack_log,
    unseal,
)
from capline.store.local.log_pages import (
    EPOCH_WORD,
    LEAD_WORDS,
    MIXED_WORD,
    TAIL_HITS,
    PagedLog,
    Pages,
    SeenPages,
    UnitPages,
    page_key,
)
from capline.store.protocol import Batch, StoreAttempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from capline.model.clock import Clock
    from capline.model.decision import Decision

__all__ = ["LmdbStore"]

_T = TypeVar("_T")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_LOG_META = struct.Struct(">IQ")
_INTEGER = struct.Struct(">cQ")
_INTEGER_KEY = struct.Struct(">4scQ")
LONGEST_PLAIN_BYTES = 400
SWEEP_EVERY = 64
"""After so many new subjects, half as many logs are checked in turn, and the stale ones removed."""
SWEEP_ROWS = 4096
ONE_HIT_BYTES = 16
MOST_LONG_LOGS = 64
"""Long logs whose pages a process caches: at most 64 pages of half a kilobyte each."""


class LmdbStore(LocalStore):
    """See the module's text. Threads and processes may share the file; a fork opens it again."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        durability: str = "relaxed",
        most_bytes: int | None = None,
        create: bool = True,
    ) -> None:
        super().__init__(clock)
        self._environment: Environment | None = open_environment(path, durability, most_bytes, create=create)
        self._path = path
        self._fresh = 0
        self._sweep_from = b""
        self._known: dict[str, tuple[bytes, int]] = {}
        self._seen: dict[bytes, tuple[SeenPages, _LmdbPages]] = {}

    def _transact(self, work: Callable[[LogTransaction], _T]) -> _T:
        return self._run(lambda txn: work(_LmdbTransaction(self, txn)))

    def _run(self, work: Callable[[Transaction], _T]) -> _T:
        if self._environment is None:
            raise StoreError(f"{self._path}: this limiter was closed; make a new one")
        answer = self._environment.run(work)
        if self._fresh >= SWEEP_EVERY:
            rows = min(self._fresh // 2, SWEEP_ROWS)
            self._fresh = 0
            # One more window of grace: a clock that jumps ahead for a moment must not erase a history.
            self._environment.run(lambda txn: self._sweep_rows(txn, rows, windows=2))
        return answer

    def note_fresh(self) -> None:
        """Count a subject without a log: old logs are swept at the pace of new ones."""
        self._fresh += 1

    def table(self, name: bytes) -> Any:
        """A table of the open environment; a fork or a reopening gives new ones."""
        if self._environment is None:
            raise StoreError(f"{self._path}: this limiter was closed; make a new one")
        return self._environment.tables[name]

    def _handle(self, name: str, retention_us: int) -> object:
        """The log's number; a log that is known, with a retention that is, asks no lock for it."""
        number, known_us = self._known.get(name, (b"", -1))
        if retention_us > known_us:
            number = self._numbered(name, retention_us)
            self._known[name] = number, retention_us
        return number

    def _numbered(self, name: str, retention_us: int) -> bytes:
        key = b"log:" + name.encode()

        def work(txn: Transaction) -> bytes:
            meta = self.table(b"meta")
            found = txn.get(key, db=meta)
            number, kept_us = _LOG_META.unpack(unseal(key, found)) if found else (txn.stat(meta)["entries"], 0)
            if retention_us > kept_us:
                txn.put(key, seal(key, _LOG_META.pack(number, retention_us)), db=meta)
            return _U32.pack(number)

        return self._run(work)

    def _fast_path(
        self,
        compiled: LocalRule,
        unit: FastRule,
        ref: LogRef,
    ) -> Callable[[Subject], Decision]:
        """One value read, `decide_one`, one value written: 3 to 5 µs."""
        prefix, run, short = _prefix(ref), self._run, self._unit

        def decide(subject: Subject) -> Decision:
            key = prefix + subject_key(check_subject(subject))
            return run(lambda txn: short(txn, compiled, unit, subject, key))

        return decide

    def _unit(self, txn: Transaction, compiled: LocalRule, unit: FastRule, subject: Subject, key: bytes) -> Decision:
        retention_us = compiled.refs[0].retention_us
        logs = self.table(b"logs")
        value = txn.get(key, None, logs)
        now_us = self._clock.now_us()
        if value is None:
            txn.put(key, pack_unit_log(array("Q", (now_us,)), key), True, True, False, logs)
            self._fresh += 1
            return first_decision(unit, now_us)
        stamps = read_plain(value, key)
        if stamps is None:
            decision = self._paged_unit(txn, unit, retention_us, key, value, now_us)
            return (
                self._step(_LmdbTransaction(self, txn), StoreAttempt(compiled, subject))
                if decision is None
                else decision
            )
        oldest_us, last_us = stamps[0], stamps[-1]
        decision = decide_one(stamps, 0, len(stamps), oldest_us, last_us, unit, now_us)
        stamp_us = decision.hit
        if stamp_us is not None:
            if oldest_us <= stamp_us - retention_us:
                # A new array: the decision has the other one.
                stamps = stamps[bisect_right(stamps, max(now_us, last_us) - retention_us) :]
            stamps.append(stamp_us)
            if len(stamps) > TAIL_HITS:
                log = ColumnLog()
                log.stamps, log.high_water_us = stamps, stamp_us
                _LmdbTransaction(self, txn).save(compiled.refs[0], subject, log)
            else:
                txn.put(key, pack_unit_log(stamps, key), True, True, False, logs)
        return decision

    def _paged_unit(
        self,
        txn: Transaction,
        unit: FastRule,
        retention_us: int,
        key: bytes,
        value: bytes,
        now_us: int,
    ) -> Decision | None:
        """`_unit` on a paged log of single units; None where the log is another."""
        head = read_plain(value, key, PAGED)
        if head is None or head[MIXED_WORD]:
            return None
        seen = self._seen_pages(txn, key, head[EPOCH_WORD])
        stamps = UnitPages(head, seen, max(now_us, head[-1]) - retention_us)
        decision = decide_one(stamps, 0, *stamps.ends, unit, now_us, UnitPages.position)
        if decision.hit is not None:
            txn.put(key, stamps.record(decision.hit), True, True, False, self.table(b"logs"))
        return decision

    def _seen_pages(self, txn: Transaction, key: bytes, epoch: int) -> SeenPages:
        """The cached pages of a long log, with this transaction to read more."""
        known = self._seen.get(key)
        if known is None or known[0].epoch != epoch:
            if len(self._seen) >= MOST_LONG_LOGS:
                self._seen.clear()
            pages = _LmdbPages(txn, self.table(b"pages"), key)
            known = self._seen[key] = SeenPages(epoch, pages), pages
        seen, pages = known
        pages.within(txn, self.table(b"pages"))
        return seen

    def _rows(self, transaction: LogTransaction, batch: Batch, rows: slice, *, record: bool) -> list[Decision]:
        """Many rows of one unit in one transaction, so at one instant: then all first hits are the same."""
        bound = batch.compiled
        if (
            not isinstance(transaction, _LmdbTransaction)
            or batch.cost != 1
            or any(compiled.unit is None for compiled in bound)
        ):
            return super()._rows(transaction, batch, rows, record=record)
        txn, logs, now_us = transaction.txn, self.table(b"logs"), self._clock.now_us()
        prefix, retention_us = _prefix(bound[0].refs[0]), bound[0].refs[0].retention_us
        firsts = [first_decision(compiled.unit, now_us) for compiled in bound]
        first_value = pack_first_hit(now_us)
        # A cursor stays on its page: neighbouring subjects, as in campaigns, cost half a search each.
        cursor = txn.cursor(logs)
        get, put, integer_key = cursor.get, cursor.put, _INTEGER_KEY.pack
        answers: list[Decision] = []
        fresh = 0
        for code, subject in rows_of(batch, rows):
            key = integer_key(prefix, b"i", subject) if type(subject) is int else prefix + subject_key(subject)
            value = get(key)
            if value is None:
                if record:
                    put(key, first_value(key))
                    fresh += 1
                answers.append(firsts[code])
                continue
            stamps = read_plain(value, key)
            if stamps is None or len(stamps) >= TAIL_HITS:
                attempt = StoreAttempt(bound[code], subject)
                answers.append(self._step(transaction, attempt) if record else self._peek(transaction, attempt))
                continue
            oldest_us, last_us = stamps[0], stamps[-1]
            decision = decide_one(stamps, 0, len(stamps), oldest_us, last_us, bound[code].unit, now_us)
            stamp_us = decision.hit
            if stamp_us is not None and record:
                if oldest_us <= stamp_us - retention_us:
                    stamps = stamps[bisect_right(stamps, max(now_us, last_us) - retention_us) :]
                stamps.append(stamp_us)
                put(key, pack_unit_log(stamps, key))
            answers.append(decision)
        if record:
            self._fresh += fresh
            return answers
        return [
            msgspec.structs.replace(decision, hit=None) if decision.hit is not None else decision
            for decision in answers
        ]

    def _walk(
        self, transaction: LogTransaction, ref: LogRef, after: object
    ) -> Iterator[tuple[object, Subject | None, StoredLog | CaplineError]]:
        """The place is the key of the log that was last."""
        if not isinstance(transaction, _LmdbTransaction):
            return
        prefix, cursor = _prefix(ref), transaction.txn.cursor(self.table(b"logs"))
        more = cursor.set_range(prefix if not isinstance(after, bytes) else after + b"\0")
        while more:
            key, value = cursor.item()
            if not key.startswith(prefix):
                return
            try:
                subject = subject_of(key[len(prefix) :])
            except StoreError as error:
                yield key, None, error
            else:
                yield key, subject, transaction.read(key, value)
            more = cursor.next()

    @override
    def sweep(self) -> int:
        """A few thousand rows a transaction, so that decisions go on in between."""
        removed, self._sweep_from = 0, b""
        while True:
            removed += self._run(lambda txn: self._sweep_rows(txn, ROWS_A_TRANSACTION))
            if not self._sweep_from:
                return removed

    def _sweep_rows(self, txn: Transaction, rows: int, windows: int = 1) -> int:
        """Check so many logs from where the last sweep stopped; remove those older than so many widest windows.

        At the end of the table, remove the receipts that expired.
        """
        now_us = self._clock.now_us()
        transaction = _LmdbTransaction(self, txn)
        retention_us: dict[bytes, int] = {}
        for key, value in txn.cursor(self.table(b"meta")):
            if key.startswith(b"log:"):
                with contextlib.suppress(StoreDamagedError):  # the next decision there raises it
                    number, kept_us = _LOG_META.unpack(unseal(key, value))
                    retention_us[_U32.pack(number)] = kept_us
        stale: list[bytes] = []
        seen, cursor = 0, txn.cursor(self.table(b"logs"))
        more = cursor.set_range(self._sweep_from)
        while more and seen < rows:
            key, value = cursor.item()
            if is_stale(key, value, now_us - windows * retention_us.get(key[:4], now_us)):
                stale.append(key)
            seen, more = seen + 1, cursor.next()
        self._sweep_from = cursor.key() if more else b""
        for key in stale:
            transaction.remove_at(key)
        if not more:
            receipts = self.table(b"receipts")
            expired = [key for key, value in txn.cursor(receipts) if _has_expired(key, value, now_us)]
            for key in expired:
                txn.delete(key, db=receipts)
        return len(stale)

    @override
    def stats(self) -> dict[str, int]:
        """Those of `Environment.stats`."""
        if self._environment is None:
            raise StoreError(f"{self._path}: this limiter was closed; make a new one")
        return self._environment.stats()

    @override
    def close(self) -> None:
        """What was decided is then on disk."""
        if self._environment is not None:
            self._environment.leave()
            self._environment = None


class _LmdbTransaction(LogTransaction):
    """The logs as one transaction sees them."""

    __slots__ = ("_store", "txn")

    def __init__(self, store: LmdbStore, txn: Transaction) -> None:
        self._store = store
        self.txn = txn

    @override
    def load(self, ref: LogRef, subject: Subject) -> StoredLog:
        key = log_key(ref, subject)
        value = self.txn.get(key, db=self._store.table(b"logs"))
        return ColumnLog() if value is None else self._open(key, value)

    @override
    def save(self, ref: LogRef, subject: Subject, log: StoredLog) -> None:
        key = log_key(ref, subject)
        if isinstance(log, ColumnLog) and len(log) > TAIL_HITS:
            log.pack()
            log = PagedLog(log, _LmdbPages(self.txn, self._store.table(b"pages"), key))
        value = log.value() if isinstance(log, PagedLog) else pack_log(log, key)  # pyright: ignore[reportArgumentType] - the two
        self.txn.put(key, value, db=self._store.table(b"logs"))
        if len(value) == ONE_HIT_BYTES:
            self._store.note_fresh()

    @override
    def remove(self, ref: LogRef, subject: Subject) -> bool:
        return self.remove_at(log_key(ref, subject))

    def remove_at(self, key: bytes) -> bool:
        """Remove the log with this key, and its pages; whether there was one."""
        value = self.txn.pop(key, db=self._store.table(b"logs"))
        if value is None:
            return False
        if value[0] & PAGED:
            log = self._open(key, value)
            if isinstance(log, PagedLog):
                log.remove_pages()
        return True

    @override
    def receipt(self, name: bytes) -> bytes | None:
        kept = self.txn.get(name, db=self._store.table(b"receipts"))
        if kept is None:
            return None
        value = unseal(name, kept)
        return value[_U64.size :] if _U64.unpack_from(value)[0] > self._store.now_us() else None

    @override
    def keep_receipt(self, name: bytes, value: bytes, expires_us: int) -> None:
        self.txn.put(name, seal(name, _U64.pack(expires_us) + value), db=self._store.table(b"receipts"))

    def read(self, key: bytes, value: bytes) -> StoredLog | CaplineError:
        """The log that this value of this key is, or why it is none."""
        try:
            return self._open(key, value)
        except StoreError as error:
            return error

    def _open(self, key: bytes, value: bytes) -> StoredLog:
        kind, words = read_words(value, key)
        if not kind & PAGED:
            return unpack_log(kind, words)[0]
        tail, lead = unpack_log(kind, words, LEAD_WORDS)
        return PagedLog(tail, _LmdbPages(self.txn, self._store.table(b"pages"), key), lead)


class _LmdbPages(Pages):
    """The pages of the log with this key."""

    __slots__ = ("_table", "_txn", "key")

    def __init__(self, txn: Transaction, table: Any, key: bytes) -> None:
        self.key = key
        self.within(txn, table)

    def within(self, txn: Transaction, table: Any) -> None:
        """Go on in this transaction."""
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


def subject_key(subject: Subject) -> bytes:
    """A subject as the tail of a key; see the module's text."""
    if isinstance(subject, int):
        return _INTEGER.pack(b"i", subject)
    text = subject.encode()
    return b"t" + text if len(text) <= LONGEST_PLAIN_BYTES else b"h" + hashlib.blake2b(text, digest_size=32).digest()


def subject_of(tail: bytes) -> Subject:
    """The subject that `subject_key` made this of.

    Raises `StoreError` where it kept the hash only, and `StoreDamagedError` where it made no such key.
    """
    kind = tail[:1]
    if kind == b"i" and len(tail) == _INTEGER.size:
        return _INTEGER.unpack(tail)[1]
    if kind == b"t":
        with contextlib.suppress(UnicodeDecodeError):
            return tail[1:].decode()
    if kind == b"h":
        raise StoreError(f"a subject of more than {LONGEST_PLAIN_BYTES} bytes is kept as a hash: it cannot be read")
    raise StoreDamagedError(f"the key {tail.hex()} of a stored log is damaged: it names no subject")


def log_key(ref: LogRef, subject: Subject) -> bytes:
    """The key of a subject's log."""
    return _prefix(ref) + subject_key(subject)


def _prefix(ref: LogRef) -> bytes:
    return ref.place  # pyright: ignore[reportReturnType] - what `_handle` put there


def is_stale(key: bytes, value: bytes, cutoff_us: int) -> bool:
    """Tell whether every hit is as old as the cutoff, and the log's time not ahead of it.

    A damaged value is left for its reader to report.
    """
    try:
        kind, words = read_words(value, key)
        log, _ = unpack_log(kind, words, LEAD_WORDS if kind & PAGED else 0)
    except StoreError:
        return False
    return max(log.last_us(), log.high_water_us) <= cutoff_us


def _has_expired(key: bytes, value: bytes, now_us: int) -> bool:
    """Tell whether a receipt may go; a damaged one is left for its reader to report."""
    try:
        return _U64.unpack_from(unseal(key, value))[0] <= now_us
    except StoreError:
        return False
