"""The object store of a publication, with the same verbs for a local directory and for S3, Google and Azure.

`DirectoryStore` is a directory, `RemoteStore` a bucket; `address` opens the one that a URL means.

The rule: an object is whole or not there, and `swap` is a conditional write: it writes only if the object is still the
one that was read. A bucket has conditional PUT for that; a directory uses a rename under a lock file, since file
systems have create-if-absent but no compare-and-swap.

A directory needs no obstore, and so works in a forked process.
"""

import hashlib
import os
import re
import stat
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from capline.model.errors import SegmentError
from capline.segment import files
from capline.support.override import override
from capline.support.system import lock_file

CHUNK_BYTES = 4 << 20

_ABANDONED_US = 24 * 3_600_000_000
"""No write takes this long, so an older temporary file was abandoned."""

_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{12}\.tmp")


class ObjectMissingError(SegmentError):
    """There is no such object; the store itself was reachable."""


class ObjectData(msgspec.Struct, frozen=True):
    """A small object's bytes and the tag of its state, for `swap` and `get(unless=...)`."""

    data: bytes
    tag: str


class ObjectInfo(msgspec.Struct, frozen=True):
    """An object in a listing; `changed_us` is by the store's clock."""

    bytes: int
    changed_us: int


class ObjectStore(Protocol):
    """The operations of an object store. Every failure is a one-line `SegmentError` that names the object."""

    where: str

    @abstractmethod
    def get(self, path: str, most_bytes: int, unless: str | None = None) -> ObjectData | None:
        """Read a small object; None where its tag is still `unless`. `ObjectMissingError` if it is missing."""
        ...

    @abstractmethod
    def download(self, path: str, into: Path, size_bytes: int) -> str:
        """Write the object to a new file and return its SHA-256; `SegmentError` unless it has exactly this size."""
        ...

    @abstractmethod
    def upload(self, path: str, file: Path, sha256: str, progress: Callable[[int], object] | None = None) -> None:
        """Upload a file, replacing the object; `SegmentError`, and the object is as it was, unless this is its hash.

        `progress` is called with the bytes so far.
        """
        ...

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a small object, replacing any of that name."""
        ...

    @abstractmethod
    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        """Write the object only if its tag is still this one (None: only if it is missing); False where it is not.

        False may also mean that the write happened and its answer was lost: read the object to see who wrote it.
        """
        ...

    @abstractmethod
    def list(self, folder: str) -> dict[str, ObjectInfo]:
        """The objects in a folder, by name within it; empty where there is no such folder."""
        ...

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; a missing one is no error."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Close connections and processes."""
        ...


class DirectoryStore(ObjectStore):
    """A directory as an object store, created by the first write. Threads and processes may share it."""

    def __init__(self, path: Path) -> None:
        self._root = path.absolute()
        self.where = str(path)

    @override
    def get(self, path: str, most_bytes: int, unless: str | None = None) -> ObjectData | None:
        """The tag is the SHA-256 of the bytes."""
        try:
            data = files.read(self._root / path, most_bytes, shown=f"{self.where}/{path}")
        except SegmentError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                self._check_root()
                raise ObjectMissingError(f"{self.where}/{path}: there is no such object") from None
            raise
        tag = hashlib.sha256(data).hexdigest()
        return None if tag == unless else ObjectData(data, tag)

    @override
    def download(self, path: str, into: Path, size_bytes: int) -> str:
        shown = f"{self.where}/{path}"
        with files.os_errors("read it", shown):
            try:
                with files.opened(self._root / path, shown) as source:
                    check_size(shown, os.fstat(source.fileno()).st_size, size_bytes)
                    return write_chunks(iter(lambda: source.read(CHUNK_BYTES), b""), into, size_bytes, shown)
            except FileNotFoundError:  # `write_chunks` raises none
                raise ObjectMissingError(f"{shown}: there is no such object") from None

    @override
    def upload(self, path: str, file: Path, sha256: str, progress: Callable[[int], object] | None = None) -> None:
        with files.os_errors("write it", f"{self.where}/{path}"), file.open("rb") as source, self._new(path) as target:
            target.writelines(chunks_of(source, sha256, progress))

    @override
    def put(self, path: str, data: bytes) -> None:
        with files.os_errors("write it", f"{self.where}/{path}"), self._new(path) as target:
            target.write(data)

    @override
    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        """The lock is held for one rename; it ends with its process."""
        shown = f"{self.where}/{path}"
        with files.os_errors("write it", shown):
            self._root.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                lock_file(lock)
                try:
                    before = hashlib.sha256((self._root / path).read_bytes()).hexdigest()
                except FileNotFoundError:
                    before = None
                if before != tag:
                    return False
                # Who swaps holds the lock, so these were left by writers that were killed.
                for left in self._root.glob(".*.tmp"):
                    left.unlink(missing_ok=True)
                with self._new(path) as target:
                    target.write(data)
                return True
            finally:
                os.close(lock)

    @override
    def list(self, folder: str) -> dict[str, ObjectInfo]:
        """Includes files that a killed publisher left half written, once they are old enough."""
        found: dict[str, ObjectInfo] = {}
        abandoned_us = time.time_ns() // 1000 - _ABANDONED_US
        with files.os_errors("list it", f"{self.where}/{folder}"):
            if not (self._root / folder).exists():
                self._check_root()
                return found
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        changed_us = status.st_mtime_ns // 1000
                        left = _TEMPORARY.fullmatch(entry.name) is not None and changed_us < abandoned_us
                        if stat.S_ISREG(status.st_mode) and (left or not entry.name.startswith(".")):
                            found[entry.name] = ObjectInfo(status.st_size, changed_us)
        return found

    @override
    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with files.os_errors("delete it", f"{self.where}/{path}"):
                (self._root / path).unlink(missing_ok=True)

    @override
    def close(self) -> None:
        """Do nothing."""

    def _new(self, path: str) -> AbstractContextManager[BinaryIO]:
        final = self._root / path
        final.parent.mkdir(parents=True, exist_ok=True)
        return files.replacing(final)

    def _check_root(self) -> None:
        """Raise unless the directory can be read, or does not exist yet."""
        with files.os_errors("look at it", self.where):
            try:
                shape = self._root.stat()
            except FileNotFoundError:
                return
            if not stat.S_ISDIR(shape.st_mode):
                raise SegmentError(f"{self.where}: not a directory; choose another address")
            with os.scandir(self._root):
                pass


def chunks_of(source: BinaryIO, sha256: str, progress: Callable[[int], object] | None) -> Iterator[bytes]:
    """The bytes of an open file; raises at their end unless this is their SHA-256, before the object is complete."""
    digest, sent = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent)
    if digest.hexdigest() != sha256:
        raise SegmentError(f"{source.name}: changed while it was sent; nothing was replaced: try again")


def check_size(shown: str, size_bytes: int, expected_bytes: int) -> None:
    """Raise unless the object has the expected size."""
    if size_bytes != expected_bytes:
        raise SegmentError(
            f"{shown}: {size_bytes} bytes, the manifest says {expected_bytes}; it is torn: publish again"
        )


def write_chunks(chunks: Iterable[bytes], into: Path, size_bytes: int, shown: str) -> str:
    """Write the chunks to a new file, at most `size_bytes`, and return their SHA-256."""
    digest, taken = hashlib.sha256(), 0
    with files.os_errors("write it", into), into.open("xb") as target:
        for chunk in chunks:
            taken += len(chunk)
            if taken > size_bytes:
                break
            digest.update(chunk)
            target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    check_size(shown, taken, size_bytes)
    return digest.hexdigest()
