"""Checks before LMDB maps a file: whether it is a file, whole, with a sound head, and of capline's format.

A file that is refused is not touched.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from pathlib import Path

import lmdb

from capline.model.errors import NoStoreError, StoreDamagedError, StoreVersionError

FORMAT = b"capline lmdb 2"
DATABASES = (b"meta", b"logs", b"pages", b"receipts")
PAGE_SIZES = (4096, 8192, 16384, 32768, 65536)

# LMDB's meta page: a 16-byte page header, then magic, version, address, map size, two tables (the first one's first
# field is the page size), the last page's number and the transaction's.
META = struct.Struct("<16xIIQQI92xQQ")
_MAGIC = 0xBEEFC0DE
_DATA_VERSION = 1


def check_file(data: Path) -> int:
    """The file's size if it is a whole LMDB file, 0 if there is none; raises before anything maps it."""
    for path in (data, data.with_name("lock.mdb")):
        # Before it is opened: a FIFO would wait for ever, and a device may do anything.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.stat().st_mode):
                raise StoreDamagedError(f"{path}: not a regular file, so no store; it is left as it is")
    try:
        with data.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            head = file.read(META.size)
            if not head and not size_bytes:
                return 0
            if len(head) < META.size:
                raise StoreDamagedError(f"{data}: {size_bytes} bytes are too short for a store; it is left as it is")
            page_bytes = META.unpack(head)[4]
            file.seek(page_bytes if page_bytes in PAGE_SIZES else 4096)
            second = file.read(META.size)
    except FileNotFoundError:
        return 0
    metas = [META.unpack(meta) for meta in (head, second) if len(meta) == META.size]
    for magic, version, _, _, bytes_a_page, _, _ in metas:
        if magic != _MAGIC or bytes_a_page not in PAGE_SIZES or bytes_a_page != page_bytes:
            raise StoreDamagedError(f"{data}: not an LMDB file, or its head is damaged; it is left as it is")
        if version != _DATA_VERSION:
            raise StoreVersionError(
                f"{data}: LMDB data version {version}, this capline reads {_DATA_VERSION}; it is left as it is"
            )
    last_page = max(metas, key=lambda meta: meta[6])[5]
    if size_bytes < (last_page + 1) * page_bytes:
        raise StoreDamagedError(
            f"{data}: {size_bytes} bytes, but its last page ends at {(last_page + 1) * page_bytes}: it was cut off; "
            "it is left as it is",
        )
    return size_bytes


def check_format(path: Path, size_bytes: int, *, create: bool, lock: bool = True) -> None:
    """Read, with `lock` while others may write, whether the file has capline's format; with `create` it may be empty.

    It is empty where the one who made it found no room on the disk.
    """
    # The whole file is mapped, so that a writer that takes further pages of it meanwhile is no error.
    tables = len(DATABASES)
    with lmdb.open(str(path), readonly=True, lock=lock, map_size=size_bytes, max_dbs=tables) as env, env.begin() as txn:
        if not env.stat()["entries"]:
            if not create:
                raise _no_store(path)
            return
        try:
            found = bytes(txn.get(b"format", db=env.open_db(b"meta", txn, create=False)) or b"")
        except lmdb.NotFoundError:
            raise StoreVersionError(f"{path}: an LMDB file of something else; it is left as it is") from None
    # Another process may be creating the file: it makes the tables first and writes the format next.
    if found and found != FORMAT:
        raise StoreVersionError(
            f"{path}: written as {found.decode('ascii', 'replace')!r}, this capline reads {FORMAT.decode()!r}; it is "
            "left as it is; move its logs by `capline export` of the version that wrote it and `capline import` of "
            "this one",
        )


def find_store(path: Path) -> int:
    """The file's size; raises `NoStoreError` where there is none, and what `check_file` raises."""
    size_bytes = check_file(path / "data.mdb")
    if not size_bytes:
        raise _no_store(path)
    return size_bytes


def _no_store(path: Path) -> NoStoreError:
    return NoStoreError(f"there is no store at {path}: nothing was ever decided there; look at the path")
