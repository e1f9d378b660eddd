"""Follows a policy file: call `poll` now and then, read `current` at any time.

The rule: `current` is always a whole, good file. A new version is read and validated first, then one reference is
swapped, so a reader never sees half of one. A version that is broken, or gone, changes only `error`.

A poll compares the file's state (device, inode, size, mtime, ctime), by one `stat`. File systems have coarse clocks: a
second write in the same tick leaves the state the same. So a state is trusted only when it is older than two seconds;
until then each poll reads the bytes and compares their hash.

No thread and no timer: the program calls `poll`.
"""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from capline.model.clock import Clock, SystemClock
from capline.model.errors import InvalidValueError
from capline.policy.file import PolicyFile, PolicyFileError, check_for_local, loads, read_bytes
from capline.support.fork import wait_at_fork

_SETTLED_US = 2_000_000

_Signature = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _State:
    file: PolicyFile
    error: PolicyFileError | None


class PolicyWatch:
    """Follows one policy file; raises `PolicyFileError` when made on a file that is not good, and never afterwards.

    Threads may share it. `poll` costs one `stat` (about 2 microseconds) while nothing changes.

    A changed namespace is refused like a broken file, since all logs would be lost to it. Restart to change it.

    With `start` it begins with this version of the file, whatever the file says by now; `data` is the version in force.
    For a `local` store a policy that waits for replicas is a fault.
    """

    __slots__ = ("_clock", "_digest", "_local", "_lock", "_name", "_path", "_seen", "_state", "_written_s", "data")

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Clock | None = None,
        *,
        start: bytes | None = None,
        local: bool = False,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        data, state = read_bytes(path) if start is None else (start, None)
        self._name = os.fsdecode(path)
        self._path = Path(self._name).absolute()  # so that a chdir does not change which file is meant
        self._lock = Lock()
        wait_at_fork(self._lock)
        self._seen: _Signature | None = None  # None: read the bytes at the next poll
        self._digest, self._written_s = _digest(data), 0 if state is None else int(state.st_mtime)
        self.data, self._local = data, local
        self._state = _State(self._loads(data), None)

    @property
    def current(self) -> PolicyFile:
        """The last good file."""
        return self._state.file

    @property
    def error(self) -> PolicyFileError | None:
        """Why the present file is not `current`; None if it is."""
        return self._state.error

    @property
    def version(self) -> tuple[str, int]:
        """The begin of the hash of the file in force, and the second when it was written, 0 if unknown."""
        return self._digest.hex()[:8], self._written_s

    def poll(self) -> bool:
        """Check whether the file changed; True if `current` was replaced. Never raises `PolicyFileError`."""
        with self._lock:
            try:
                return self._poll()
            except PolicyFileError as error:
                self._state = replace(self._state, error=error)
                return False

    def _poll(self) -> bool:
        now_us = self._clock.now_us()
        if self._seen is not None and self._signature() == self._seen:
            return False
        self._seen = None
        data, state = read_bytes(self._path)
        signature = _signature_of(state)
        if self._signature() != signature:
            return False  # it was written meanwhile: the next poll reads it again
        digest = _digest(data)
        changed = digest != self._digest
        error: PolicyFileError | None = None
        if changed:
            try:
                self._take(self._loads(data), digest)
                self.data, self._written_s = data, int(state.st_mtime)
            except PolicyFileError as refused:
                changed, error = False, refused
        self._state = replace(self._state, error=error)
        if now_us - state.st_ctime_ns // 1000 > _SETTLED_US:
            self._seen = signature
        return changed

    def _loads(self, data: bytes) -> PolicyFile:
        file = loads(data, name=self._name)
        try:
            if self._local:
                check_for_local(file)
        except InvalidValueError as error:
            raise PolicyFileError.of(self._name, [(0, str(error))]) from None
        return file

    def _take(self, file: PolicyFile, digest: bytes) -> None:
        before = self._state.file.namespace
        if file.namespace != before:
            change = f"namespace changed from {before!r} to {file.namespace!r}"
            raise PolicyFileError.of(self._name, [(0, f"{change}: all logs would be left behind; restart to mean it")])
        self._state = _State(file, None)
        self._digest = digest

    def _signature(self) -> _Signature | None:
        try:
            return _signature_of(self._path.stat())
        except OSError:
            return None


def _signature_of(state: os.stat_result) -> _Signature:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
