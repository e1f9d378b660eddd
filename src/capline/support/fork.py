"""Locks that a forked process finds free, whoever held them in the parent: the thread that did is not in the child."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from weakref import WeakKeyDictionary, WeakSet

from capline.support.system import at_fork


class ForkLock:
    """`threading.Lock`, or a lock of another kind, as a context manager; free in the child after a fork."""

    def __init__(self, kind: Callable[[], AbstractContextManager[object]] = threading.Lock) -> None:
        self._kind = kind
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = self._kind()

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__(None, None, None)


_locks = WeakSet[ForkLock]()


def wait_at_fork(*locks: threading.Lock) -> None:
    """Fork between two holders of these locks, so that the child finds whole what they guard.

    Whoever holds one of them may wait for a later one, not for an earlier.
    """
    _waited.update(dict.fromkeys(locks))


MOST_WAIT_S = 10
"""For a lock whose holder does not go on, as one that forks itself."""

_waited = WeakKeyDictionary[threading.Lock, None]()
_taken: list[threading.Lock] = []
_forking = threading.Lock()


def _take_all() -> None:
    _forking.acquire()
    there = [lock for ref in _waited.keyrefs() if (lock := ref()) is not None]  # other threads may add some
    _taken.extend(lock for lock in there if lock.acquire(timeout=MOST_WAIT_S))


def _release_all() -> None:
    while _taken:
        _taken.pop().release()
    _forking.release()


def _renew_all() -> None:
    _release_all()
    for lock in _locks:
        lock.renew()


at_fork(before=_take_all, after_in_parent=_release_all, after_in_child=_renew_all)
