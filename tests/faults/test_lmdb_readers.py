"""Readers of the embedded store that were killed: their slots keep pages from being used again until cleared."""

import subprocess
import sys
from pathlib import Path

import pytest

from capline import Limiter, ManualClock, Policy
from capline.store.local.lmdb import environment as lmdb_env

POLICY = Policy("p", ["1000000/day"])
READER = """
import lmdb, os, sys
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=8)
txn = env.begin()
print("in", flush=True)
if len(sys.argv) > 2:
    sys.stdin.read()
os.kill(os.getpid(), 9)
"""


def opened(path: Path) -> Limiter:
    return Limiter(f"lmdb://{path}", [POLICY], clock=ManualClock(10**15))


def start_reader(path: Path, *words: str) -> subprocess.Popen[str]:
    """A process that reads the file, as one does that opens the store; it is killed, at once or when asked to go."""
    reader = subprocess.Popen([sys.executable, "-c", READER, str(path), *words], stdin=-1, stdout=-1, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "in\n"
    return reader


def kill_a_reader(path: Path) -> None:
    reader = start_reader(path)
    reader.communicate(timeout=60)
    assert reader.returncode == -9


def decide(limiter: Limiter, times: int) -> None:
    for _ in range(times):
        limiter.decide("p", "s")


def test_a_killed_reader_does_not_make_the_file_grow_without_end(tmp_path: Path) -> None:
    with opened(tmp_path) as limiter:
        decide(limiter, 10)
        before = limiter.stats()["file_bytes"]
        kill_a_reader(tmp_path)
        assert limiter.stats()["readers"] == 1
        decide(limiter, 3000)
        after = limiter.stats()
    assert (after["readers"], after["file_bytes"]) == (0, before)


def test_it_is_cleared_when_the_store_is_opened_though_others_have_it_open(tmp_path: Path) -> None:
    with opened(tmp_path) as limiter:
        decide(limiter, 1)
    other = start_reader(tmp_path, "stay")
    kill_a_reader(tmp_path)
    with opened(tmp_path) as limiter:
        assert limiter.stats()["readers"] == 1
    other.communicate("", timeout=60)


def test_it_is_cleared_before_the_map_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_env, "LOOK_EVERY", 1 << 62)
    with opened(tmp_path) as limiter:
        decide(limiter, 10)
        before = limiter.stats()["file_bytes"]
        kill_a_reader(tmp_path)
        decide(limiter, 6000)
        after = limiter.stats()
    assert (after["readers"], after["file_bytes"]) == (0, before)


def test_a_reader_that_lives_is_left_alone_and_shown(tmp_path: Path) -> None:
    with opened(tmp_path) as limiter:
        decide(limiter, 10)
        reader = start_reader(tmp_path, "stay")
        decide(limiter, 2000)
        stats = limiter.stats()
        assert (stats["readers"], stats["oldest_reader"]) == (1, 2000)
        reader.communicate("", timeout=60)


def test_the_figures_of_a_store(tmp_path: Path) -> None:
    with opened(tmp_path) as limiter:
        limiter.decide_many("p", range(1000))
        stats = limiter.stats()
    with opened(tmp_path) as limiter:
        again = limiter.stats()
    assert (stats["logs"], stats["readers"], stats["oldest_reader"], stats["page_bytes"]) == (1000, 0, 0, 4096)
    assert stats["used_pages"] >= 1000 * 40 // 4096
    assert stats["free_pages"] >= 0
    assert stats["file_bytes"] == (tmp_path / "data.mdb").stat().st_size
    assert {name: stats[name] for name in ("logs", "begun_us", "identity")} == {
        name: again[name] for name in ("logs", "begun_us", "identity")
    }
