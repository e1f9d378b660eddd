"""A smaller file with the same logs: LMDB copies what is used, page behind page, and the copy takes the file's place.

The file of an embedded store never shrinks by itself. It can be replaced only while nobody has the store open, so the
store's lock is held exclusively for that (`capline.store.local.lmdb.lock`). A copy into another directory is possible
at any time: that is a backup of one committed state. A damaged store is not copied.

Interrupted anywhere, the file is the old one or the new one, whole.
"""

import os
import sys
from pathlib import Path

import lmdb
import msgspec

from capline.model.errors import StoreDamagedError, StoreError, StoreFullError
from capline.store.local.lmdb.check import check_store
from capline.store.local.lmdb.files import find_store
from capline.store.local.lmdb.lock import StoreLock
from capline.support.private import PRIVATE_FILE, make_private_directory
from capline.support.system import fsync_directory, take_rights

NEW_NAME = "data.mdb.new"


class Compacted(msgspec.Struct, frozen=True):
    """The file's size before and after."""

    path: str
    before_bytes: int
    after_bytes: int


def compact_store(path: Path, to: Path | None = None) -> Compacted:
    """Compact the store in this directory, in place or into another directory that holds none.

    Raises `StoreError` where somebody else has it open (in place only), where the target holds a store, or where the
    disk is full; `StoreDamagedError` where `check_store` finds a fault. Nothing has changed then.
    """
    report = check_store(path)
    if report.faults_found:
        raise StoreDamagedError(
            f"{path}: {report.faults_found} fault(s), the first: {report.faults[0]}; nothing was changed; look at them "
            "with `capline store check`"
        )
    try:
        return _in_place(path) if to is None else _beside(path, to)
    except OSError as error:
        raise StoreError(f"{to or path}: {error.strerror or error}; nothing was changed") from None
    except lmdb.DiskError as error:
        raise StoreFullError(f"{to or path}: no room for the copy ({error}); nothing was changed") from None
    except lmdb.Error as error:
        raise StoreError(f"{path}: cannot be copied ({error}); nothing was changed") from None


def _in_place(path: Path) -> Compacted:
    if sys.platform == "win32":  # which replaces no file that is open, and the lock is on the file
        raise StoreError(f"{path}: can be compacted in its place on Linux or macOS only; copy it by --to DIRECTORY")
    lock = StoreLock(path)
    try:
        if not lock.alone:
            raise StoreError(
                f"{path}: another process has it open; end it first, or copy into a new directory by --to DIRECTORY"
            )
        data = path / "data.mdb"
        before = data.stat()
        new = path / NEW_NAME
        after_bytes = _copy(path, new, before, lock)
        new.replace(data)
        fsync_directory(path)
        return Compacted(str(path), before.st_size, after_bytes)
    finally:
        lock.leave()


def _beside(path: Path, to: Path) -> Compacted:
    lock = StoreLock(path)
    try:
        target = to / "data.mdb"
        if target.exists() or (to / "lock.mdb").exists():
            raise StoreError(f"{to}: holds a store already; name a directory that does not")
        make_private_directory(to)
        after_bytes = _copy(path, to / NEW_NAME, None, lock)
        (to / NEW_NAME).rename(target)
        fsync_directory(to)
        return Compacted(str(to), (path / "data.mdb").stat().st_size, after_bytes)
    finally:
        lock.leave()


def _copy(path: Path, new: Path, like: os.stat_result | None, lock: StoreLock) -> int:
    """Write the compacted file, whole and synced, or leave none; with the mode and owner of the one that it is like."""
    size_bytes = find_store(path)
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    try:
        with lmdb.open(str(path), readonly=True, lock=not lock.read_only, map_size=size_bytes) as env:
            if like is None:
                lock.let_in()
            env.copyfd(fd, compact=True)
        if like is not None:
            take_rights(fd, like)
        os.fsync(fd)
        return os.fstat(fd).st_size
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
