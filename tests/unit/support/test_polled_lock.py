"""A thread that finds the lock taken tries again, and queues in the end."""

from threading import Event, Thread

import pytest

from capline.support import polled_lock
from capline.support.polled_lock import MOST_TRIES, PAUSE_S, PolledLock


def test_who_waits_tries_again_until_the_lock_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, pauses = PolledLock(), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            lock.release()

    monkeypatch.setattr(polled_lock, "sleep", sleep)
    assert lock.try_acquire(False)
    with lock:
        assert not lock.try_acquire(False)
    assert pauses == [PAUSE_S] * 3
    assert lock.try_acquire(False)


def test_who_has_tried_often_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, pauses, has_tried = PolledLock(), list[float](), Event()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == MOST_TRIES:
            has_tried.set()

    def take() -> None:
        with lock:
            pauses.append(0)

    monkeypatch.setattr(polled_lock, "sleep", sleep)
    waiter = Thread(target=take)
    with lock:
        waiter.start()
        assert has_tried.wait(20)
    waiter.join(20)
    assert pauses == [PAUSE_S] * MOST_TRIES + [0]
