"""Two services behind a real nginx on a Redis Cluster stay exact while one of them is killed and a primary fails over.

Every caller's answers are recorded, and proof.checker, which shares no code with capline, judges them and what the
servers hold at the end.
"""

import re
import shutil
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

import httpx
import pytest
from proof.checker import check, read
from proof.record import Recorder
from tests.kit import servers
from tests.kit.asking import ask_until
from tests.kit.server import soon
from tests.kit.servers import Cluster, Server
from tests.kit.serving import WITHIN_S, Serving

from capline import Limiter
from capline.up.files import nginx_conf

QUOTA, WINDOW_US, DAY_US = 20, 2_000_000, 86_400_000_000
POLICIES = (
    f"policies:\n  p: {{limits: [{QUOTA}/2s], wait_replicas: 1}}\n"
    "  kept: {limits: [1000000000/day], log: p}\n"  # what left the window stays, to be looked for at the end
)
SUBJECTS = [f"hot {number}" for number in range(8)]
CALLERS = 6

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not shutil.which("nginx", path="/usr/sbin:/usr/bin"), reason="nginx is not installed"),
]


def test_one_service_is_killed_and_a_primary_fails_over(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    ports = [servers.free_port(), servers.free_port()]
    with servers.cluster("redis") as cluster:
        words = ("--store", f"{cluster.url}?deadline=5s")
        with (
            nginx(tmp_path, ports) as url,
            Serving(tmp_path, *words, "--listen", f"127.0.0.1:{ports[0]}") as stays,
            Serving(tmp_path, *words, "--listen", f"127.0.0.1:{ports[1]}") as killed,
            ThreadPoolExecutor(CALLERS) as callers,
        ):
            assert soon(lambda: reaches(url), WITHIN_S)
            stop = Event()
            asked = [callers.submit(ask_until, stop, url, "p", SUBJECTS) for _ in range(CALLERS)]
            try:
                stop.wait(3)
                assert decided(stays) > 0, "nginx spreads the load over both"
                assert decided(killed) > 0
                killed.process.kill()
                killed.process.wait()
                primary = cluster.primaries[0]
                fail_over(cluster, primary)
                before = decided(stays)
                with Serving(tmp_path, *words, "--listen", f"127.0.0.1:{ports[1]}") as again:
                    primary.restart()
                    cluster.wait()
                    stop.wait(3)
                    assert soon(lambda: decided(again) > 0, WITHIN_S), "who was started again has its share"
                    assert decided(stays) > before
                    stop.set()
                    lines = [line for one in asked for line in one.result()]
            finally:
                stop.set()
        head = Recorder()
        head.policy("p", [(QUOTA, WINDOW_US)], retention_us=DAY_US)
        with closing(Limiter.from_file(tmp_path / "policies.yaml", f"{cluster.url}?deadline=30s")) as limiter:
            for subject in SUBJECTS:
                hits = [(hit.stamp_us, hit.units) for hit in limiter.explain("p", subject).hits]
                head.final("p", subject)(hits, None)
    report = check(read([*head.lines, *lines]))
    assert report, report.text()
    assert report.hits > QUOTA * len(SUBJECTS)
    assert report.refused > QUOTA * len(SUBJECTS), "the subjects were hot"
    assert report.excused < report.refused / 10, "nearly every refusal was judged: was it due, and until when?"
    assert report.attempts > report.hits + report.refused, "some were sent again: the kill met requests under way"
    assert report.stood_in == 0


def decided(service: Serving) -> float:
    """How many decisions this service has made, as it tells itself."""
    told = httpx.get(f"{service.admin}/metrics", trust_env=False, timeout=WITHIN_S).text
    return sum(float(count) for count in re.findall(r"^capline_decisions_total\{.*\} (\S+)$", told, re.MULTILINE))


def fail_over(cluster: Cluster, primary: Server) -> None:
    """Kill it; returns when another serves in its place."""
    others = {one.port for one in cluster.primaries} - {primary.port}
    primary.kill()
    assert soon(lambda: len({one.port for one in cluster.primaries} - others - {primary.port}) == 1, WITHIN_S)


@contextmanager
def nginx(folder: Path, ports: list[int]) -> Generator[str]:
    """A real one before these services, as `capline up` sets it up."""
    inside = folder / "nginx"
    inside.mkdir()
    port = servers.free_port()
    (inside / "nginx.conf").write_text(nginx_conf(port, ports), encoding="utf-8")
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin") or "nginx"
    process = subprocess.Popen([program, "-p", str(inside), "-c", "nginx.conf", "-e", "stderr"])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def reaches(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", trust_env=False, timeout=WITHIN_S).status_code == 200
    except httpx.HTTPError:
        return False
