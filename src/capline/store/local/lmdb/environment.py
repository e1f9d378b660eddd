"""One LMDB environment, opened once in a process however many limiters name it, and maintained.

What LMDB leaves to its user:

- **Damage.** A file of another program or version, or one that is shorter than it says, is refused before it is mapped,
  and not touched.
- **Room.** The map is written through memory (half the cost of a decision), so its room is allocated before it is used:
  a full disk is an error at the time of growing, never a SIGBUS. A map that fills up grows by doubling, then by a
  gigabyte.
- **Sharing.** Another process may have grown it: the new size is taken over. Threads take turns, as writers do anyway.
- **Readers.** A process that is killed while it opens the file leaves a reader's slot, which keeps every later page
  from being reused. Such slots are cleared at opening, every 1,024 transactions, and before the map grows.
- **Locks.** Nobody opens the file while its `lock.mdb` is missing and others use it (`capline.store.local.lmdb.lock`).
- **Read-only.** Whoever asks for no new store may read one that cannot be written, on a file system mounted read-only
  alone, a transaction at a time (`capline.store.local.lmdb.lock`): a writer never waits long for that.
- **Forks.** A child must not use its parent's environment: it is closed there, and opened again when used.

Durability: `relaxed` leaves writing to the kernel. A killed process loses nothing. After a power loss, what the kernel
had not written is gone (Linux: by default what is younger than some 30 s), and as pages reach the disk in any order the
file may be damaged. `full` syncs at each transaction and loses nothing that was answered. That includes what an answer
rests on: where another process was killed between its commit and its sync, a retry of its id is synced before it is
answered. The file's name is synced with its directory first.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import lmdb

from capline.model.errors import InvalidValueError, StoreClosedError, StoreDamagedError, StoreError, StoreFullError
from capline.store.local.lmdb.files import DATABASES, FORMAT, check_file, check_format, find_store
from capline.store.local.lmdb.lock import StoreLock, why_read_only
from capline.store.local.log_bytes import seal, unseal
from capline.support.polled_lock import PolledLock
from capline.support.private import PRIVATE_FILE, create_private_file, make_private_directory
from capline.support.system import at_fork, fsync_directory, take_room

_T = TypeVar("_T")

FIRST_BYTES = 16 << 20
MOST_GROWTH_BYTES = 1 << 30
LEAST_GROWTH_BYTES = 1 << 20
_BEGUN = struct.Struct(">QQ")
LOOK_EVERY = 1024
"""After so many transactions of a process the readers' table and the identity of the files are checked."""
_RIGHTS = (
    "name a directory that can be written; an account writes data.mdb and lock.mdb, and one that only looks reads "
    "data.mdb and writes lock.mdb"
)


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

    def __init__(self, path: Path, durability: str, most_bytes: int | None, *, create: bool = True) -> None:
        self.path = path
        self._create = create
        self.read_only = ""
        """Why nothing can be written here; empty where it can."""
        self._alone = False
        self.durability = durability
        self.users = 0
        self.most_bytes = most_bytes
        self._lock = PolledLock()
        self._env: lmdb.Environment | None = None
        self._file_lock: StoreLock | None = None
        self._synced = 0
        self._since_look = 0
        self.tables: dict[bytes, lmdb._Database] = {}  # pyright: ignore[reportPrivateUsage] - its only name
        self._enter()
        if self._alone:
            self._shut()

    def run(self, work: Callable[[Transaction], _T]) -> _T:  # noqa: C901 - one clause for each error
        """Run `work` in one write transaction: committed when it returns, dropped when it raises.

        It runs again where the map had to grow, so it changes nothing but what it does through the transaction.
        """
        with self._lock:
            while True:
                env = self._ready()
                try:
                    txn: Any = env.begin(write=not self.read_only)
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
                except lmdb.ReadonlyError:
                    raise StoreError(f"{self.read_only}, so it can only be read; nothing was recorded") from None
                except lmdb.Error as error:
                    raise StoreError(f"{self.path}: {error}; nothing was recorded") from None
                finally:
                    if self._alone:
                        self._shut()

    def _settle(self, env: lmdb.Environment, number: int) -> None:
        """Make sure that all that this transaction has read is on disk; what it wrote is there already."""
        last: int = env.info()["last_txnid"]
        if last >= number:
            # This one wrote, or a later one did: its sync covers all that this one has read, but perhaps not itself.
            self._synced = number - 1
        elif last > self._synced:
            env.sync(True)
            self._synced = last

    def leave(self) -> None:
        """Drop one user; the last one syncs and closes the file."""
        with _opening:
            self.users -= 1
            if self.users == 0:
                with self._lock:
                    if self._env is not None:
                        with contextlib.suppress(lmdb.Error):
                            self._env.sync(True)
                        self._shut()
                for key, environment in list(_open.items()):
                    if environment is self:
                        del _open[key]

    def drop_in_child(self) -> None:
        """In a child after a fork: close what the parent mapped, touching nothing shared; the next use opens again."""
        if self._env is not None:
            self._shut()

    def stats(self) -> dict[str, int]:
        """Figures of the file; some twenty microseconds.

        `logs` are subjects with a log; `begun_us` is when the store was made, and `identity` a number drawn then.
        `readers` hold a snapshot now, which keeps younger pages from being reused; `oldest_reader` is how many
        transactions ago its snapshot was taken. `free_pages` are used before the file grows.
        """

        def work(txn: Transaction) -> dict[str, int]:
            env = self._env
            if env is None:
                raise StoreError(f"{self.path}: was closed")
            info, tables = env.info(), {name: txn.stat(table) for name, table in self.tables.items()}
            used = 2 + _pages(env.stat()) + sum(map(_pages, tables.values()))
            last = info["last_txnid"]
            readers = [words[-1] for words in map(str.split, env.readers().splitlines()[1:])]
            taken = [int(number) for number in readers if number.isdecimal()]
            begun_us, identity = _BEGUN.unpack(unseal(b"begun", txn.get(b"begun", b"", self.tables[b"meta"]) or b""))
            return {
                "logs": tables[b"logs"]["entries"],
                "begun_us": begun_us,
                "identity": identity,
                "readers": len(taken),
                "oldest_reader": last - min(taken, default=last),
                "used_pages": used,
                "free_pages": info["last_pgno"] + 1 - used,
                "page_bytes": env.stat()["psize"],
                "file_bytes": info["map_size"],
            }

        return self.run(work)

    def _ready(self) -> lmdb.Environment:
        """The open environment, checked every so often; an error there comes back at the next transaction."""
        env = self._env
        if env is None:
            if not self.users:
                raise StoreClosedError(f"{self.path}: was closed while this call waited; nothing was recorded")
            env = self._enter()
        self._since_look += 1
        if self._since_look >= LOOK_EVERY:
            if self._file_lock is not None:
                self._file_lock.check()
            with contextlib.suppress(lmdb.Error):
                env.reader_check()
            self._since_look = 0
        return env

    def _shut(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None
        if self._file_lock is not None:
            self._file_lock.leave()
            self._file_lock = None

    def hold(self) -> None:
        """Keep every transaction out until `let_go`."""
        self._lock.__enter__()

    def let_go(self) -> None:
        """End what `hold` began."""
        self._lock.release()

    def _enter(self) -> lmdb.Environment:
        while True:
            env = self._open()
            if self._alone or (self._file_lock is not None and self._file_lock.share()):
                self._synced = self._since_look = 0
                return env
            self._shut()

    def _open(self) -> lmdb.Environment:
        data = self.path / "data.mdb"
        try:
            check_file(data) if self._create else find_store(self.path)
            self.read_only = why_read_only(self.path, create=self._create)
            made = make_private_directory(self.path)
            create_private_file(data)
            self._file_lock = StoreLock(self.path)
            self._alone = self._file_lock.read_only
            size_bytes = check_file(data)
            if size_bytes:
                check_format(self.path, size_bytes, create=self._create, lock=not self._alone)
            env = self._env = lmdb.open(
                str(self.path),
                map_size=max(size_bytes, FIRST_BYTES),
                mode=PRIVATE_FILE,
                max_dbs=len(DATABASES),
                max_readers=512,
                readonly=bool(self.read_only),
                lock=not self._alone,
                writemap=not self.read_only,
                meminit=False,
                sync=self.durability == "full",
                metasync=self.durability == "full",
            )
            if self.read_only:
                self.tables = {name: env.open_db(name, create=False) for name in DATABASES}
            else:
                self._begin(env, made)
        except OSError as error:
            self._shut()
            where = error.filename or self.path
            raise StoreError(f"{where}: {error.strerror or error}; {_RIGHTS}") from None
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
            self._shut()
            raise StoreDamagedError(f"{data}: not a readable store ({error}); it is left as it is") from None
        except lmdb.Error as error:
            self._shut()
            raise StoreError(f"{self.path}: cannot be opened ({error})") from None
        except BaseException:
            self._shut()
            raise
        return env

    def _begin(self, env: lmdb.Environment, made: list[Path]) -> None:
        """Take the room of the map, and make what is missing in the file."""
        env.reader_check()
        self._allocate(env.info()["map_size"])
        self.tables = {name: env.open_db(name) for name in DATABASES}
        with env.begin(write=True, db=self.tables[b"meta"]) as txn:
            txn.put(b"format", FORMAT, overwrite=False)
            begun = _BEGUN.pack(time.time_ns() // 1000, int.from_bytes(os.urandom(8)))
            txn.put(b"begun", seal(b"begun", begun), overwrite=False)
        if self.durability == "full":
            self._sync_names(made)

    def _sync_names(self, made: list[Path]) -> None:
        """Sync the names on the path to the file: its own, its directory's, and those of directories made here.

        At every opening, since the process that made them may have been killed before it could.
        """
        for directory in {self.path, self.path.parent, *(one.parent for one in made)}:
            try:
                fsync_directory(directory)
            except PermissionError as error:
                # A directory of somebody else, which may be searched but not read.
                if directory == self.path or self.path in made:
                    raise StoreError(f"{directory}: cannot be synced ({error.strerror}); let it be read") from None
            except OSError as error:
                raise StoreError(f"{directory}: cannot be synced ({error.strerror}); nothing was recorded") from None

    def _grow(self, env: lmdb.Environment) -> None:
        if env.reader_check():
            return  # what dead readers kept may be used again
        now_bytes: int = env.info()["map_size"]
        step = min(now_bytes, MOST_GROWTH_BYTES)
        while True:
            next_bytes = now_bytes + step
            if self.most_bytes is not None and next_bytes > self.most_bytes:
                next_bytes = self.most_bytes
            if next_bytes <= now_bytes:
                raise StoreFullError(
                    f"{self.path}: holds its largest size, {now_bytes} bytes; nothing was recorded; "
                    "sweep it or raise max_bytes"
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
            take_room(fd, size_bytes)
        except OSError as error:
            raise StoreFullError(
                f"{self.path}: no room for a map of {size_bytes} bytes ({error.strerror}); nothing was recorded; "
                "free some disk space"
            ) from None
        finally:
            os.close(fd)


def open_environment(path: Path, durability: str, most_bytes: int | None = None, *, create: bool = True) -> Environment:
    """The environment at this directory; each caller lets go with `leave`.

    Where there is none it is made, or with `create` off `NoStoreError` is raised and nothing is made. Raises also
    `StoreDamagedError`, `StoreVersionError`, `StoreFullError` or `StoreError`; a file that is refused is not touched.
    """
    with _opening:
        key = _identity(path)
        environment = _open.get(key) if key else None
        if environment is None:
            environment = Environment(path, durability, most_bytes, create=create)
            key = _identity(path)
            if key is None:
                raise StoreError(f"{path}: vanished while it was opened")
            _open[key] = environment
        elif environment.durability != durability:
            raise InvalidValueError(
                f"{path} is open in this process with durability {environment.durability!r}; use the same for both"
            )
        elif environment.most_bytes != most_bytes:
            said = "without max_bytes" if environment.most_bytes is None else f"with max_bytes {environment.most_bytes}"
            raise InvalidValueError(f"{path} is open in this process {said}; use the same for both")
        environment.users += 1
        return environment


def is_open_here(path: Path) -> bool:
    """Whether this process has the environment of this directory open: LMDB allows that only once."""
    with _opening:
        return _identity(path) in _open


def _pages(stat: Any) -> int:
    return stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = (path / "data.mdb").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _before_fork() -> None:
    """Wait until no thread is in a transaction: a forked child could neither end it nor close the file."""
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


at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
