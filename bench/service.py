"""The service over HTTP, one worker: single decisions against bare ASGI, on a server with 64 connections, batches.

The load generator and the service have a core each; where the machine does other things, look at the processor's
microseconds for a request, which do not depend on it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from _harness import Report, arguments, check
from _load import Load, post, run_load
from _servers import single
from tests.kit.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Generator

POLICIES = "policies:\n  promo: {limits: [3/day]}\n  batch: {limits: [3/day, 10/week], layout: bucket}\n"
BEHIND = 100_000
"""The rows of the batch that single decisions are asked beside."""
DECISIONS = 3
"""Of one subject are allowed."""


@contextmanager
def bare() -> Generator[tuple[int, int]]:
    """The bare application: its port and process."""
    command = [sys.executable, str(Path(__file__).with_name("_bare_app.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
        process.kill()


def decisions(count: int, tag: str) -> list[bytes]:
    """Four for each subject: three are allowed, one is not."""
    return [post("/v1/decide", b'{"policy":"promo","subject":"%s:%d"}' % (tag.encode(), i // 4)) for i in range(count)]


def port_of(service: Serving) -> int:
    """Where it is asked."""
    return int(service.url.rpartition(":")[2])


def single_decisions(service: Serving, count: int, connections: int, tag: str) -> Load:
    """Decisions; as many as the policy says are allowed."""
    allowed = 0

    def good(body: bytes) -> bool:  # as little as for the bare application: what asks has a core to share
        nonlocal allowed
        allowed += body.startswith(b'{"allowed":true,')
        return body.startswith(b'{"allowed":')

    load = run_load(port_of(service), service.process.pid, connections, decisions(count, tag), good)
    check(allowed == count // 4 * DECISIONS, f"{allowed} of {count} were allowed")
    return load


def batch_of(first: int, rows: int) -> bytes:
    """Integers from the first on."""
    return json.dumps({"policy": "batch", "subjects": list(range(first, first + rows))}).encode()


def longest_wait(service: Serving, tag: str) -> float:
    """Of single decisions that are asked while a batch of BEHIND rows runs, milliseconds."""
    form = {"policy": "batch", "subjects": [f"{tag}:{number}" for number in range(BEHIND)]}
    waits: list[float] = []
    with ThreadPoolExecutor(1) as thread, httpx.Client(base_url=service.url, timeout=60, trust_env=False) as client:
        client.post("/v1/decide", json={"policy": "promo", "subject": f"{tag}:first"})
        batch = thread.submit(httpx.post, f"{service.url}/v1/decide/batch", json=form, timeout=60, trust_env=False)
        while not batch.done():
            begun = time.perf_counter()
            answer = client.post("/v1/decide", json={"policy": "promo", "subject": f"{tag}:{len(waits)}"})
            waits.append((time.perf_counter() - begun) * 1000)
            check(answer.json()["allowed"], "the first of a subject was refused")
        check(batch.result().json()["allowed"] == [True] * BEHIND, "a batch lost rows")
    check(len(waits) > 10, f"only {len(waits)} were asked beside the batch")
    return max(waits)


def main() -> None:
    """Print the figures."""
    asked = arguments(__doc__, requests=20_000, connections=64, rounds=3, batches=20, rows=10_000)
    report = Report("The service, one worker")
    count = asked.requests // 4 * 4
    with tempfile.TemporaryDirectory() as folder, single("redis") as server, bare() as (port, pid):
        (Path(folder) / "policies.yaml").write_text(POLICIES, encoding="utf-8")
        loads: dict[str, list[Load]] = {"bare": [], "memory": [], "redis": []}
        with (
            Serving(Path(folder), "--store", "memory://") as memory,
            Serving(Path(folder), "--store", "lmdb://counts") as lmdb,
            Serving(Path(folder), "--store", f"{server.url}?deadline=10s&bulk_deadline=30s") as redis,
        ):
            for turn in range(asked.rounds):
                requests = decisions(count, "bare")
                loads["bare"].append(run_load(port, pid, asked.connections, requests, lambda body: b"true" in body))
                loads["memory"].append(single_decisions(memory, count, asked.connections, f"m{turn}"))
                loads["redis"].append(single_decisions(redis, count, asked.connections, f"r{turn}"))
            batches = [
                post(
                    "/v1/decide/batch",
                    json.dumps({"policy": "batch", "subjects": list(range(n, n + asked.rows))}).encode(),
                )
                for n in range(0, asked.batches * asked.rows, asked.rows)
            ]

            def whole(body: bytes) -> bool:
                return json.loads(body)["allowed"] == [True] * asked.rows

            behind = {
                "memory": longest_wait(memory, "beside"),
                "lmdb": longest_wait(lmdb, "beside"),
                "redis": longest_wait(redis, "beside"),
            }
            many = run_load(port_of(redis), redis.process.pid, 4, batches, whole)
            check(memory.stop() == lmdb.stop() == redis.stop() == 0, "a service did not end as it should")
    best = {name: max(found, key=lambda load: load.rate) for name, found in loads.items()}
    cheapest = {name: min(load.processor_us for load in found) for name, found in loads.items()}
    for name, load in best.items():
        report.add(f"{name}: requests", load.rate, "requests/s")
        report.add(f"{name}: processor", cheapest[name], "us/request")
        for share in (0.5, 0.99, 0.999):
            report.add(f"{name}: p{share * 100:g}", load.quantile(share) * 1000, "ms")
    report.add("memory over bare", best["memory"].rate / best["bare"].rate, "x", at_least=0.7)
    report.add("redis over bare", best["redis"].rate / best["bare"].rate, "x", at_least=0.5)
    report.add("memory over bare, by processor", cheapest["bare"] / cheapest["memory"], "x", at_least=0.7)
    report.add("redis over bare, by processor", cheapest["bare"] / cheapest["redis"], "x", at_least=0.5)
    for name, wait_ms in behind.items():
        report.add(f"{name}: the longest wait beside a batch of {BEHIND:,}", wait_ms, "ms", at_most=100)
    report.add(
        f"batches of {asked.rows:,} integers",
        many.requests * asked.rows / many.seconds,
        "decisions/s",
        at_least=400_000,
    )
    report.show(as_json=asked.json)


if __name__ == "__main__":
    main()
