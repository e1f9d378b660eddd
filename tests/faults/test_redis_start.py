"""What a limiter says of its servers when it first meets them, on the logger `capline`, once for each."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tests.kit.server import Limiters, each_kind
from tests.kit.servers import Server, cluster, sentinel, single

from capline import AsyncLimiter, Limiter, Policy

POLICY = Policy("p", ["1000/day"])


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "capline"]


def use(limiters: Limiters, server: Server, options: str = "deadline=10s") -> None:
    """Several connections, one limiter."""
    limiter = limiters(server, POLICY, options=options)
    for number in range(3):
        assert limiter.decide("p", number)
        server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.01)
    assert limiter.decide("p", 3)
    assert not limiter.decide_many("p", range(50)).errors


@each_kind
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("appendonly yes",), []),
        (("save 3600 1",), []),
        ((), ["persistence is off"]),
        (("appendonly yes", "maxmemory-policy volatile-ttl"), ["maxmemory-policy is volatile-ttl"]),
        (("maxmemory-policy allkeys-lru",), ["maxmemory-policy is allkeys-lru", "persistence is off"]),
    ],
)
def test_each_setting_is_warned_of_once(
    kind: str, settings: tuple[str, ...], words: list[str], limiters: Limiters, caplog: pytest.LogCaptureFixture
) -> None:
    with single(kind, *settings) as server:
        use(limiters, server)
        lines = said(caplog)
        assert len(lines) == len(words)
        for line, word in zip(lines, words, strict=True):
            assert line.startswith(f"{server.address}: ")
            assert word in line


@each_kind
def test_connections_that_are_made_at_once_warn_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def many(url: str) -> None:
        async with AsyncLimiter(url, policies=[POLICY]) as limiter:
            await asyncio.gather(*(limiter.decide("p", number, cost=2) for number in range(40)))

    with single(kind) as server:
        url = f"{server.url}?deadline=10s"
        asyncio.run(many(url))
        assert len(said(caplog)) == 1
        caplog.clear()
        with Limiter(url, policies=[POLICY]) as limiter, ThreadPoolExecutor(8) as pool:
            assert all(pool.map(partial(limiter.decide, "p", cost=2), range(40, 80)))
        assert len(said(caplog)) == 1


@each_kind
def test_a_user_without_config_or_info_meets_no_error(
    kind: str, limiters: Limiters, caplog: pytest.LogCaptureFixture
) -> None:
    with single(kind, "maxmemory-policy allkeys-lru") as server:
        server.command("ACL", "SETUSER", "default", "-config|get")
        use(limiters, server)
        assert len(said(caplog)) == 1, "of persistence nothing is known"
        caplog.clear()
        server.command("ACL", "SETUSER", "default", "-info")
        use(limiters, server)
        assert said(caplog) == []


@each_kind
def test_each_server_of_a_cluster_is_spoken_of_once(
    kind: str, limiters: Limiters, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(kind, 2, 0) as nodes:
        limiter = limiters(nodes, POLICY)
        for _ in range(3):
            assert not limiter.decide_many("p", range(100)).errors
        assert sorted(line.split(": ")[0] for line in said(caplog)) == sorted(one.address for one in nodes.servers)


def test_a_sentinel_is_no_server_of_logs(limiters: Limiters, caplog: pytest.LogCaptureFixture) -> None:
    with sentinel("redis") as group:
        assert limiters(group, POLICY).decide("p", "s")
        assert [line.split(": ")[0] for line in said(caplog)] == [group.master.address]
