"""Killed writers and lost power under the embedded store, in short; the long form is `python -m proof.crashes`."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from proof.crashes.rounds import build, kills, lose_power, losses, openings
from proof.crashes.writer import cut_torn_line
from tests.profiles import size, sized

from capline import Limiter, Policy

CRASHES = size(4, 6, 10)

ONE = """
import os, sys
from capline import Limiter, Policy
limiter = Limiter(sys.argv[1], [Policy("p", ["5/day"])])
limiter.decide("p", "warm")
print("up", flush=True)
sys.stdin.readline()
os.environ["CAPLINE_STOP_AT"] = sys.argv[2]
print(limiter.decide("p", "s", id="x").hit, flush=True)
os.kill(os.getpid(), 9)
"""
LAST_SYNC_OF_ONE = 19
"""Of a writer that made the store: that of its second decision's meta page."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc): apt-get install gcc libc6-dev")
    return build(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize(
    ("written", "kept"), [(b"", b""), (b"{}\n", b"{}\n"), (b'{"a', b""), (b'{}\n{"event":"as', b"{}\n")]
)
def test_a_record_that_a_kill_tore_counts_as_never_written(tmp_path: Path, written: bytes, kept: bytes) -> None:
    path = tmp_path / "records-0"
    cut_torn_line(path)
    assert not path.exists()
    path.write_bytes(written)
    cut_torn_line(path)
    assert path.read_bytes() == kept


@sized
def test_killed_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    outcome = kills(tmp_path, CRASHES)
    assert outcome, outcome.text()
    assert outcome.report.hits > CRASHES
    assert outcome.report.finals == 6
    rows = [json.loads(line) for line in outcome.lines]
    assert any(row["event"] == "settle" and row["done"] for row in rows)
    assert any(row.get("ttl_us") and row.get("allowed") for row in rows)


@pytest.mark.parametrize("step", [20, pytest.param(4, marks=pytest.mark.deep)])
def test_killed_while_they_open(tmp_path: Path, step: int) -> None:
    """At every so manieth line of the opening: nothing is lost, nobody is kept out, and the file does not grow.

    A snapshot is held for four lines.
    """
    outcome = openings(tmp_path, step)
    assert outcome, outcome.text()
    assert outcome.crashes > 100 // step
    assert outcome.report.finals == 6


@sized
def test_power_that_is_lost_takes_nothing_that_was_acknowledged_with_full_durability(
    tmp_path: Path, library: Path
) -> None:
    outcome = losses(tmp_path, library, CRASHES)
    assert outcome, outcome.text()
    assert outcome.crashes == CRASHES
    assert outcome.report.hits > CRASHES


def test_power_that_is_lost_takes_what_was_not_synced(tmp_path: Path, library: Path) -> None:
    outcome = losses(tmp_path, library, 3, "relaxed")
    assert not outcome
    assert outcome.refused or outcome.report.kinds() & {"final-lost", "final-extra"}


class Disk:
    """A store's directory, and writers whose syncs are followed."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.lies = False
        self.store, self._synced = directory / "store", directory / "synced"
        self._environment = os.environ | {
            "LD_PRELOAD": str(library),
            "CAPLINE_SYNCED_OF": str(self.store / "data.mdb"),
            "CAPLINE_SYNCED_TO": str(self._synced),
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, stop_at: int = 0) -> subprocess.Popen[str]:
        one = subprocess.Popen(
            [sys.executable, "-c", ONE, f"lmdb://{self.store}?durability=full", str(stop_at)],
            env=self._environment | {"CAPLINE_SYNC_LIES": str(int(self.lies))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == "up\n"
        return one

    def hits_after_a_loss(self) -> list[int]:
        draw = random.Random()
        draw.choice = lambda seq: seq[0]  # nothing but what was synced
        lose_power(self.store / "data.mdb", self._synced, draw)
        with Limiter(f"lmdb://{self.store}", [Policy("p", ["5/day"])]) as limiter:
            return [hit.stamp_us for hit in limiter.explain("p", "s").hits]

    def end(self) -> None:
        for one in self._started:
            one.kill()
            one.communicate()


@pytest.fixture
def disk(tmp_path: Path, library: Path) -> Iterator[Disk]:
    made = Disk(tmp_path, library)
    yield made
    made.end()


def test_what_one_writer_was_promised_is_on_the_disk(disk: Disk) -> None:
    said = disk.start().communicate("\n")[0]
    assert disk.hits_after_a_loss() == [int(said)]


def test_on_a_disk_that_drops_the_last_sync_of_a_commit_it_is_not(disk: Disk) -> None:
    disk.lies = True
    said = disk.start().communicate("\n")[0]
    assert int(said)
    assert disk.hits_after_a_loss() == []


@pytest.mark.parametrize(("stop_at", "there"), [(LAST_SYNC_OF_ONE, 0), (LAST_SYNC_OF_ONE + 1, 1)])
def test_a_writer_that_is_killed_before_its_last_sync_was_promised_nothing(
    disk: Disk, stop_at: int, there: int
) -> None:
    said = disk.start(stop_at).communicate("\n")[0]
    assert len(said.split()) == there
    assert len(disk.hits_after_a_loss()) == there


def test_a_retry_that_is_answered_by_a_hit_that_nobody_synced_is_on_the_disk(disk: Disk) -> None:
    """The first writer is killed with its hit in memory and not on the disk; the second is told of that hit."""
    first, second = disk.start(LAST_SYNC_OF_ONE), disk.start()
    assert first.communicate("\n")[0] == ""
    said = second.communicate("\n")[0]
    assert disk.hits_after_a_loss() == [int(said)]
