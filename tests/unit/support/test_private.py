"""What capline makes is its owner's alone: directories 0700, files 0600; what exists keeps its mode."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.campaign_store import RUN

from capline import Limiter, Policy
from capline.campaign.ledger import Ledger
from capline.support.private import create_private_file, make_private_directory


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """Nothing is taken away by the umask, so what is shown is what was asked for."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """The mode of everything below, by its path from there."""
    return {str(path.relative_to(directory)): path.stat().st_mode & 0o777 for path in directory.rglob("*")}


def test_an_embedded_store_and_the_directories_made_for_it(tmp_path: Path) -> None:
    with Limiter(f"lmdb://{tmp_path}/a/store", [Policy("p", ["3/day"])]) as limiter:
        assert limiter.decide("p", 1)
    assert modes(tmp_path) == {"a": 0o700, "a/store": 0o700, "a/store/data.mdb": 0o600, "a/store/lock.mdb": 0o600}


def test_what_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(0o770)
    (tmp_path / "shared" / "data.mdb").touch(0o660)
    with Limiter(f"lmdb://{tmp_path}/shared", [Policy("p", ["3/day"])]) as limiter:
        assert limiter.decide("p", 1)
    assert modes(tmp_path)["shared"] == 0o770
    assert modes(tmp_path)["shared/data.mdb"] == 0o660


def test_the_umask_takes_away_more(tmp_path: Path) -> None:
    os.umask(0o277)
    create_private_file(tmp_path / "file")
    assert modes(tmp_path) == {"file": 0o400}


def test_a_campaigns_ledger(tmp_path: Path) -> None:
    with Ledger.begin(tmp_path / "runs" / "one", RUN):
        found = modes(tmp_path)
    assert found["runs"] == found["runs/one"] == 0o700
    files = {name: mode for name, mode in found.items() if name.startswith("runs/one/")}
    assert len(files) >= 2
    assert set(files.values()) == {0o600}


@pytest.mark.parametrize(("before", "after"), [(None, 0o600), (0o640, 0o640)])
def test_an_export(tmp_path: Path, before: int | None, after: int) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {p: {limits: [3/day]}}")
    with Limiter.from_file(tmp_path / "policies.yaml", f"lmdb://{tmp_path}/store") as limiter:
        assert limiter.decide("p", 1)
    if before is not None:
        (tmp_path / "logs.jsonl").touch(before)
    command = [sys.executable, "-m", "capline.cli", "export", "logs.jsonl", "--store", "lmdb://store"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert modes(tmp_path)["logs.jsonl"] == after


def test_a_file_in_the_way_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_directory(tmp_path / "file")
    with pytest.raises(OSError, match="Not a directory"):
        make_private_directory(tmp_path / "file" / "below")
