"""Two services on one Redis behind nginx, against one behind the same nginx.

Checked: as many are allowed as the policy says, over all services together. Each service, Redis, nginx and the load
generator want a core: with fewer, two services have no more to give than one, and the processor's microseconds of all
services for a request say what the second one costs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from _harness import Report, arguments, check
from _load import Load, post, processor_seconds, run_load
from _servers import free_port, single
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

from capline.up.files import nginx_conf

if TYPE_CHECKING:
    from collections.abc import Generator

POLICIES = "policies:\n  promo: {limits: [3/day]}\n"
TURNS = 4
"""Requests for each subject, of which 3 are allowed."""


@contextmanager
def nginx(services: list[Serving]) -> Generator[tuple[int, int]]:
    """A real one before these: its port and process."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    check(program is not None, "nginx is missing; tools/system-packages.txt names its package")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        ports = [int(service.url.rpartition(":")[2]) for service in services]
        (Path(folder) / "nginx.conf").write_text(nginx_conf(port, ports), encoding="utf-8")
        with subprocess.Popen([str(program), "-p", folder, "-c", "nginx.conf", "-e", "stderr"]) as process:  # noqa: S603 - ours
            try:
                check(soon(lambda: reaches(port), WITHIN_S), "nginx does not reach a service")
                yield port, process.pid
            finally:
                process.kill()


def reaches(port: int) -> bool:
    """Whether a service answers behind it."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False, timeout=WITHIN_S).status_code == 200
    except httpx.HTTPError:
        return False


def decisions(port: int, pid: int, count: int, connections: int, tag: str) -> Load:
    """So many of them; as many as are due are allowed, whichever service was asked."""
    allowed: list[bool] = []
    requests = [
        post("/v1/decide", b'{"policy":"promo","subject":"%s:%d"}' % (tag.encode(), i // TURNS)) for i in range(count)
    ]

    def good(body: bytes) -> bool:
        allowed.append(json.loads(body)["allowed"])
        return True

    load = run_load(port, pid, connections, requests, good)
    check(sum(allowed) == count // TURNS * (TURNS - 1), f"{sum(allowed)} of {count} were allowed")
    return load


def main() -> None:
    """Print the figures."""
    asked = arguments(__doc__, requests=20_000, connections=64, rounds=3)
    count = asked.requests // TURNS * TURNS
    loads: dict[str, list[Load]] = {"one": [], "two": []}
    services_us: dict[str, list[float]] = {"one": [], "two": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "policies.yaml").write_text(POLICIES, encoding="utf-8")
        server = stack.enter_context(single("redis"))
        words = ("--store", f"{server.url}?deadline=10s")
        services = [stack.enter_context(Serving(folder, *words)) for _ in range(2)]
        before = {"one": stack.enter_context(nginx(services[:1])), "two": stack.enter_context(nginx(services))}
        for turn in range(asked.rounds):
            for name, (port, pid) in before.items():
                spent = sum(processor_seconds(service.process.pid) for service in services)
                loads[name].append(decisions(port, pid, count, asked.connections, f"{name}{turn}"))
                spent = sum(processor_seconds(service.process.pid) for service in services) - spent
                services_us[name].append(spent / count * 1e6)
        check(all(service.stop() == 0 for service in services), "a service did not end as it should")
    report = Report("Services behind nginx, on one Redis")
    best = {name: max(found, key=lambda load: load.rate) for name, found in loads.items()}
    for name, load in best.items():
        report.add(f"{name}: requests", load.rate, "requests/s")
        for share in (0.5, 0.99, 0.999):
            report.add(f"{name}: p{share * 100:g}", load.quantile(share) * 1000, "ms")
        report.add(f"{name}: the services' processor", min(services_us[name]), "us/request")
        report.add(f"{name}: nginx's processor", min(one.processor_us for one in loads[name]), "us/request")
    report.add("requests, two over one", best["two"].rate / best["one"].rate, "x")
    report.show(as_json=asked.json)


if __name__ == "__main__":
    main()
