"""A lock on `data.mdb` itself, held by every process that has the embedded store open; independent of `lock.mdb`.

LMDB keeps its writers' lock in `lock.mdb`. If that file is removed while the store is in use, the next process makes a
new one, and then two writers write at once. So every process that has the store open also holds a shared `flock` on
`data.mdb`. The first process holds it exclusively while it opens the store, and may make `lock.mdb`. A process that
finds the store in use but no `lock.mdb` is refused. `capline store compact` holds the lock exclusively while it
replaces the file.

A file system mounted read-only has no readers' table in `lock.mdb`, and the same file may be mounted elsewhere for
writing. So it is read there only while the lock is held exclusively: nobody then reuses a page that is being read.

The kernel releases the lock when its holder ends, however it ends. Locking and releasing cost a few microseconds, at
opening only.
"""

import contextlib
import logging
import os
import time
from pathlib import Path

from capline.model.errors import StoreError
from capline.support.system import NOT_BLOCKING, is_mounted_read_only, lock_file, share_lock

OTHERS_OPEN_S = 30.0
"""How long to wait for a process that holds the lock exclusively: opening takes milliseconds, compacting longer."""
LOCK_IS_MISSING_S = 1.0
"""How long `lock.mdb` must be missing while the store is in use: a process that was killed while it opened it first is
soon followed by another. Also how long a store that is mounted read-only must be in use: a reader holds it briefly."""
RETRY_S = 0.005

_log = logging.getLogger("capline")


class StoreLock:
    """A lock on the file of the store in this directory, which must exist. Raises `StoreError` and `OSError`.

    It is exclusive if nobody else has the store open, until `share`; else it is shared.
    """

    def __init__(self, directory: Path) -> None:
        self._data, self._lock = directory / "data.mdb", directory / "lock.mdb"
        self._warned = False
        begun = time.monotonic()
        refused_since: float | None = None
        while True:
            self._fd = os.open(self._data, os.O_RDONLY | NOT_BLOCKING)
            try:
                self.alone = lock_file(self._fd, wait=False)
                self.read_only = is_mounted_read_only(self._fd)
                if not self.alone and not lock_file(self._fd, shared=True, wait=False):
                    refused_since, why = None, "another process is opening or compacting it; try again"
                elif not self._is_ours():
                    refused_since, why = None, "it is being replaced; try again"
                elif self.alone or (self._lock.exists() and not self.read_only):
                    break
                else:
                    refused_since = refused_since or time.monotonic()
                    why = (
                        "another process has it open for writing, and nothing keeps it from reusing what is read on a "
                        "read-only file system; read it where it is mounted for writing"
                        if self.read_only
                        else "lock.mdb was removed while other processes use it; end them all, then start again"
                    )
            except BaseException:
                os.close(self._fd)
                raise
            os.close(self._fd)
            now = time.monotonic()
            if now - begun > OTHERS_OPEN_S or (refused_since and now - refused_since > LOCK_IS_MISSING_S):
                raise StoreError(f"{directory}: {why}; nothing was recorded")
            time.sleep(RETRY_S)
        self._lock_identity = _identity(self._lock)

    def share(self) -> bool:
        """LMDB has the store open now: let others in. False where the file was replaced meanwhile: open it again."""
        share_lock(self._fd)
        self.alone = False
        self._lock_identity = _identity(self._lock)
        return self._is_ours()

    def let_in(self) -> None:
        """`share` that raises `StoreError` if the file was replaced meanwhile; not where it is mounted read-only."""
        if self.alone and not self.read_only and not self.share():
            raise StoreError(f"{self._data}: is being replaced; try again")

    def check(self) -> None:
        """Check that both files are still the ones that were opened; a few microseconds.

        A missing `lock.mdb` is a warning: no further process can open the store, and those that have it open go on.
        Raises `StoreError` if either file was replaced.
        """
        if not self._is_ours():
            raise StoreError(
                f"{self._data}: was removed or replaced while it was open; nothing was recorded; start this process "
                "again"
            )
        found = _identity(self._lock)
        if found is None and not self._warned:
            self._warned = True
            _log.warning("%s was removed while it is in use; no further process can open the store", self._lock)
        elif found not in {None, self._lock_identity}:
            raise StoreError(
                f"{self._lock}: was replaced while it was open, so others may write at once; nothing was recorded; end "
                "every process that uses the store, then run `capline store check`"
            )

    def leave(self) -> None:
        """Release the lock; in a forked child only the child's descriptor."""
        os.close(self._fd)

    def _is_ours(self) -> bool:
        stat = os.fstat(self._fd)
        return _identity(self._data) == (stat.st_dev, stat.st_ino)


def why_read_only(directory: Path, *, create: bool) -> str:
    """Why this account can only read the store in this directory; empty where it can write it, or make it.

    Raises `OSError` where it cannot use it, or with `create` cannot write it. To read it has to write LMDB's readers'
    table in `lock.mdb`, except on a file system mounted read-only.
    """
    data, lock = directory / "data.mdb", directory / "lock.mdb"
    try:
        os.close(os.open(data, os.O_RDWR))
    except FileNotFoundError:
        return ""
    except OSError as error:
        if create:
            raise
        if not is_mounted_read_only(data):
            os.close(os.open(lock, os.O_RDWR))
        return f"{data}: {error.strerror}"
    with contextlib.suppress(FileNotFoundError):
        os.close(os.open(lock, os.O_RDWR))
    return ""


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino
