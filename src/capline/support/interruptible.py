"""Standard input whose waiting always ends at Ctrl-C.

Python looks for signals between its steps. One that comes after the last look and before the system begins to read
would leave that read waiting for the next byte, perhaps for ever. So we wait in a `select` that a signal ends too,
whenever it came.
"""

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, BinaryIO

from capline.support.override import override


class _Reader(io.RawIOBase):
    """Reads a descriptor; each wait for it ends when the other one, to which signals write, can be read."""

    def __init__(self, fd: int, signals: int) -> None:
        self._fd = fd
        self._signals = signals

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any, /) -> int:
        while True:
            ready, _, _ = select.select([self._fd, self._signals], [], [])
            if self._signals not in ready:
                data = os.read(self._fd, len(buffer))
                buffer[: len(data)] = data
                return len(data)
            os.read(self._signals, 4096)  # what the signal's handler raises is raised by now


@contextmanager
def interruptible(source: BinaryIO) -> Generator[BinaryIO]:
    """The bytes of an open file, from where it is; the same file where no read waits for long, or in another thread."""
    try:
        fd = source.fileno()
    except io.UnsupportedOperation:
        yield source
        return
    # Windows selects among sockets only, and its reads end at Ctrl-C.
    if source.seekable() or sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield source
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield io.BufferedReader(_Reader(fd, reader))
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        os.close(reader)
