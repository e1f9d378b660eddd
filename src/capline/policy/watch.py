"""Follows files: call `poll` now and then, read `current` at any time.

The rule: `current` is always made of whole, good files. A new version is read and validated first, then one reference
is swapped, so a reader never sees half of one. A version that is broken, or gone, changes only `error`.

A poll compares the state of each file (device, inode, size, mtime, ctime), by one `stat`. File systems have coarse
clocks: a second write in the same tick leaves the state the same. So a state is trusted only when it is older than two
seconds; until then each poll reads the bytes and compares them.

No thread and no timer: the program calls `poll`.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from capline.model.clock import Clock, SystemClock
from capline.model.errors import CaplineError, InvalidValueError
from capline.policy.file import PolicyFile, PolicyFileError, check_for_local, loads, read_bytes
from capline.support.fork import wait_at_fork
from capline.support.override import override

_T = TypeVar("_T")
_SETTLED_US = 2_000_000

_Signature = tuple[int, int, int, int, int]

Read = list[tuple[Path, bytes]]
"""Files and their bytes."""


@dataclass(frozen=True, slots=True)
class _State(Generic[_T]):
    current: _T
    error: CaplineError | None


class Watch(ABC, Generic[_T]):
    """Follows what some files hold, from `read` on. Threads may share it. `poll` costs a `stat` a file."""

    def __init__(self, read: Read, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._lock = Lock()
        wait_at_fork(self._lock)
        self._seen: tuple[_Signature, ...] | None = None  # None: read the bytes at the next poll
        self._taken = read
        self._written_ns = 0
        self._state = _State(self._made(read), None)

    @abstractmethod
    def _paths(self) -> Sequence[Path]:
        """The files that there are now."""

    @abstractmethod
    def _made(self, read: Read) -> _T:
        """What these files hold; raises the `CaplineError` that says what is wrong."""

    @property
    def current(self) -> _T:
        """What the last good files hold."""
        return self._state.current

    @property
    def error(self) -> CaplineError | None:
        """Why the present files are not `current`; None if they are."""
        return self._state.error

    def poll(self) -> bool:
        """Check whether anything changed; True if `current` was replaced. Never raises `CaplineError`."""
        with self._lock:
            try:
                return self._poll()
            except CaplineError as error:
                self._state = replace(self._state, error=error)
                return False

    def _poll(self) -> bool:
        now_us = self._clock.now_us()
        if self._seen is not None and self._signatures() == self._seen:
            return False
        self._seen = None
        found = [(path, *read_bytes(path)) for path in self._paths()]
        signatures = tuple([_signature_of(state) for *_, state in found])
        if self._signatures() != signatures:
            return False  # they were written meanwhile: the next poll reads them again
        read = [(path, data) for path, data, _ in found]
        changed = read != self._taken
        error: CaplineError | None = None
        if changed:
            try:
                self._state = _State(self._made(read), None)
                self._taken, self._written_ns = read, max((state.st_mtime_ns for *_, state in found), default=0)
            except CaplineError as refused:
                changed, error = False, refused
        self._state = replace(self._state, error=error)
        if now_us - max((state.st_ctime_ns for *_, state in found), default=0) // 1000 > _SETTLED_US:
            self._seen = signatures
        return changed

    def _signatures(self) -> tuple[_Signature, ...] | None:
        try:
            return tuple([_signature_of(path.stat()) for path in self._paths()])
        except OSError:
            return None


class PolicyWatch(Watch[PolicyFile]):
    """Follows one policy file; raises `PolicyFileError` when made on a file that is not good, and never afterwards.

    Threads may share it. `poll` costs one `stat` (about 2 microseconds) while nothing changes.

    A changed namespace is refused like a broken file, since all logs would be lost to it. Restart to change it.

    With `start` it begins with this version of the file, whatever the file says by now; `data` is the version in force.
    For a `local` store a policy that waits for replicas is a fault.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock | None = None,
        *,
        start: bytes | None = None,
        local: bool = False,
    ) -> None:
        data, state = read_bytes(path) if start is None else (start, None)
        self._name = os.fsdecode(path)
        self._path = Path(self._name).absolute()  # so that a chdir does not change which file is meant
        self._local = local
        self._namespace: str | None = None
        super().__init__([(self._path, data)], clock)
        self._written_ns = 0 if state is None else state.st_mtime_ns
        self._namespace = self.current.namespace

    @property
    def data(self) -> bytes:
        """The bytes of the file in force."""
        return self._taken[0][1]

    @property
    def version(self) -> tuple[str, int]:
        """The begin of the hash of the file in force, and the second when it was written, 0 if unknown."""
        return hashlib.sha256(self.data).hexdigest()[:8], self._written_ns // 1_000_000_000

    @override
    def _paths(self) -> Sequence[Path]:
        return (self._path,)

    @override
    def _made(self, read: Read) -> PolicyFile:
        file = loads(read[0][1], name=self._name)
        try:
            if self._local:
                check_for_local(file)
        except InvalidValueError as error:
            raise PolicyFileError.of(self._name, [(0, str(error))]) from None
        if self._namespace not in (None, file.namespace):
            change = f"namespace changed from {self._namespace!r} to {file.namespace!r}"
            raise PolicyFileError.of(self._name, [(0, f"{change}: all logs would be left behind; restart to mean it")])
        return file


def _signature_of(state: os.stat_result) -> _Signature:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
