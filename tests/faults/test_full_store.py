"""A store without room for a new subject: not ready, unless that lets all pass; ready by itself once there is room.

A balancer sends nothing to who is not ready, so nothing but the probe itself can find that there is room again.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults.test_campaign_full_disk import UNSHARE, why_no_mounts
from tests.kit.server import soon
from tests.kit.servers import KINDS, Server, single
from tests.kit.service import Service
from tests.profiles import first

from capline import Limiter, Policy, StoreFullError

POLICY = Policy("promo", ["3/day"])
SMALL = "max_bytes=16777216"
CHOICES = {"raise": 503, "deny": 503, "allow": 200}
SETTINGS = {"maxmemory": "1kb", "min-replicas-to-write": "1"}
ROOT = Path(__file__).parents[2]


def fill(limiter: Limiter) -> int:
    """Take all room, by ever smaller transactions; how many subjects have a hit."""
    taken = 0
    for step in (1000, 100):
        with suppress(StoreFullError):
            while True:
                limiter.decide_many("promo", names(taken, taken + step))
                taken += step
        taken = limiter.stats()["logs"]
    return taken


def names(first: int, last: int) -> list[str]:
    return [f"{number:0390d}" for number in range(first, last)]


def ready(service: Service, status: int) -> bool:
    answer = service("GET", "/readyz")
    return (answer.status_code, "nothing was recorded" in answer.text) == (status, True)


@pytest.mark.parametrize("choice", first(1, CHOICES))
def test_an_lmdb_store_of_its_largest_size_is_not_ready(tmp_path: Path, choice: str) -> None:
    url = f"lmdb://{tmp_path}?{SMALL}"
    with Limiter(url, [POLICY]) as other, Service([POLICY], url, on_store_error=choice) as service:
        assert service("GET", "/readyz").json() == {"status": "ok"}
        assert other.stats()["logs"] == 0, "a probe leaves nothing"
        taken = fill(other)
        assert ready(service, CHOICES[choice])
        with pytest.raises(StoreFullError, match="holds its largest size"):
            other.try_write()
        assert other.stats()["logs"] == taken
        for subject in names(0, 300):
            other.erase(subject)
        assert service("GET", "/readyz").json() == {"status": "ok"}
        assert other.decide("promo", names(taken, taken + 1)[0])


IN_A_SMALL_DISK = """
import subprocess, sys
from pathlib import Path
from tests.faults.test_full_store import POLICY, Limiter, Service, fill, ready
place = sys.argv[1]
with Limiter(f"lmdb://{place}/store", [POLICY]) as other, Service([POLICY], f"lmdb://{place}/store") as service:
    assert service("GET", "/readyz").status_code == 200
    fill(other)
    assert ready(service, 503)
    subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
    assert service("GET", "/readyz").status_code == 200
"""


@pytest.mark.deep
def test_a_full_disk_is_not_ready(tmp_path: Path) -> None:
    if why_no_mounts():
        pytest.skip(why_no_mounts())
    script = 'mount -t tmpfs -o size=17m none "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        [UNSHARE, "--mount", "sh", "-c", script, "sh", tmp_path, sys.executable, IN_A_SMALL_DISK],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with single(request.param) as made:
        yield made


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("setting", first(1, SETTINGS))
def test_a_server_that_takes_no_writes_is_not_ready(server: Server, choice: str, setting: str) -> None:
    with Service([], f"{server.url}?deadline=200ms", on_store_error=choice) as service:
        assert soon(lambda: service("GET", "/readyz").json() == {"status": "ok"})
        server.command("CONFIG", "SET", setting, SETTINGS[setting])
        try:
            assert soon(lambda: ready(service, CHOICES[choice]))
        finally:
            server.command("CONFIG", "SET", setting, "0")
        assert soon(lambda: service("GET", "/readyz").json() == {"status": "ok"})
        assert server.command("DBSIZE") == 0, "a probe leaves nothing"
