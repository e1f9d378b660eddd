"""A process that forks while its threads decide in memory: the child goes on, with what was there."""

import os
import threading
import time

import pytest

from capline import Limiter, Policy

WITHIN_S = 20

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # that a process with threads forks, from 3.12 on
]


def child_ends(limiter: Limiter, subject: str) -> bool:
    """Whether a forked child decides three times, and no more than three times."""
    child = os.fork()
    if not child:
        try:
            told = [bool(limiter.decide("promo", subject)) for _ in range(4)]
            limiter.decide_many("promo", [subject] * 2, receipt=f"child-{subject}")
            os._exit(0 if told == [True, True, True, False] else 1)
        finally:
            os._exit(2)
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.001)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


@pytest.mark.parametrize("deny_cache", [0, 100])
def test_a_child_forked_while_threads_decide_goes_on(deny_cache: int) -> None:
    stop = threading.Event()
    with Limiter("memory://", [Policy("promo", ["3/day"])], deny_cache=deny_cache) as limiter:
        limiter.decide_many("promo", ["ann"])  # imports are done: Python itself forks none of them whole

        def work(number: int) -> None:
            while not stop.is_set():
                limiter.decide("promo", f"busy-{number}")
                limiter.decide_many("promo", list(range(50)), receipt=f"{number}")

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert [subject for subject in map(str, range(12)) if not child_ends(limiter, subject)] == []
        finally:
            stop.set()
            for thread in threads:
                thread.join()
