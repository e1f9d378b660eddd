"""A configuration on this machine: in memory, or in an LMDB environment of its own.

    h NUL version            8 bytes, big-endian
    f NUL <8 bytes>          a commit of the feed, by its version
    w NUL <8 bytes>          pending rows
    t NUL <policy>           its totals
    <table> NUL <name>       a row of `p`, `pp`, `o`, `op`. A name too long for a key of LMDB is cut, and a hash put
                             behind it: then the row begins with the length of the name (2 bytes) and the name

LMDB: the directory `config/<namespace>` in that of the URL, so `lmdb:///var/lib/capline` may hold the logs as
well. Each step is one synced transaction.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol, TypeVar

from capline.config.backend import MOST_FEED, Backend, Head
from capline.config.records import OVERRIDES, POLICIES, Row, read_commit, version_of
from capline.model.errors import NoStoreError, StoreClosedError, StoreDamagedError, StoreError, StoreFullError
from capline.support.fork import wait_at_fork
from capline.support.override import override
from capline.support.private import PRIVATE_FILE, make_private_directory
from capline.support.system import is_mounted_read_only

_T = TypeVar("_T")
_VERSION = b"h\0version"
LONGEST_KEY = 400
_HASH_BYTES = 32
PAGE = 1000
"""Rows that a walk reads in one transaction."""
LARGEST_BYTES = 64 << 30
"""The size of LMDB's map: address space, not disk."""


class _Table(Protocol):
    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes) -> object: ...
    def delete(self, key: bytes) -> object: ...
    def walk(self, start: bytes) -> Iterator[tuple[bytes, bytes]]: ...


class LocalBackend(Backend, ABC):
    """All verbs, over transactions."""

    @abstractmethod
    def run(self, work: Callable[[Any], _T], *, write: bool = False) -> _T:
        """Run this work, a function of the table, in one transaction."""

    @override
    def head(self, seen: int) -> Head:
        def work(table: _Table) -> Head:
            version = _number(table.get(_VERSION))
            feed: list[bytes] | None = None
            if 0 <= version - seen <= MOST_FEED:
                found = [table.get(numbered(b"f", number)) for number in range(seen + 1, version + 1)]
                feed = [row for row in found if row is not None]
            return Head(version, time.time_ns() // 1000, feed, [value for _, value in below(table, b"w")])

        return self.run(work)

    @override
    def commit(self, expected: int, token: bytes, commit: bytes, pending: bytes, totals: Mapping[str, bytes]) -> bool:
        def work(table: _Table) -> bool:
            version = _number(table.get(_VERSION))
            if version != expected:
                made = table.get(numbered(b"f", expected + 1))
                return made is not None and read_commit(made).token == token
            version += 1
            table.put(_VERSION, version.to_bytes(8))
            table.put(numbered(b"f", version), commit)
            table.put(numbered(b"w", version), pending)
            table.delete(numbered(b"f", max(0, version - MOST_FEED)))
            for policy, value in totals.items():
                table.put(b"t\0" + policy.encode(), value)
            return True

        return self.run(work, write=True)

    @override
    def put(self, rows: Sequence[Row]) -> None:
        def work(table: _Table) -> None:
            for kind, name, row in rows:
                key = _key(kind, name)
                old = table.get(key)
                stored = len(name).to_bytes(2) + name + row if len(key) > LONGEST_KEY else row
                if old is None or version_of(_row(key, old)[1]) < version_of(row):
                    table.put(key, stored)

        self.run(work, write=True)

    @override
    def settle(self, version: int) -> None:
        self.run(lambda table: table.delete(numbered(b"w", version)), write=True)

    @override
    def get(self, table: str, names: Sequence[bytes]) -> list[bytes | None]:
        keys = [_key(table, name) for name in names]

        def work(held: _Table) -> list[bytes | None]:
            found = [held.get(key) for key in keys]
            return [None if row is None else _row(key, row)[1] for key, row in zip(keys, found, strict=True)]

        return self.run(work)

    @override
    def policies(self) -> Iterable[tuple[bytes, bytes]]:
        return self._rows(_key(POLICIES, b""))

    @override
    def overrides(self, policy: str, after: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        # A cut name keeps its beginning, so its prefix finds it too.
        return self._rows(f"{OVERRIDES}\0{policy}\0".encode(), after and _key(OVERRIDES, after) + b"\0")

    def _rows(self, first: bytes, after: bytes = b"") -> Iterable[tuple[bytes, bytes]]:
        """Those whose keys begin so, from the key `after` on."""
        start: bytes | None = after or first

        def work(held: _Table) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
            found: list[tuple[bytes, bytes]] = []
            for key, value in held.walk(start or first):
                if not key.startswith(first):
                    return found, None
                if len(found) == PAGE:
                    return found, key
                found.append(_row(key, value))
            return found, None

        while start is not None:
            page, start = self.run(work)
            yield from page

    @override
    def totals(self, policies: Sequence[str] | None = None) -> dict[str, bytes]:
        def work(table: _Table) -> dict[str, bytes]:
            if policies is None:
                return {key[2:].decode(): value for key, value in below(table, b"t")}
            found = {policy: table.get(b"t\0" + policy.encode()) for policy in policies}
            return {policy: value for policy, value in found.items() if value is not None}

        return self.run(work)


class _MemoryTable:
    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = value

    def delete(self, key: bytes) -> None:
        if self._rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def walk(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        first = bisect_left(self._keys, start)
        return ((key, self._rows[key]) for key in (self._keys[at] for at in range(first, len(self._keys))))


class MemoryBackend(LocalBackend):
    """In this process, as long as it is open."""

    shared = False

    def __init__(self) -> None:
        self._table = _MemoryTable()
        self._lock = threading.Lock()
        wait_at_fork(self._lock)

    @override
    def run(self, work: Callable[[Any], _T], *, write: bool = False) -> _T:
        with self._lock:
            return work(self._table)

    @override
    def close(self) -> None:
        pass


class _LmdbTable:
    def __init__(self, txn: Any) -> None:
        self._txn = txn
        self.get = txn.get
        self.put = txn.put
        self.delete = txn.delete

    def walk(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._txn.cursor()
        return cursor.iternext() if cursor.set_range(start) else iter(())


_open: dict[Path, LmdbBackend] = {}
_opening = threading.Lock()


class LmdbBackend(LocalBackend):
    """In a directory, shared by all processes of this machine. Made by `open_lmdb`."""

    shared = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self._lock = threading.Lock()
        self._env: Any = None
        self._lockless = False
        self._pid = 0

    def enter(self, *, create: bool) -> None:
        """Open the file, or create it with `create`; a forked child opens it again."""
        import lmdb  # noqa: PLC0415 - only the backend that is named is loaded

        if not create and not (self.path / "data.mdb").exists():
            raise NoStoreError(f"{self.path}: there is no configuration; capline config set makes one")
        try:
            make_private_directory(self.path)
            self._lockless = is_mounted_read_only(self.path)
            self._env = lmdb.open(
                str(self.path),
                map_size=LARGEST_BYTES,
                mode=PRIVATE_FILE,
                max_readers=512,
                readonly=self._lockless,
                lock=not self._lockless,
            )
            if not self._lockless:
                self._env.reader_check()
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}; name a directory that can be written") from None
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
            raise StoreDamagedError(
                f"{self.path}: not a readable configuration ({error}); it is left as it is"
            ) from None
        except lmdb.Error as error:
            raise StoreError(f"{self.path}: cannot be opened ({error})") from None
        self._pid = os.getpid()

    @override
    def run(self, work: Callable[[Any], _T], *, write: bool = False) -> _T:
        import lmdb  # noqa: PLC0415 - as above

        if self._pid != os.getpid():
            with self._lock:
                if self._env is not None and self._pid != os.getpid():
                    self._env.close()  # closes only this process's copy of the parent's
                    self.enter(create=False)
        if self._env is None:
            raise StoreClosedError(f"{self.path}: this configuration was closed")
        try:
            while True:
                with self._env.begin(write=write) as txn:
                    answer = work(_LmdbTable(txn))
                    # Mounted read-only here, it may be written elsewhere: after the next state its pages are reused.
                    if not self._lockless or self._env.info()["last_txnid"] == txn.id():
                        return answer
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            raise StoreFullError(f"{self.path}: {error}; nothing was changed") from None
        except (lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
            raise StoreDamagedError(f"{self.path}: the file is damaged ({error}); restore it") from None
        except lmdb.Error as error:
            raise StoreError(f"{self.path}: {error}; nothing was changed") from None

    @override
    def close(self) -> None:
        with _opening:
            self.users -= 1
            if not self.users:
                del _open[self.path]
                self._env.close()
                self._env = None


def open_lmdb(directory: Path, namespace: str, folder: str = "config", *, create: bool = True) -> LmdbBackend:
    """The configuration in this directory. LMDB may open a file only once in a process, so it is shared."""
    path = (directory / folder / namespace).absolute()
    with _opening:
        backend = _open.get(path)
        if backend is None:
            backend = LmdbBackend(path)
            backend.enter(create=create)
            _open[path] = backend
        backend.users += 1
        return backend


def _number(value: bytes | None) -> int:
    return 0 if value is None else int.from_bytes(value)


def numbered(kind: bytes, version: int) -> bytes:
    """The key of this kind and number."""
    return kind + b"\0" + version.to_bytes(8)


def below(table: _Table, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows whose keys are of this kind, in order."""
    return takewhile(lambda row: row[0].startswith(kind + b"\0"), table.walk(kind + b"\0"))


def _key(table: str, name: bytes) -> bytes:
    key = table.encode() + b"\0" + name
    if len(key) <= LONGEST_KEY:
        return key
    return key[: LONGEST_KEY - _HASH_BYTES + 1] + hashlib.blake2b(name, digest_size=_HASH_BYTES).digest()


def _row(key: bytes, stored: bytes) -> tuple[bytes, bytes]:
    if len(key) > LONGEST_KEY:
        split = 2 + int.from_bytes(stored[:2])
        return stored[2:split], stored[split:]
    return key.partition(b"\0")[2], stored
