"""The payments example, run as its README says: real processes, a real Redis, a strict provider."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.servers import shared

pytestmark = pytest.mark.alone
RUN = Path(__file__).parents[2] / "examples" / "payments" / "run.py"


MOST_RUNS = 5


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUN), *options], capture_output=True, text=True, timeout=120, check=False
    )


def test_workers_that_share_a_limit_never_hear_429() -> None:
    # A second for the way, where the example allows 20 ms: a test machine does other things too.
    options = ("--seconds", "2", "--workers", "2", "--json", "--limits", "80/2s", "1/10ms")
    done = run("--redis", shared("redis").url, *options)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["refused"] == 0
    assert seen["allowed"] == seen["paid"] > 0


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_and_waste_little_of_the_rate(kind: str) -> None:
    # 80 ms for the way. A machine that was away for longer gets another run.
    url = shared(kind).url.replace("valkey:", "redis:")  # the stream's client knows one name of the protocol
    seen: dict[str, float] = {}
    for _ in range(MOST_RUNS):
        done = run("--redis", url, "--seconds", "5", "--workers", "3", "--json", "--limits", "100/1080ms", "1/9ms")
        seen = json.loads(done.stdout)
        if not seen["refused"] and 0.8 < seen["used"] < 1.0:
            assert done.returncode == 0, done.stderr
            assert seen["allowed"] == seen["paid"]
            return
    pytest.fail(f"{MOST_RUNS} runs, of which the last one: {seen}")


@pytest.mark.deep
def test_without_a_limit_the_provider_would_have_refused() -> None:
    done = run("--redis", shared("redis").url, "--seconds", "2", "--workers", "2", "--json", "--limits", "1000/s")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["refused"] > 0
