"""One LMDB environment, opened once in a process however many limiters name it, and looked after.

What LMDB itself leaves to its user:

- **Damage.** A file that is not ours, of another version, or shorter than it says is refused before it is mapped,
untouched.
- **Room.** The map is written through memory (half the cost of a decision), so its room is allocated before it is used:
a full
  disk is an error at the time of growing, never a SIGBUS. A map that fills up grows by doubling, then by a gigabyte.
- **Sharing.** Another process may have grown it: the new size is taken over. Threads take turns, as writers do anyway.
- **Forks.** A child must not use its parent's environment: it is closed there, and opened anew when used.

Durability: `relaxed` leaves writing to the kernel. A killed process loses nothing. After a power loss, what the kernel
had not written is gone (Linux: by default what is younger than some 30 s), and as pages reach the disk in any order the
file may be damaged. `full` syncs at each transaction and loses nothing that was answered: nor what another process had
committed in memory when it was killed, before it could sync, and an answer of this one rests upon (a retry of an id);
nor the file itself, whose name is synced with its directory before anything is answered.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import lmdb

from capline.model.errors import (
    InvalidValueError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreVersionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Environment", "Transaction", "open_environment"]

_T = TypeVar("_T")

FORMAT = b"capline lmdb 2"
FIRST_BYTES = 16 << 20
MOST_GROWTH_BYTES = 1 << 30
LEAST_GROWTH_BYTES = 1 << 20
DATABASES = (b"meta", b"logs", b"pages", b"receipts")

# LMDB's meta page: a 16-byte page header, then magic, version, address, map size, two tables (the first one's first
# field is the page size), the last page's number and the transaction's.
META = struct.Struct("<16xIIQQI92xQQ")
_MAGIC = 0xBEEFC0DE
_DATA_VERSION = 1


class Transaction(Protocol):
    """What the store uses of py-lmdb's transaction, which hands out bytes as it is opened here."""

    def get(self, key: bytes, default: bytes | None = None, db: Any = None) -> bytes | None:
        """The value, or the default."""
        ...

    def put(
        self,
        key: bytes,
        value: bytes,
        dupdata: bool = True,
        overwrite: bool = True,
        append: bool = False,
        db: Any = None,
    ) -> bool:
        """Set the value; False where it was there and `overwrite` is off."""
        ...

    def pop(self, key: bytes, db: Any = None) -> bytes | None:
        """Remove the value and return it."""
        ...

    def delete(self, key: bytes, value: bytes = b"", db: Any = None) -> bool:
        """Remove the value; False where there was none."""
        ...

    def cursor(self, db: Any = None) -> Any:
        """A cursor over the table."""
        ...

    def stat(self, db: Any) -> dict[str, int]:
        """The table's figures."""
        ...


_open: dict[tuple[int, int], Environment] = {}
_opening = threading.Lock()


class Environment:
    """An open environment with its tables; `run` is the only way in. Made by `open_environment`."""

    def __init__(self, path: Path, durability: str, most_bytes: int | None) -> None:
        self.path = path
        self.durability = durability
        self.users = 0
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._env: lmdb.Environment | None = None
        self._synced = 0
        self.tables: dict[bytes, lmdb._Database] = {}  # pyright: ignore[reportPrivateUsage] - its only name
        self._enter()

    def run(self, work: Callable[[Transaction], _T]) -> _T:
        """Run `work` in one write transaction: committed when it returns, dropped when it raises.

        It runs again where the map had to grow, so it changes nothing but what it does through the transaction.
        """
        with self._lock:
            while True:
                env = self._env or self._enter()
                try:
                    txn: Any = env.begin(write=True)
                    try:
                        number: int = txn.id()
                        answer = work(txn)
                        txn.commit()
                        if self.durability == "full":
                            self._settle(env, number)
                    except BaseException:
                        txn.abort()
                        raise
                    else:
                        return answer
                except lmdb.MapFullError:
                    self._grow(env)
                except lmdb.MapResizedError:
                    env.set_mapsize(0)
                except lmdb.DiskError as error:
                    raise StoreFullError(
                        f"{self.path}: the disk refused a write ({error}); nothing was recorded"
                    ) from None
                except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError) as error:
                    raise StoreDamagedError(
                        f"{self.path}: the file is damaged ({error}); restore it or start a new one"
                    ) from None
                except lmdb.Error as error:
                    raise StoreError(f"{self.path}: {error}; nothing was recorded") from None

    def _settle(self, env: lmdb.Environment, number: int) -> None:
        """Make sure that what this transaction has read is on the disk; what it wrote is there already."""
        last: int = env.info()["last_txnid"]
        if last >= number:
            # This one wrote, or one after it: whose sync covers all that this one has read, but perhaps not itself.
            self._synced = number - 1
        elif last > self._synced:
            env.sync(True)
            self._synced = last

    def leave(self) -> None:
        """One user less; the last one closes the file, which is then wholly on disk."""
        with _opening:
            self.users -= 1
            if self.users == 0:
                with self._lock:
                    if self._env is not None:
                        with contextlib.suppress(lmdb.Error):
                            self._env.sync(True)
                        self._env.close()
                        self._env = None
                for key, environment in list(_open.items()):
                    if environment is self:
                        del _open[key]

    def drop_in_child(self) -> None:
        """In a child after a fork: close what the parent mapped, touching nothing shared; the next use opens anew."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def hold(self) -> None:
        """Keep every transaction out until `let_go`."""
        self._lock.acquire()

    def let_go(self) -> None:
        """End what `hold` began."""
        self._lock.release()

    def _enter(self) -> lmdb.Environment:
        data = self.path / "data.mdb"
        made = [directory for directory in (self.path, *self.path.parents) if not directory.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            size_bytes = _check_file(data)
            if size_bytes:
                _check_format(self.path)
            env = lmdb.open(
                str(self.path),
                map_size=max(size_bytes, FIRST_BYTES),
                max_dbs=len(DATABASES),
                max_readers=512,
                writemap=True,
                meminit=False,
                sync=self.durability == "full",
                metasync=self.durability == "full",
            )
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}; name a directory that can be written") from None
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
            raise StoreDamagedError(f"{data}: not a readable store ({error}); it is left as it is") from None
        except lmdb.Error as error:
            raise StoreError(f"{self.path}: cannot be opened ({error})") from None
        try:
            self._allocate(env.info()["map_size"])
            self.tables = {name: env.open_db(name) for name in DATABASES}
            with env.begin(write=True, db=self.tables[b"meta"]) as txn:
                txn.put(b"format", FORMAT, overwrite=False)
            if self.durability == "full":
                self._sync_names(made)
        except BaseException:
            env.close()
            raise
        self._env, self._synced = env, 0
        return env

    def _sync_names(self, made: list[Path]) -> None:
        """Make the names durable that lead to the file: its own, its directory's, and those of directories made here.

        At every opening: whoever made them may have been killed before it could.
        """
        for directory in {self.path, self.path.parent, *(one.parent for one in made)}:
            try:
                _sync_directory(directory)
            except PermissionError as error:
                # A directory that others look after, and that may only be passed through.
                if directory == self.path or self.path in made:
                    raise StoreError(f"{directory}: cannot be synced ({error.strerror}); let it be read") from None
            except OSError as error:
                raise StoreError(f"{directory}: cannot be synced ({error.strerror}); nothing was recorded") from None

    def _grow(self, env: lmdb.Environment) -> None:
        now_bytes: int = env.info()["map_size"]
        step = min(now_bytes, MOST_GROWTH_BYTES)
        while True:
            next_bytes = now_bytes + step
            if self._most_bytes is not None and next_bytes > self._most_bytes:
                next_bytes = self._most_bytes
            if next_bytes <= now_bytes:
                raise StoreFullError(
                    f"{self.path}: holds its largest size, {now_bytes} bytes; nothing was recorded; "
                    "sweep it or raise max_bytes",
                )
            try:
                self._allocate(next_bytes)
            except StoreFullError:
                step //= 2
                if step < LEAST_GROWTH_BYTES:
                    raise
            else:
                env.set_mapsize(next_bytes)
                return

    def _allocate(self, size_bytes: int) -> None:
        """Give every byte of the map its place on the disk, so that no write through memory can find the disk full."""
        fd = os.open(self.path / "data.mdb", os.O_RDWR)
        try:
            stat = os.fstat(fd)
            if stat.st_size < size_bytes or stat.st_blocks * 512 < size_bytes:
                os.posix_fallocate(fd, 0, size_bytes)
        except OSError as error:
            raise StoreFullError(
                f"{self.path}: no room for a map of {size_bytes} bytes ({error.strerror}); nothing was recorded; "
                "free some disk space",
            ) from None
        finally:
            os.close(fd)


def open_environment(path: Path, durability: str, most_bytes: int | None = None) -> Environment:
    """The environment at this directory, made if there is none; each caller lets go with `leave`.

    Raises `StoreDamagedError`, `StoreVersionError`, `StoreFullError` or `StoreError`; a file that is refused is not
    touched.
    """
    with _opening:
        key = _identity(path)
        environment = _open.get(key) if key else None
        if environment is None:
            environment = Environment(path, durability, most_bytes)
            key = _identity(path)
            if key is None:
                raise StoreError(f"{path}: vanished while it was opened")
            _open[key] = environment
        elif environment.durability != durability:
            raise InvalidValueError(
                f"{path} is open in this process with durability {environment.durability!r}; use the same for both",
            )
        environment.users += 1
        return environment


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some file systems sync no directories, and say so.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        stat = (path / "data.mdb").stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _check_format(path: Path) -> None:
    """Read, as a reader beside whoever writes, whether the file is of our format or has nothing in it yet."""
    with lmdb.open(str(path), readonly=True, max_dbs=len(DATABASES)) as env, env.begin() as txn:
        if not env.stat()["entries"]:
            return
        try:
            found = bytes(txn.get(b"format", db=env.open_db(b"meta", txn, create=False)) or b"")
        except lmdb.NotFoundError:
            raise StoreVersionError(f"{path}: an LMDB file of something else; it is left as it is") from None
    # A process that is making the file at this moment has made its tables, and writes the format next.
    if found and found != FORMAT:
        raise StoreVersionError(
            f"{path}: written as {found.decode('ascii', 'replace')!r}, this capline reads {FORMAT.decode()!r}; it is "
            "left as it is; move its logs by `capline export` of the version that wrote it and `capline import` of "
            "this one",
        )


def _check_file(data: Path) -> int:
    """The file's size if it is a whole LMDB file, 0 if there is none; raises before anything maps it."""
    try:
        with data.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            head = file.read(META.size)
            if not head and not size_bytes:
                return 0
            if len(head) < META.size:
                raise StoreDamagedError(f"{data}: {size_bytes} bytes are too short for a store; it is left as it is")
            page_bytes = META.unpack(head)[4]
            file.seek(page_bytes if page_bytes in (4096, 8192, 16384, 32768, 65536) else 4096)
            second = file.read(META.size)
    except FileNotFoundError:
        return 0
    metas = [META.unpack(meta) for meta in (head, second) if len(meta) == META.size]
    for magic, version, _, _, _, _, _ in metas:
        if magic != _MAGIC:
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


def _before_fork() -> None:
    """Wait until no thread is in a transaction: a child could neither end one that it inherited nor close around it."""
    _opening.acquire()
    for environment in _open.values():
        environment.hold()


def _after_fork_in_parent() -> None:
    for environment in _open.values():
        environment.let_go()
    _opening.release()


def _after_fork_in_child() -> None:
    for environment in _open.values():
        environment.drop_in_child()
        environment.let_go()
    _opening.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
