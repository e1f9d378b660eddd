"""Bounded reads and atomic writes of files.

A file is written under a temporary name, forced to disk and renamed, and its directory is forced to disk. So after any
crash there is the old file or the new one, never half of one. Every `OSError` becomes a one-line `SegmentError`.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from capline.model.errors import SegmentError
from capline.support.system import ELSEWHERE, NOT_BLOCKING, fsync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import numpy as np
    import numpy.typing as npt
else:
    from capline.model.arrays import np


@contextmanager
def os_errors(doing: str, path: str | Path) -> Generator[None]:
    """Turn an `OSError` into a `SegmentError` that names the path and the system's reason."""
    try:
        yield
    except OSError as error:
        raise SegmentError(f"{path}: cannot {doing}: {error.strerror or error}") from error


def read(path: str | Path, most_bytes: int, *, directory: int | None = None, shown: str | Path | None = None) -> bytes:
    """Return a regular file's bytes; `SegmentError` above `most_bytes`, before any of it is read.

    `directory` is an open directory that `path` is relative to, `shown` the name for messages.
    """
    shown = path if shown is None else shown
    with os_errors("read it", shown), opened(path, shown, directory) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise SegmentError(f"{shown}: {size_bytes} bytes, at most {most_bytes} are allowed")
        return file.read(most_bytes + 1)


@contextmanager
def opened(path: str | Path, shown: str | Path, directory: int | None = None) -> Generator[BinaryIO]:
    """A regular file, open for reading; raises OSError, or `SegmentError` for any other kind."""
    # Not blocking: a named pipe in place of the file must not hang the reader.
    handle = os.open(path, os.O_RDONLY | NOT_BLOCKING, dir_fd=directory)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise SegmentError(f"{shown}: not a regular file")
        yield file


def map_file(
    path: str | Path, exact_bytes: int, *, directory: int | None = None, shown: str | Path | None = None
) -> npt.NDArray[np.uint8]:
    """Map a regular file of exactly this size; otherwise like `read`. A page is read when it is first used.

    The array keeps the mapping. Reading past the end of a file that was cut short later kills the process (SIGBUS), so
    map only files that are replaced by renames and never changed in place.
    """
    shown = path if shown is None else shown
    with os_errors("read it", shown), opened(path, shown, directory) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes != exact_bytes:
            raise SegmentError(f"{shown}: {size_bytes} bytes, where {exact_bytes} are right")
        return np.frombuffer(mmap.mmap(file.fileno(), exact_bytes, access=mmap.ACCESS_READ), dtype=np.uint8)


def open_directory(path: str | Path) -> int:
    """Open a directory, so that files are read from it even if another one gets its name meanwhile."""
    if sys.platform == "win32":
        raise SegmentError(f"{path}: reading segments {ELSEWHERE}")
    with os_errors("open it as a directory", path):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def create(path: Path, data: bytes | memoryview) -> None:
    """Write a new file and force it to disk; raises OSError, also where the name is taken."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write(path: str | Path, data: bytes | memoryview) -> None:
    """Create or replace a file, atomically."""
    with os_errors("write it", path), replacing(Path(path)) as target:
        target.write(data)


@contextmanager
def replacing(final: Path, opener: Callable[[str, int], int] | None = None) -> Generator[BinaryIO]:
    """A new file to write in the block; afterwards it is on disk under this name, or not at all. Raises OSError.

    Only a regular file is replaced: whoever is root could else replace a device, or /dev/stdout.
    """
    if final.is_symlink() or (final.exists() and not final.is_file()):
        raise OSError(errno.EINVAL, "not a regular file")
    temporary = beside(final)
    try:
        with open(temporary, "xb", opener=opener) as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(final)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(final.parent)


def beside(final: Path) -> Path:
    """An unused hidden name in the same directory. Files with such names, left by killed writers, may be deleted."""
    return final.with_name(f".{final.name}.{secrets.token_hex(6)}.tmp")
