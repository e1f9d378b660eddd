"""A lock for work of microseconds, which threads that wait try again instead of queueing for it.

Who queues is woken when the lock is free, and then waits for the interpreter, with the lock: each call that comes
meanwhile queues as well, and from then on every call costs a switch of threads. Who sleeps lets the others run on.
"""

import threading
from time import sleep

PAUSE_S = 0.00005
MOST_TRIES = 8
"""After so many it queues, so that it gets the lock at last, and many who wait long do not wake up all the time."""


class PolledLock:
    """`threading.Lock`; what has to be fast calls `try_acquire(False)` itself, and `wait` where that fails."""

    def __init__(self) -> None:
        self.lock = lock = threading.Lock()
        self.try_acquire = lock.acquire
        self.release = lock.release

    def wait(self) -> None:
        """Acquire the lock once it is free."""
        for _ in range(MOST_TRIES):
            sleep(PAUSE_S)
            if self.try_acquire(False):
                return
        self.try_acquire()

    def __enter__(self) -> None:
        if not self.try_acquire(False):
            self.wait()

    def __exit__(self, *_: object) -> None:
        self.release()
