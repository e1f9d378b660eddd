"""The payments example: its parts in one process, and as its README says: real processes, stores that go away."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kit.examples import EXAMPLES, example
from tests.kit.servers import cluster, shared, single

from capline import AsyncLimiter

RUN = EXAMPLES / "payments" / "run.py"
WIDE = "{limit: 40/1s, jitter: 1s}"
"""A second for the way, where the example allows 20 ms: a test machine does other things too."""
MOST_RUNS = 5
LONGEST_SECONDS = 60


@pytest.fixture(scope="module")
def payments() -> Iterator[Any]:
    with example("payments") as module:
        yield module


# ---- the parts -------------------------------------------------------------------------------------------------------


def test_an_order_is_one_workers_until_its_lease_is_over(payments: Any, tmp_path: Path) -> None:
    with payments("orders").Orders(tmp_path / "o") as mine, payments("orders").Orders(tmp_path / "o") as other:
        mine.add([("acme", 100), ("acme", 200), ("bank", 300)])
        first, second = mine.claim("acme", 60), other.claim("acme", 0)
        assert [first, second] == [(1, 100), (2, 200)]
        assert mine.claim("acme", 60) == second, "its lease is over: its worker is gone"
        assert other.claim("acme", 60) is None
        mine.charged(first)
        other.give_back(first)
        mine.failed(second, "402")
        assert mine.states() == {"acme": {"charged": 1, "failed": 1}, "bank": {"new": 1}}


def test_a_provider_counts_every_call_and_charges_a_key_once(payments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    provider = payments("provider").Provider(2, 1.0)
    said: list[bool] = []
    for at_ms in (1, 500, 1000, 1001, 1499, 1500):
        now[0] = at_ms * 1_000_000
        said.append(provider.lets_in())
    assert said == [True, True, False, True, False, True]
    assert {provider.charge("order-1", 100)[0] for _ in range(3)} == {"200 OK"}
    assert provider.charge("order-2", 0)[0].startswith("402")
    assert (provider.stats()["charged"], provider.stats()["cents"], provider.stats()["refused"]) == (1, 100, 2)


def test_a_provider_that_was_killed_knows_what_it_has_charged(payments: Any, tmp_path: Path) -> None:
    with (tmp_path / "calls").open("w+", encoding="ascii") as calls:
        calls.write("5 200 order-1 100\n6 429 order-2 100\n")
        provider = payments("provider").Provider(2, 1.0, calls)
    assert provider.charges == {"order-1": 100}
    assert provider.charge("order-1", 200) == ("200 OK", '{"charged": 100}')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no providers; write it like acme-pay"),
        ("- acme", "no providers"),
        ("acme: 100/s", "acme has a limit, a jitter and perhaps a url"),
        ("acme: {limit: 100/s, jitter: 20ms, quota: 3}", "acme has a limit"),
        ("acme: {limit: 100/fortnight, jitter: 20ms}", "acme: limit '100/fortnight'"),
        ("acme: {limit: 100/s, jitter: 20 yards}", "acme: jitter: unknown unit 'yards'"),
        ("acme: {limit: [", "not YAML"),
        (None, "no such file"),
    ],
)
def test_a_file_of_providers_that_cannot_be_used_is_one_line(
    payments: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    file = tmp_path / "providers.yaml"
    if text is not None:
        file.write_text(text)
    assert payments("run").main(["--providers", str(file)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"run.py: {file}: ")
    assert said in told
    assert told.count("\n") == 1


def test_a_store_that_cannot_be_is_one_line(payments: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path / "providers.yaml"
    elsewhere.write_text("acme: {limit: 1/s, jitter: 1ms, url: 'http://127.0.0.1:9'}")
    assert payments("run").main(["--providers", str(elsewhere), "--store", "mongo://here"]) == 2
    assert capsys.readouterr().err.startswith("run.py: ")


async def test_a_worker_charges_each_order_once_and_says_which_it_could_not(payments: Any, tmp_path: Path) -> None:
    await _one_worker(payments, tmp_path / "orders.sqlite")


async def _one_worker(payments: Any, table: Path) -> None:
    strict = payments("provider").Provider(40, 1.0)
    server = await asyncio.start_server(strict.serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    acme = payments("providers").Provider("acme", "1000/s", "1s", address)
    with payments("orders").Orders(table) as orders:
        orders.add([("acme", 100)] * 7 + [("acme", 0)])
        left = orders.claim("acme", 0)  # by one that died: called, and not written down
        async with server, AsyncLimiter("memory://", [acme.policy]) as limiter:
            worker = payments("worker").Worker(orders, limiter, 60)
            async with worker.client(acme, httpx.AsyncHTTPTransport()) as client:
                key = {"Idempotency-Key": f"order-{left.id}"}
                assert (await client.post("/charge", json={"cents": left.cents}, headers=key)).status_code == 200
                hands = [asyncio.create_task(worker.work(acme, client)) for _ in range(4)]
                while orders.states()["acme"] != {"charged": 7, "failed": 1}:
                    assert not any(hand.done() for hand in hands)
                    await asyncio.sleep(0.01)
                worker.ended.set()
                for hand in hands:
                    hand.cancel()
                await asyncio.gather(*hands, return_exceptions=True)
            worker.close()
    assert (strict.stats()["calls"], strict.stats()["charged"], strict.stats()["cents"]) == (9, 7, 700)


# ---- the whole -------------------------------------------------------------------------------------------------------


def _start(*options: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(RUN), "--every", "0.2", *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end(run: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    out, err = run.communicate(timeout=120)
    assert run.returncode == code, (out, err)
    assert "Traceback" not in err
    return json.loads(out) if out.startswith("{") else {"told": out}


def _providers(directory: Path, *lines: str) -> Path:
    file = directory / "providers.yaml"
    file.write_text("\n".join(lines))
    return file


def _charged(table: Path) -> int:
    """How many orders are charged by now."""
    try:
        with sqlite3.connect(table) as database:
            return database.execute("SELECT count(*) FROM orders WHERE state = 'charged'").fetchone()[0]
    except sqlite3.OperationalError:
        return 0  # not made yet


def _until_charged(table: Path, number: int, run: subprocess.Popen[str]) -> None:
    end_at = time.monotonic() + LONGEST_SECONDS
    while _charged(table) < number:
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < end_at
        time.sleep(0.02)


def _children(run: subprocess.Popen[str], program: str) -> list[int]:
    pids = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    return [int(pid) for pid in pids if program in Path(f"/proc/{pid}/cmdline").read_text()]


def _all_once(seen: dict[str, Any]) -> None:
    for name, states in seen["orders"].items():
        assert set(states) == {"charged"}
        assert seen["providers"][name]["charged"] == states["charged"]
        assert seen["providers"][name]["refused"] == 0


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["redis", "valkey", "cluster", "lmdb"])
def test_workers_that_share_a_limit_never_hear_429(kind: str, tmp_path: Path) -> None:
    options = ("--seconds", "2", "--providers", _providers(tmp_path, f"acme: {WIDE}", f"bank: {WIDE}"), "--json")
    if kind == "cluster":
        with cluster("redis") as nodes:
            _all_once(_end(_start(*options, "--store", nodes.url)))
    else:
        _all_once(_end(_start(*options, *(["--store", shared(kind).url] if kind != "lmdb" else []))))


@pytest.mark.deep
@pytest.mark.alone
def test_and_waste_little_of_the_rate(tmp_path: Path) -> None:
    # 80 ms for the way. A machine that was away for longer gets another run.
    providers = _providers(tmp_path, "acme: {limit: 100/s, jitter: 80ms}")
    seen: dict[str, Any] = {}
    for _ in range(MOST_RUNS):
        run = _start("--seconds", "5", "--workers", "3", "--providers", providers, "--json")
        seen = json.loads(run.communicate(timeout=120)[0])
        if not seen["providers"]["acme"]["refused"] and 0.8 < seen["providers"]["acme"]["used"] < 1.0:
            return _all_once(seen)
    return pytest.fail(f"{MOST_RUNS} runs, of which the last one: {seen}")


@pytest.mark.deep
def test_a_provider_elsewhere_that_allows_less_than_its_entry_says_refuses(tmp_path: Path) -> None:
    command = [sys.executable, str(RUN.with_name("provider.py")), "acme=20/1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as provider:
        assert provider.stdout
        url = json.loads(provider.stdout.readline())["acme"]
        entry = f"acme: {{limit: 1000/s, jitter: 1ms, url: '{url}'}}"
        run = _start("--seconds", "0.1", "--providers", _providers(tmp_path, entry), "--json")
        assert _end(run)["orders"] == {"acme": {"charged": 100}}
        stats = httpx.get(f"{url}/stats", trust_env=False).json()
        assert stats["charged"] == 100
        assert stats["refused"] > 0
        assert provider.stdin
        provider.stdin.close()


@pytest.mark.deep
def test_the_store_may_be_away_for_ten_seconds(tmp_path: Path) -> None:
    table = tmp_path / "orders.sqlite"
    providers = _providers(tmp_path, f"acme: {WIDE}", f"bank: {WIDE}")
    with single("redis", "appendonly yes") as server:
        run = _start("--store", server.url, "--orders", table, "--seconds", "5", "--providers", providers)
        _until_charged(table, 30, run)
        server.kill()
        time.sleep(10)
        assert run.poll() is None, run.communicate()
        assert _charged(table) < 400, "nobody calls while nobody may say that it is allowed"
        server.restart()
        out, err = run.communicate(timeout=120)
    assert (run.returncode, err) == (0, "")
    assert "the store does not answer" in out
    assert _charged(table) == 400


@pytest.mark.deep
def test_an_order_is_charged_once_though_its_worker_is_killed(tmp_path: Path) -> None:
    table = tmp_path / "orders.sqlite"
    options = (
        "--orders",
        table,
        "--seconds",
        "3",
        "--lease",
        "4",
        "--providers",
        _providers(tmp_path, f"acme: {WIDE}"),
    )
    run = _start(*options, "--json")
    # The first is killed before it is ready, which any worker that is killed may be on a machine with much to do.
    while not (workers := _children(run, "worker.py")):
        assert run.poll() is None, run.communicate()
        time.sleep(0.001)
    os.kill(workers[0], signal.SIGKILL)
    for number in (10, 40, 70):
        _until_charged(table, number, run)
        os.kill(_children(run, "worker.py")[0], signal.SIGKILL)
    _all_once(_end(run))


@pytest.mark.deep
def test_interrupted_it_ends_cleanly_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    table = tmp_path / "orders.sqlite"
    options = ("--orders", table, "--seconds", "4", "--providers", _providers(tmp_path, f"acme: {WIDE}"), "--json")
    run = _start(*options)
    _until_charged(table, 20, run)
    processes = _children(run, "worker.py") + _children(run, "provider.py")
    run.send_signal(signal.SIGINT)
    seen = _end(run)
    assert seen["interrupted"]
    assert set(seen["orders"]["acme"]) == {"new", "charged"}
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    again = _end(_start(*options))
    assert again["orders"] == {"acme": {"charged": 160}}
    assert seen["providers"]["acme"]["charged"] + again["providers"]["acme"]["charged"] == 160
