"""Finds damage in an embedded store's file, without changing it and while others use it.

Two passes. First every page of one committed state (`capline.store.local.lmdb.pages`): whether it is what its parent
says, in order, and used once. Then every value: whether its checksum matches under its key, and whether a long log has
all its pages. The checksums show damage in a value or a key, the walk shows damage elsewhere.

It cannot see a page with an older content of its own, left by a disk that lost a write.

It reads the whole file: about a second for each million logs. Memory: a byte a page, and the heads of long logs.
"""

import os
import struct
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import lmdb
import msgspec

from capline.model.errors import StoreDamagedError, StoreError, StoreVersionError
from capline.store.local.lmdb.environment import is_open_here
from capline.store.local.lmdb.files import DATABASES, FORMAT, META, find_store
from capline.store.local.lmdb.keys import subject_of
from capline.store.local.lmdb.lock import StoreLock
from capline.store.local.lmdb.pages import SUBTABLE, TABLE, Meta, Table, Walk, read_metas
from capline.store.local.log_bytes import BLOCKS, NUMBERS, PAGED, read_words, unpack_log, unseal
from capline.store.local.log_pages import AHEAD, BLOCK_PAGES, LEAD_WORDS, PAGE_HITS
from capline.store.local.numbers import unpack_numbers

MOST_FAULTS = 1000
SNAPSHOT_TRIES = 100
_U32 = struct.Struct(">I")
_NOTE_BYTES = {b"begun": 16, b"log:": 12}


class StoreReport(msgspec.Struct):
    """What was found; `faults` are the first thousand of `faults_found`, a line each."""

    path: str
    logs: int = 0
    sealed_pages: int = 0
    receipts: int = 0
    used_pages: int = 0
    free_pages: int = 0
    lost_pages: int = 0
    """Pages that are neither used nor free: lost room, but no damage."""
    page_bytes: int = 0
    faults_found: int = 0
    faults: list[str] = msgspec.field(default_factory=list[str])

    def fault(self, what: str) -> None:
        """Add one fault."""
        self.faults_found += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(what)


def check_store(path: Path) -> StoreReport:
    """Check every page and value of the store in this directory.

    Raises `NoStoreError`, `StoreDamagedError` or `StoreVersionError` where it could not be opened at all, and
    `StoreError` where this process has it open.
    """
    try:
        find_store(path)
        if is_open_here(path):
            raise StoreError(f"{path}: is open in this process; close its limiter first")
        lock = StoreLock(path)
        try:
            return _checked(path, lock)
        finally:
            lock.leave()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; name a directory that can be read") from None
    except lmdb.Error as error:
        raise StoreDamagedError(f"{path}: cannot be read ({error}); it is left as it is") from None


def _checked(path: Path, lock: StoreLock) -> StoreReport:
    report = StoreReport(str(path))
    with (path / "data.mdb").open("rb", buffering=0) as file:
        page_bytes = META.unpack(file.read(META.size))[4]
        # An LMDB read transaction keeps the snapshot's pages from being reused; LMDB reads nothing else here.
        size_bytes, tables, locks = os.fstat(file.fileno()).st_size, len(DATABASES), not lock.read_only
        with lmdb.open(str(path), readonly=True, lock=locks, map_size=size_bytes, max_dbs=tables) as env:
            lock.let_in()
            for _ in range(SNAPSHOT_TRIES):
                try:
                    with env.begin() as txn:
                        metas = read_metas(file, page_bytes)
                        mine = [meta for meta in metas if meta.transaction == txn.id()]
                        if mine:
                            _check_heads(metas, report.fault)
                            _check_state(file, page_bytes, mine[0], report)
                            return report
                except lmdb.MapResizedError:
                    env.set_mapsize(0)
            raise StoreDamagedError(f"{path / 'data.mdb'}: its heads do not say which state is the last")


def _check_heads(metas: tuple[Meta, Meta], fault: Callable[[str], None]) -> None:
    """Transactions take turns: the even ones are in the first head, the odd ones in the second."""
    even, odd = (meta.transaction for meta in metas)
    if even % 2 or not (odd % 2 or odd == 0) or abs(even - odd) > 1:
        fault(f"the two heads of the file do not fit together: transactions {even} and {odd}")


def _check_state(file: FileIO, page_bytes: int, meta: Meta, report: StoreReport) -> None:
    walk = Walk(file, page_bytes, meta.last_page, report.fault)
    if os.fstat(file.fileno()).st_size < (meta.last_page + 1) * page_bytes:
        report.fault("the file ends before its last page")
        return
    values = _Values(report)
    tables: dict[bytes, Table] = {}
    for name, data, flags in list(walk.entries("main", meta.main)):
        table = Table.of(data) if flags & SUBTABLE and len(data) == TABLE.size else None
        if name not in DATABASES or table is None or table.flags or table.page_bytes:
            report.fault(f"table main: {name!r} is no table of a store")
        else:
            tables[name] = table
    for name in DATABASES:  # "meta" first: it says which logs there are
        if name not in tables:
            report.fault(f"table {name.decode()}: is missing")
            continue
        for key, value, flags in walk.entries(name.decode(), tables[name]):
            if flags:
                report.fault(f"table {name.decode()}: the key {key.hex()} is a table")
            else:
                values.look(name, key, value)
        if name == b"meta":
            values.check_format()
    values.end()
    report.free_pages = walk.free(meta.free)
    report.page_bytes = page_bytes
    report.lost_pages = walk.seen.count(0)
    report.used_pages = len(walk.seen) - report.free_pages - report.lost_pages


class _Values:
    """Checks the entries, table by table."""

    def __init__(self, report: StoreReport) -> None:
        self._report = report
        self._logs: dict[bytes, str] = {}
        self._sealed: dict[bytes, tuple[int, int]] = {}
        """By the key of a long log: its first page that was not met yet, and the one after its last."""
        self._by_blocks: set[bytes] = set()
        """The keys of long logs by blocks whose `ahead` was not met yet."""
        self._format: bytes | None = None
        self._readers = {b"meta": self._note, b"logs": self._log, b"pages": self._page, b"receipts": self._receipt}

    def look(self, table: bytes, key: bytes, value: bytes) -> None:
        """One entry; the tables come in the order of `DATABASES`, the keys in theirs."""
        try:
            self._readers[table](key, value)
        except StoreError as error:
            self._report.fault(f"table {table.decode()}, {self._named(key)}: {error}")

    def check_format(self) -> None:
        """Check that the file has capline's format; raises `StoreVersionError` for another version's."""
        if self._format != FORMAT:
            self._report.fault(f"table meta: the format is {self._format!r}, not {FORMAT!r}")
            if (self._format or b"").startswith(FORMAT[:-1]):
                raise StoreVersionError(f"{self._report.path}: {self._report.faults[-1]}; it is left as it is")

    def end(self) -> None:
        """Report pages that were not found."""
        for key, (first, after) in self._sealed.items():
            if first < after:
                self._report.fault(f"table pages, {self._named(key)}: pages {first} to {after - 1} are missing")
        for key in self._by_blocks:
            self._report.fault(f"table pages, {self._named(key)}: its sums by block are missing")

    def _named(self, key: bytes) -> str:
        log = self._logs.get(key[:4])
        if log is not None:
            try:
                return f"log {log!r} of {subject_of(key[4:])!r}"
            except StoreError:
                pass
        return f"key {key.hex()}"

    def _note(self, key: bytes, value: bytes) -> None:
        if key == b"format":
            self._format = value
            return
        note = unseal(key, value)
        kind = b"log:" if key.startswith(b"log:") else key
        if len(note) != _NOTE_BYTES.get(kind):
            raise StoreDamagedError("is no note of a store")
        if kind == b"log:":
            self._logs[note[:4]] = key[4:].decode(errors="replace")

    def _log(self, key: bytes, value: bytes) -> None:
        self._report.logs += 1
        if key[:4] not in self._logs:
            raise StoreDamagedError("no log has this number")
        if key[4:5] != b"h":
            subject_of(key[4:])
        elif len(key) != 4 + 33:
            raise StoreDamagedError("the key names no subject")
        kind, words = read_words(value, key)
        if kind == NUMBERS:
            unpack_numbers(words)
            return
        log, lead = unpack_log(kind, words, LEAD_WORDS if kind & PAGED else 0)
        if any(later <= earlier for earlier, later in zip(log.stamps, log.stamps[1:], strict=False)):
            raise StoreDamagedError("its hits are out of order")
        if kind & PAGED:
            self._sealed[key] = lead[0], lead[1]
        if kind & BLOCKS:
            self._by_blocks.add(key)

    def _page(self, key: bytes, value: bytes) -> None:
        self._report.sealed_pages += 1
        head, number = key[:-4], _U32.unpack(key[-4:].rjust(4, b"\0"))[0]
        first, after = self._sealed.get(head, (0, 0))
        if number == AHEAD and head in self._by_blocks:
            self._by_blocks.remove(head)
            kind, words = read_words(value, key)
            if kind or not words or words[0] > first // BLOCK_PAGES:
                raise StoreDamagedError("these are no sums by block")
            return
        if not first <= number < after:
            raise StoreDamagedError(f"page {number} belongs to no log")
        if number > first:
            self._report.fault(f"table pages, {self._named(head)}: pages {first} to {number - 1} are missing")
        self._sealed[head] = number + 1, after
        kind, words = read_words(value, key)
        log, _ = unpack_log(kind, words, 1)
        if len(log.stamps) < PAGE_HITS:
            raise StoreDamagedError(f"page {number} is not one")

    def _receipt(self, key: bytes, value: bytes) -> None:
        self._report.receipts += 1
        unseal(key, value)
