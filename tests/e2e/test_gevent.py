"""Greenlets share a limiter under gevent's patches: counts are exact, and who waits for a slot blocks nobody."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.kit.guests import guests
from tests.kit.servers import single

ROOT = Path(__file__).parents[2]
PROGRAM = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
from capline import Limiter, Policy

def decide(limiter):
    return bool(limiter.decide("ip", "ann"))

def wait(limiter, waiting):
    with limiter.acquire("psp", "adyen"):
        waiting.append(1)

with Limiter(sys.argv[1], [Policy("ip", ["20/hour"]), Policy("psp", ["1/20ms", "10/hour"])]) as limiter:
    asked = [gevent.spawn(decide, limiter) for _ in range(60)]
    gevent.joinall(asked, raise_error=True)
    went = []
    gevent.joinall([gevent.spawn(wait, limiter, went) for _ in range(10)], raise_error=True)
    print(sum(one.value for one in asked), len(went), sum(hit.units for hit in limiter.explain("psp", "adyen").hits))
"""


def run(url: str) -> str:
    words = [str(guests()), "-W", "error::ResourceWarning", "-c", PROGRAM, url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.deep
def test_greenlets_share_a_limiter_on_every_kind_of_store(tmp_path: Path) -> None:
    with single("redis") as server:
        for url in ("memory://", f"lmdb://{tmp_path}/store", f"{server.url}?deadline=10s"):
            assert run(url) == "20 10 10\n"
