"""`capline store`: how a store is named."""

from pathlib import Path

import pytest
from tests.kit.cli import CommandLine

from capline import Limiter, Policy


@pytest.mark.parametrize("name", ["memory", "lmdb", "redis", "./lmdb:x"])
def test_a_directory_may_have_the_name_of_a_scheme(capline: CommandLine, tmp_path: Path, name: str) -> None:
    with Limiter(f"lmdb://{tmp_path / name}", [Policy("p", ["3/day"])]) as limiter:
        limiter.decide("p", 1)
    done = capline("store", "check", name)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lmdb:x", "two slashes follow"),
        ("memory:", "memory:// is no file"),
        ("memory://", "memory:// is no file"),
        ("redis://host", "redis:// is no file"),
    ],
)
def test_what_names_no_file(capline: CommandLine, name: str, said: str) -> None:
    assert said in capline.refused("store", "check", name)
