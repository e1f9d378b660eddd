"""Runs code with only what Windows has, as far as Linux can play that: `python -m kit.windows FOLDERS CODE`.

Python itself stays Linux's. capline is loaded a second time, with modules and calls taken away and the platform's name
changed; so what it takes from others has to be loaded before, by loading capline a first time.
"""

import ctypes
import fcntl
import importlib
import os
import pkgutil
import select
import shutil
import signal
import socket
import sys
import types
from collections.abc import Sequence
from typing import Any

MODULES = ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty", "pty", "uvloop")
CORE = (
    *("support", "model", "window", "forms", "policy", "store", "segment", "limiter", "config", "replay", "campaign"),
    *("web", "cli"),
)
UNLIKE = {
    os: "pread pwrite fork forkpty register_at_fork fchmod fchown chown lchown chroot getuid geteuid getgid getegid"
    " getpgid setsid killpg mkfifo nice statvfs fstatvfs posix_fallocate posix_fadvise sched_getaffinity set_blocking"
    " get_blocking sync wait4 waitid O_CLOEXEC O_NONBLOCK O_DIRECTORY O_NOFOLLOW O_SYNC O_DSYNC ST_RDONLY WNOHANG",
    signal: "SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGSTOP SIGCONT SIGPIPE alarm setitimer pause"
    " pthread_sigmask pthread_kill sigwait siginterrupt",
    select: "poll epoll",
    socket: "AF_UNIX",
}
EXCLUSIVE, BOTH, SHARED = "exclusive", "both", "shared"


class Kernel:
    """`LockFileEx` and `UnlockFileEx` as documented, made of `flock`."""

    def __init__(self, *_: object, **__: object) -> None:
        self._held: dict[int, str] = {}
        self._flock, close = fcntl.flock, os.close

        def closed(file: int) -> None:
            self._held.pop(file, None)
            close(file)

        os.close = closed

    def LockFileEx(self, handle: Any, how: int, zero: int, low: int, high: int, place: Any) -> int:  # noqa: N802 - its name
        assert (zero, low, high, place._obj.offset_high >> 31) == (0, 1, 0, 0)
        exclusive, file = how & 2, handle.value
        if not exclusive and self._held.get(file) == EXCLUSIVE:
            self._held[file] = BOTH
            return 1
        try:
            self._flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (fcntl.LOCK_NB if how & 1 else 0))
        except BlockingIOError:
            ctypes.set_errno(33)
            return 0
        self._held[file] = EXCLUSIVE if exclusive else SHARED
        return 1

    def UnlockFileEx(self, handle: Any, *_: object) -> int:  # noqa: N802 - its name
        stays = self._held[handle.value] == BOTH
        self._held[handle.value] = SHARED
        self._flock(handle.value, fcntl.LOCK_SH if stays else fcntl.LOCK_UN)
        return 1


def load(folders: Sequence[str]) -> None:
    """Import every module of these folders."""
    for folder in folders:
        package = importlib.import_module(f"capline.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # The last one's settings have to be there.
            if ".projects." not in module.name and not module.name.endswith((".__main__", ".drf")):
                importlib.import_module(module.name)


def become_windows(folders: Sequence[str]) -> None:
    """Take away what Windows lacks, once all that these folders import is there, and load them again."""
    load(folders)
    for name in [name for name in sys.modules if name.partition(".")[0] == "capline"]:
        del sys.modules[name]
    played: Any = ctypes
    played.WinDLL, played.get_last_error = Kernel, ctypes.get_errno
    played.WinError = OSError
    sys.modules["msvcrt"] = types.SimpleNamespace(get_osfhandle=int)  # type: ignore[assignment]
    room = shutil.disk_usage("/")
    shutil.disk_usage = lambda _: room
    for module, names in UNLIKE.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    sys.platform = "win32"
    load(folders)


if __name__ == "__main__":
    become_windows(sys.argv[1].split(",") if sys.argv[1] else CORE)
    exec(sys.argv[2])  # noqa: S102 - a test's
