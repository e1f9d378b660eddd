"""A process that forks while its threads hold locks: the child goes on, with what was there."""

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from select import select
from time import sleep

import pytest

from capline import Limiter, Policy
from capline.config.local import MemoryBackend
from capline.policy.watch import PolicyWatch
from capline.service.record.kept import Record
from capline.service.settings import kept
from capline.service.settings.values import Record as Settings

WITHIN_S = 20

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # that a process with threads forks, from 3.12 on
]


def child_ends(work: Callable[[], bool]) -> bool:
    """Whether a forked child does this in time, and finds it true."""
    ended, held = os.pipe()
    child = os.fork()
    if not child:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    os.close(held)
    try:
        if not select([ended], [], [], WITHIN_S)[0]:  # the child's end of the pipe closes with it
            os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1] == 0
    finally:
        os.close(ended)


@contextmanager
def busy(work: Callable[[int], object]) -> Generator[None]:
    """Three threads that do this all the time."""
    stop = threading.Event()

    def run(number: int) -> None:
        while not stop.is_set():
            work(number)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("deny_cache", [0, 100])
def test_a_child_forked_while_threads_decide_goes_on(deny_cache: int) -> None:
    with Limiter("memory://", [Policy("promo", ["3/day"])], deny_cache=deny_cache) as limiter:
        limiter.decide_many("promo", ["ann"])  # imports are done: Python itself forks none of them whole

        def decide(number: int) -> None:
            limiter.decide("promo", f"busy-{number}")
            limiter.decide_many("promo", list(range(50)), receipt=f"{number}")

        def three(subject: str) -> bool:
            told = [bool(limiter.decide("promo", subject)) for _ in range(4)]
            limiter.decide_many("promo", [subject] * 2, receipt=f"child-{subject}")
            return told == [True, True, True, False]

        with busy(decide):
            assert [subject for subject in map(str, range(12)) if not child_ends(partial(three, subject))] == []


def test_a_child_forked_while_threads_look_at_a_policy_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text("policies:\n  promo: {limits: [1/day]}\n")
    watch = PolicyWatch(path)

    def change(number: int) -> None:
        path.write_text(f"policies:\n  promo: {{limits: [{number + 1}/day]}}\n")
        watch.poll()

    def look() -> bool:
        watch.poll()
        return "promo" in {policy.name for policy in watch.current.policies}

    with busy(change):
        assert [fork for fork in range(12) if not child_ends(look)] == []


def test_a_child_forked_while_threads_configure_in_memory_goes_on() -> None:
    backend = MemoryBackend()
    with busy(lambda _: backend.run(lambda _: sleep(0.001))):
        assert [fork for fork in range(12) if not child_ends(lambda: backend.run(lambda _: True))] == []


def test_a_child_forked_while_threads_change_policies_goes_on() -> None:
    policies = [[Policy("promo", [f"{quota}/day"])] for quota in range(1, 4)]

    def change(limiter: Limiter, number: int) -> bool:
        limiter.use(policies[number])
        return True

    with Limiter("memory://", policies[0]) as limiter, busy(partial(change, limiter)):
        assert [fork for fork in range(12) if not child_ends(partial(change, limiter, 0))] == []


def test_a_child_forked_while_threads_write_the_record_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kept.KEPT, str(tmp_path))
    kept.make_key(str(tmp_path))
    record = Record(Settings())

    def write(number: int) -> bool:
        record.write([(("promo", None, None, None, 1, 0, ""), number, "u", True, None, None)])
        return True

    with busy(write):
        assert [fork for fork in range(12) if not child_ends(partial(write, 0))] == []
