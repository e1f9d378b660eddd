"""The examples of `examples/clients`, each run as its users do: real clients and workers, a store, a provider."""

import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kit.guests import guests
from tests.kit.http import Provider
from tests.kit.program import worker_did
from tests.kit.server import executed
from tests.kit.servers import single

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "examples" / "clients"
CALLS = 25
TASKS = 12
GAP_S = 0.045  # from slot to slot, of Limit.margin("20/s", jitter="30ms")
WITHIN_S = 60
ANSWER_S = 0.3  # what the provider takes for a payment


def environment(provider: Provider, **more: str) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{CLIENTS}:{ROOT / 'src'}",
        "PROVIDER_URL": provider.url,
        "NO_PROXY": "*",
        **more,
    }


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("httpx_client",), id="httpx"),
        pytest.param(("requests_client",), id="requests", marks=pytest.mark.deep),
        pytest.param(("aiohttp_client",), id="aiohttp", marks=pytest.mark.deep),
        pytest.param(
            ("scrapy", "runspider", str(CLIENTS / "scrapy_spider.py"), "-L", "ERROR"),
            id="scrapy",
            marks=pytest.mark.deep,
        ),
    ],
)
def test_every_call_of_a_client_has_a_slot(words: tuple[str, ...], tmp_path: Path) -> None:
    began = time.monotonic()
    with Provider() as provider:
        provider.answers = [(429, {"Retry-After": "0"})]
        done = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", "-m", *words],
            cwd=tmp_path,
            env=environment(provider),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, "")
        # One was told to come back, and took another slot for it.
        assert len(provider.seen) == CALLS + 1
    assert time.monotonic() - began >= CALLS * GAP_S


HTTPX2 = """
import asyncio, os, httpx2
from capline import AsyncLimiter, Limiter, Policy
from capline.middleware.httpx2 import AsyncLimitedTransport, LimitedTransport

url, policies = os.environ["PROVIDER_URL"], [Policy("psp", ["1/100ms", "5/hour"])]
with Limiter("lmdb://store", policies) as limiter:
    with httpx2.Client(transport=LimitedTransport(limiter, "psp", retries=1)) as client:
        assert client.post(url, json={}).status_code == 200

async def main():
    async with AsyncLimiter("lmdb://store", policies) as limiter:
        async with httpx2.AsyncClient(transport=AsyncLimitedTransport(limiter, "psp", retries=1)) as client:
            assert (await client.get(url)).status_code == 200
        print(sum(hit.units for hit in (await limiter.explain("psp", "127.0.0.1")).hits))
asyncio.run(main())
"""


@pytest.mark.deep
def test_httpx2_has_transports_of_its_own(tmp_path: Path) -> None:
    words = [str(guests()), "-c", HTTPX2]
    with Provider() as provider:
        provider.answers = [(429, {"Retry-After": "0"}), (200, {}), (429, {"Retry-After": "0"})]
        env = environment(provider)
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")
        assert [method for method, _, _ in provider.seen] == ["POST", "POST", "GET", "GET"]


@contextmanager
def working(folder: Path, env: dict[str, str], *words: str) -> Generator[subprocess.Popen[bytes]]:
    """A worker, which ends well when it is told to."""
    with (folder / "log").open("ab") as log:
        worker = subprocess.Popen(words, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        yield worker
        worker.send_signal(signal.SIGTERM)
        # taskiq finishes what it runs, and then ends by the signal.
        assert worker.wait(WITHIN_S) in {0, -signal.SIGTERM}, (folder / "log").read_text()[-3000:]
    finally:
        worker.kill()
        worker.wait()


SENDS_PLAIN = "import {0} as tasks\nfor number in range({1}): tasks.pay.{2}(number)"
SENDS_RQ = """
import os, redis, rq, {0}
queue = rq.Queue(connection=redis.Redis.from_url(os.environ["RQ_REDIS_URL"]))
for number in range({1}): queue.enqueue({0}.pay, number)
"""
SENDS_ARQ = """
import arq, asyncio, {0}
async def send():
    queue = await arq.create_pool({0}.WorkerSettings.redis_settings)
    for number in range({1}): await queue.enqueue_job("pay", number)
    await queue.aclose()
asyncio.run(send())
"""
SENDS_TASKIQ = """
import asyncio, {0}
async def send():
    await {0}.broker.startup()
    for number in range({1}): await {0}.pay.kiq(number)
    await {0}.broker.shutdown()
asyncio.run(send())
"""
CELERY = ("celery", "-A", "celery_tasks", "worker", "-c", "2", "--without-gossip", "--without-mingle")
# The module, the program that sends to it, with its verb, and the worker.
WORKERS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "celery": ("celery_tasks", SENDS_PLAIN, "delay", CELERY),
    "dramatiq": ("dramatiq_tasks", SENDS_PLAIN, "send", ("dramatiq", "dramatiq_tasks", "-p", "1", "-t", "2")),
    "rq": ("rq_jobs", SENDS_RQ, "", ("rq.cli", "worker")),
    "arq": ("arq_tasks", SENDS_ARQ, "", ("arq", "arq_tasks.WorkerSettings")),
    "taskiq": ("taskiq_tasks", SENDS_TASKIQ, "", ("taskiq", "worker", "taskiq_tasks:broker", "--workers", "1")),
}
OF_GUESTS = ("arq", "taskiq")


def bodies(provider: Provider) -> list[bytes]:
    return [body for _, _, body in provider.seen]


@pytest.mark.deep
@pytest.mark.parametrize("name", WORKERS)
def test_every_task_of_a_worker_has_a_slot(name: str, tmp_path: Path) -> None:
    """Its worker is told to end while it pays, and another goes on: no order is paid twice."""
    module, program, verb, words = WORKERS[name]
    python = str(guests()) if name in OF_GUESTS else sys.executable
    with Provider() as provider, single("redis") as broker, single("redis") as store:
        urls = {"BROKER_URL": broker.url, "RQ_REDIS_URL": broker.url, "STORE_URL": f"{store.url}?deadline=10s"}
        env = environment(provider, **urls)
        send = [python, "-c", program.format(module, TASKS, verb)]
        subprocess.run(send, cwd=tmp_path, env=env, check=True, timeout=WITHIN_S)
        provider.meanwhile = lambda: time.sleep(ANSWER_S)
        for orders in (1, TASKS):
            with working(tmp_path, env, python, "-m", *words) as worker:
                worker_did(lambda: len(set(bodies(provider))) >= orders, worker, tmp_path / "log")  # noqa: B023 - called here
        assert len(set(bodies(provider))) == len(bodies(provider)) == TASKS
        assert executed(store) >= TASKS  # each asked for its slot


def test_an_example_has_at_most_fifteen_lines_and_is_in_the_docs() -> None:
    pages = "".join(
        (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8") for page in ("clients", "celery")
    )
    programs = sorted(CLIENTS.glob("*.py"))
    assert len(programs) == 9
    for program in programs:
        code = program.read_text(encoding="utf-8")
        assert len([line for line in code.splitlines() if line.strip()]) <= 15, program.name
        assert f"{{literalinclude}} ../../examples/clients/{program.name}\n" in pages, program.name
