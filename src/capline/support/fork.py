"""A lock that a forked process finds free, whoever held it in the parent: the thread that did is not in the child."""

import threading
from weakref import WeakSet

from capline.support.system import at_fork


class ForkLock:
    """`threading.Lock` as a context manager; free in the child after a fork."""

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks = WeakSet[ForkLock]()


def _renew_all() -> None:
    for lock in _locks:
        lock.renew()


at_fork(after_in_child=_renew_all)
