"""Clocks that are wrong: the server's, the machine's under the embedded store, and the callers'.

The rule is kept by the clock that stamps, and a log's time never runs backwards. So a clock that steps back can only
make callers wait, and says for how long; and whose clock is asked does not matter where another one stamps.
"""

import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.kit.server import SLOW, Limiters, each_kind, soon
from tests.kit.servers import single

from capline import Limiter, Policy

HOUR_US = 3_600_000_000
SECOND_US = 1_000_000
QUOTA, WINDOW_US = 5, 2 * SECOND_US
STALL_US = 60 * SECOND_US
"""A busy machine may take so long from one line to the next."""
POLICIES = (
    Policy("p", [f"{QUOTA}/2s"], log="log"),
    Policy("all", ["1000000/day"], log="log"),
    Policy("hourly", [f"{QUOTA}/hour"]),
)
"""The second one keeps the first one's hits; nobody is so slow that the third one's window ends."""
SOURCE = Path(__file__).with_name("stepped_clock.c")


class Stepped:
    """A wall clock as the stores take one, some microseconds off."""

    def __init__(self) -> None:
        self.offset_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.offset_us

    def step(self, offset_us: int) -> None:
        self.offset_us = offset_us


class Preload:
    """The same for a whole process, by a library that is loaded before all others."""

    def __init__(self, library: Path, offset: Path) -> None:
        self._library, self._offset = library, offset
        self._offset.write_bytes(bytes(8))
        with self._offset.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), 8)

    def step(self, offset_us: int) -> None:
        self._mapped[:] = struct.pack("=q", offset_us)

    @property
    def names(self) -> dict[str, str]:
        """For the environment of the process."""
        return {"LD_PRELOAD": str(self._library), "STEPPED_CLOCK": str(self._offset)}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) to make a clock that can be stepped")
    made = tmp_path_factory.mktemp("clock") / "stepped_clock.so"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(made), str(SOURCE)], check=True)
    return made


@contextmanager
def stepped_server(kind: str, preload: Preload, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    with monkeypatch.context() as patched:
        for name, value in preload.names.items():
            patched.setenv(name, value)
        server = single(kind)
    with server:
        yield server


class Seen:
    """What one caller was granted, in microseconds of a clock that nobody steps."""

    def __init__(self, limiter: Any) -> None:
        self._limiter = limiter
        self.granted: list[tuple[int, int]] = []

    def ask(self) -> Any:
        """Ask once."""
        asked_us = time.monotonic_ns() // 1000
        answer = self._limiter.decide("p", "s")
        if answer:
            self.granted.append((asked_us, time.monotonic_ns() // 1000))
        return answer

    def ask_until_refused(self) -> None:
        """More than the quota only where the machine is so slow that the first hits are old by then."""
        while self.ask():
            assert len(self.granted) < 100 * QUOTA, "nothing is ever refused"

    def has_been_granted(self, hits: int) -> bool:
        """Whether so many have been granted, after one more try."""
        self.ask()
        return len(self.granted) >= hits

    def most_within_a_window(self) -> int:
        """The most that were certainly granted within less than one window of real time."""
        return max(
            sum(asked_us > last_us - WINDOW_US for asked_us, _ in self.granted[: number + 1])
            for number, (_, last_us) in enumerate(self.granted)
        )


def stepping_back_only_makes_callers_wait(limiter: Any, step: Callable[[int], None]) -> None:
    seen = Seen(limiter)
    seen.ask_until_refused()
    for offset_us in (-HOUR_US, -HOUR_US + WINDOW_US, -2 * HOUR_US):
        step(offset_us)
        granted = len(seen.granted)
        for _ in range(20):
            refused = seen.ask()
            assert -offset_us - STALL_US < refused.retry_after_us <= -offset_us + WINDOW_US, "it says how long"
            time.sleep(0.004)
        assert len(seen.granted) == granted, "the hits of before the step count on"
        new = [bool(limiter.decide("hourly", f"new at {offset_us}")) for _ in range(QUOTA + 1)]
        assert new == [True] * QUOTA + [False]
    step(0)
    granted = len(seen.granted)
    assert soon(lambda: seen.has_been_granted(granted + QUOTA)), "it goes on when the clock has caught up"
    assert seen.most_within_a_window() <= QUOTA
    # And ahead for a moment: an hour has passed, as far as anybody can tell, and then has not.
    step(HOUR_US)
    assert limiter.decide("p", "s")
    step(0)
    refused = limiter.decide("p", "ahead") and limiter.decide("p", "s")
    while refused:
        refused = limiter.decide("p", "s")
    assert refused.retry_after_us > HOUR_US - STALL_US
    stamps = [hit.stamp_us for hit in limiter.explain("all", "s").hits]
    assert stamps == sorted(set(stamps))
    assert len(stamps) > 2 * QUOTA
    assert all(late - early >= WINDOW_US for early, late in zip(stamps, stamps[QUOTA:], strict=False))


@each_kind
def test_a_server_s_clock_that_steps_back_only_makes_callers_wait(
    kind: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_limiters: Limiters
) -> None:
    preload = Preload(library, tmp_path / "offset")
    with stepped_server(kind, preload, monkeypatch) as server:

        def step(offset_us: int) -> None:
            """A server looks at the clock now and then, and reckons in between."""
            preload.step(offset_us)
            assert soon(lambda: abs(int(server.command("TIME")[0]) - offset_us / 1e6 - time.time()) < 2)

        stepping_back_only_makes_callers_wait(sync_limiters(server, *POLICIES), step)


@pytest.mark.parametrize("url", ["memory://", "lmdb"])
def test_a_machine_s_clock_that_steps_back_only_makes_callers_wait(url: str, tmp_path: Path) -> None:
    clock = Stepped()
    with Limiter(f"lmdb://{tmp_path}" if url == "lmdb" else url, POLICIES, clock=clock) as limiter:
        stepping_back_only_makes_callers_wait(limiter, clock.step)


CALLER = """
import json, mmap, os, random, struct, sys, time
from capline import Limiter, Policy
url, namespace, jumps = sys.argv[1], sys.argv[2], sys.argv[3] == "jumps"
with open(os.environ["STEPPED_CLOCK"], "r+b") as file:
    offset = mmap.mmap(file.fileno(), 8)
told = []
with Limiter(url, [Policy("p", ["60/day"])], namespace=namespace) as limiter:
    for _ in range(40):
        if jumps:
            offset[:] = struct.pack("=q", random.randrange(-10**11, 10**11))
        answer = limiter.decide("p", "s")
        told.append((answer.allowed, answer.hit, answer.retry_after_us))
        time.sleep(0.002)
print(json.dumps([time.time(), told]))
"""


@each_kind
def test_whose_clock_is_wrong_makes_no_difference_where_the_server_s_counts(
    kind: str, tmp_path: Path, library: Path, sync_limiters: Limiters
) -> None:
    """Four callers: right, an hour ahead, an hour behind, and one whose clock is another at every call."""
    begun_us = time.time_ns() // 1000
    with single(kind) as server:
        callers: list[subprocess.Popen[str]] = []
        for number, offset_us in enumerate((0, HOUR_US, -HOUR_US, 0)):
            clock = Preload(library, tmp_path / str(number))
            clock.step(offset_us)
            words = [f"{server.url}?{SLOW}", sync_limiters.namespace, "jumps" if number == 3 else ""]
            callers.append(
                subprocess.Popen(
                    [sys.executable, "-c", CALLER, *words],
                    env=os.environ | clock.names,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        told = [json.loads(one.communicate(timeout=60)[0]) for one in callers]
        log = [hit.stamp_us for hit in sync_limiters(server, Policy("p", ["60/day"])).explain("p", "s").hits]
    over_us = time.time_ns() // 1000
    assert [round((now - over_us / 1e6) / 3600) for now, _ in told[:3]] == [0, 1, -1], "their clocks are wrong"
    hits = sorted(hit for _, answers in told for allowed, hit, _ in answers if allowed)
    assert hits == log
    assert len(hits) == len(set(hits)) == 60
    assert all(begun_us <= hit <= over_us for hit in hits)
    waits = [wait for _, answers in told for allowed, _, wait in answers if not allowed]
    assert len(waits) == 100
    assert all(86_300 * SECOND_US < wait <= 86_400 * SECOND_US for wait in waits)
    assert all(early < late for early, late in pairwise(log))
