"""What Linux, macOS and Windows do in their own ways: locks on files, names on disk, room, forks, a socket's readiness.

A lock is `flock` on Linux and macOS. On Windows what is locked cannot be read or written by others, so one byte is
locked that no file reaches. Both end with the process that holds them, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

ELSEWHERE = "needs Linux or macOS; on Windows take WSL"
NOT_BLOCKING: int = getattr(os, "O_NONBLOCK", 0)
"""For `os.open`: a named pipe in place of the file does not hang it. Windows has none among its files."""

if sys.platform == "win32":
    import ctypes
    import msvcrt

    class _Place(ctypes.Structure):
        """OVERLAPPED, with the last gigabytes that an offset can name."""

        _fields_ = (
            ("internal", ctypes.c_void_p),
            ("internal_high", ctypes.c_void_p),
            ("offset", ctypes.c_uint32),
            ("offset_high", ctypes.c_uint32),
            ("event", ctypes.c_void_p),
        )

    _KERNEL = ctypes.WinDLL("kernel32", use_last_error=True)
    _AT_ONCE, _EXCLUSIVE = 1, 2
    _TAKEN = 33

    def lock_file(file: int, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock an open file until it is closed; False where another holds it and nobody waits. Raises `OSError`."""
        how = (0 if shared else _EXCLUSIVE) | (0 if wait else _AT_ONCE)
        handle, place = ctypes.c_void_p(msvcrt.get_osfhandle(file)), _Place(offset_high=0x7FFFFFFF)
        if _KERNEL.LockFileEx(handle, how, 0, 1, 0, ctypes.byref(place)):
            return True
        code = ctypes.get_last_error()
        if code != _TAKEN:
            raise ctypes.WinError(code)
        return False

    def share_lock(file: int) -> None:
        """Make the exclusive lock on an open file a shared one, letting no other exclusive one in between."""
        lock_file(file, shared=True)  # beside the exclusive one, which the first unlocking ends
        handle, place = ctypes.c_void_p(msvcrt.get_osfhandle(file)), _Place(offset_high=0x7FFFFFFF)
        _KERNEL.UnlockFileEx(handle, 0, 1, 0, ctypes.byref(place))

    def at_fork(**_: Callable[[], Any]) -> None:
        """Nothing forks here."""
else:
    import fcntl

    at_fork = os.register_at_fork

    def lock_file(file: int, *, shared: bool = False, wait: bool = True) -> bool:
        """Lock an open file until it is closed; False where another holds it and nobody waits. Raises `OSError`."""
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def share_lock(file: int) -> None:
        """Make the exclusive lock on an open file a shared one."""
        fcntl.flock(file, fcntl.LOCK_SH)


def is_mounted_read_only(file: int | Path) -> bool:
    """Whether its file system is mounted read-only; never on Windows, which does not say."""
    return sys.platform != "win32" and bool(os.statvfs(file).f_flag & os.ST_RDONLY)


def fsync_directory(path: Path) -> None:
    """Force a directory's entries to disk: without it a rename may be undone by a power loss.

    Raises `OSError`, but not where the file system syncs no directories. Windows has no call for it.
    """
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def take_room(file: int, size_bytes: int) -> None:
    """Give each of these bytes of a file its place on disk. Windows does so as it grows; macOS has no call for it."""
    if sys.platform == "linux":
        held = os.fstat(file)
        if held.st_size < size_bytes or held.st_blocks * 512 < size_bytes:
            os.posix_fallocate(file, 0, size_bytes)


def take_rights(file: int, like: os.stat_result) -> None:
    """Give an open file the mode of another, and if this account may, its owner. Windows has neither."""
    if sys.platform != "win32":
        os.fchmod(file, stat.S_IMODE(like.st_mode))
        with contextlib.suppress(PermissionError):
            os.fchown(file, like.st_uid, like.st_gid)


def readable(wire: socket.socket) -> bool:
    """Whether bytes, or its end, can be read from it at once."""
    import select  # noqa: PLC0415 - only Redis with asyncio asks, which has loaded it

    if sys.platform == "win32":
        return bool(select.select([wire], [], [], 0)[0])
    poller = select.poll()  # a `select` there takes no descriptor above 1,023
    poller.register(wire.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def wait_in_kernel(wire: socket.socket, seconds: float) -> None:
    """Give a socket the kernel's timeouts in place of Python's, which ask before each call whether there is something.

    Beside other threads that takes a third of the time. What takes longer raises `BlockingIOError`. Windows keeps
    Python's.
    """
    if sys.platform != "win32":
        import socket  # noqa: PLC0415 - who has one has loaded it
        import struct  # noqa: PLC0415

        least = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        wire.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            wire.setsockopt(socket.SOL_SOCKET, option, least)


def who() -> str:
    """The name of this process's account, for what is written down; its number where it has none."""
    import getpass  # noqa: PLC0415 - loaded where something is written down

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}" if sys.platform != "win32" else "unknown"
