"""The servers of a store, as Prometheus reads them; asked of real servers."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import asdict
from prometheus_client import CollectorRegistry
from tests.kit.server import soon
from tests.kit.servers import KINDS, Server, shared, single

from capline import AsyncLimiter, Configuration, InvalidValueError, Limiter, Policy
from capline.model.server_state import ServerState
from capline.observe import ServerMetrics
from capline.observe.servers import EVICTED_LATELY_S, ServerReports, script_mean_us
from capline.service.metrics import registry as service_metrics
from capline.store.redis.servers import figures_of

POLICY = Policy("p", ["3/day"])


def sample(registry: CollectorRegistry, name: str, server: str, store: str = "main") -> float | None:
    return registry.get_sample_value(f"capline_server_{name}", {"store": store, "server": server})


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_tells_its_memory_and_connections(kind: str) -> None:
    with Limiter(shared(kind).url, [POLICY]) as limiter:
        (state,) = limiter.servers()
    assert (state.up, state.breaker, state.replicas, state.max_memory_bytes) == (True, "closed", 0, 0)
    assert state.memory_bytes is not None
    assert state.memory_bytes > 100_000
    assert state.clients is not None
    assert state.clients >= 1
    assert (state.max_clients or 0) > 100


@pytest.mark.deep
def test_of_a_cluster_those_that_hold_logs() -> None:
    nodes = shared("redis", "cluster")

    async def ask() -> list[ServerState]:
        async with AsyncLimiter(nodes.url, [POLICY]) as limiter:
            return await limiter.servers()

    states = asyncio.run(ask())
    assert [(state.up, state.replicas, state.evicted_keys) for state in states] == [(True, 1, 0)] * 3
    assert all(state.replica_lag_s is not None and state.replica_lag_s <= 2 for state in states)


def replicated(kind: str, *options: str) -> tuple[Server, Server]:
    primary = single(kind, *options)
    replica = single(kind, f"replicaof 127.0.0.1 {primary.port}")
    assert soon(lambda: primary.info("replication")["connected_slaves"] == "1" and primary.is_replicated())
    return primary, replica


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_that_stands_still_lags_and_goes_on_without_lag(kind: str) -> None:
    primary, replica = replicated(kind)
    with primary, replica, Limiter(primary.url, [POLICY]) as limiter:
        assert soon(lambda: limiter.servers()[0].replica_lag_bytes == 0)
        replica.pause()
        limiter.decide("p", "u")
        # Its lag grows by the primary's clock, a second for each.
        assert soon(lambda: (limiter.servers()[0].replica_lag_s or 0) >= 2, 20)
        assert (limiter.servers()[0].replica_lag_bytes or 0) > 50
        replica.resume()
        assert soon(lambda: (limiter.servers()[0].replica_lag_s, limiter.servers()[0].replica_lag_bytes) <= (1, 0), 20)
        replica.kill()
        assert soon(lambda: (limiter.servers()[0].replicas, limiter.servers()[0].replica_lag_s) == (0, None))


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_a_full_server_evicts_are_counted(kind: str) -> None:
    full = "maxmemory 4mb", "maxmemory-policy allkeys-lru"
    with single(kind, *full) as server, Limiter(server.url, [POLICY]) as limiter:
        assert limiter.servers()[0].evicted_keys == 0
        for number in range(60):
            server.command("SET", f"filler {number}", "x" * 100_000)
        assert (limiter.servers()[0].evicted_keys or 0) >= 10


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_on_the_disk_and_whether_saving_fails(kind: str) -> None:
    with single(kind, "save 3600 1") as server, Limiter(server.url, [POLICY]) as limiter:
        before = limiter.servers()[0]
        assert (before.unsaved_s, before.save_failed) == (0, False)  # nothing was written
        limiter.decide("p", "u")
        assert soon(lambda: (limiter.servers()[0].unsaved_s or 0) >= 1)
        server.command("SAVE")
        assert limiter.servers()[0].unsaved_s == 0
        (server.directory / "dump.rdb").unlink()
        (server.directory / "dump.rdb" / "in the way").mkdir(parents=True)
        limiter.decide("p", "u")
        server.command("BGSAVE")
        assert soon(lambda: limiter.servers()[0].save_failed is True)


def test_what_is_appended_is_saved() -> None:
    with single("redis", "appendonly yes") as server, Limiter(server.url, [POLICY]) as limiter:
        limiter.decide("p", "u")
        assert (limiter.servers()[0].unsaved_s, limiter.servers()[0].save_failed) == (0, False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scripts_that_a_server_ran_and_their_time(kind: str) -> None:
    with single(kind) as server, Limiter(server.url, [POLICY]) as limiter:
        limiter.decide("p", "u")
        before = limiter.servers()[0]
        for number in range(20):
            limiter.decide("p", number)
        state = limiter.servers()[0]
        assert (state.scripts or 0) - (before.scripts or 0) == 20
        told = [said for name, said in server.info("commandstats").items() if name.startswith("cmdstat_eval")]
        assert state.script_us == sum(int(said.partition("usec=")[2].partition(",")[0]) for said in told) > 0
        assert script_mean_us(state, before) == ((state.script_us or 0) - (before.script_us or 0)) / 20


def test_the_time_of_a_script_is_of_those_since_the_state_before() -> None:
    first, later = (ServerState("a:1", True, None, scripts=n, script_us=us) for n, us in ((10, 500), (30, 900)))
    assert [script_mean_us(first), script_mean_us(later, first), script_mean_us(first, later)] == [50, 20, 50]
    assert script_mean_us(later, later) is None
    assert script_mean_us(ServerState("a:1", False, None), first) is None


@pytest.mark.parametrize("said", ["", "lag", "lag=x,offset=,state=online", "state=online"])
def test_what_a_server_says_in_another_form_is_no_error(said: str) -> None:
    assert figures_of({"slave0": said, "cmdstat_evalsha": said, "rdb_last_save_time": "x"})["keys"] == 0


def test_a_store_of_this_machine_has_none() -> None:
    async def ask() -> list[ServerState]:
        async with AsyncLimiter("memory://") as limiter:
            return await limiter.servers()

    assert asyncio.run(ask()) == []


def test_a_configuration_tells_of_its_server_and_of_none_on_this_machine() -> None:
    with single("redis") as server, Configuration(f"{server.url}?deadline=1s") as configuration:
        (state,) = configuration.servers()
        assert (state.server, state.up, state.breaker) == (server.url.split("/")[2], True, None)
        assert (state.memory_bytes or 0) > 100_000
        server.command("ACL", "SETUSER", "default", "-info")
        assert configuration.servers() == [ServerState(state.server, True, None)]
        server.kill()
        assert configuration.servers() == [ServerState(state.server, False, None)]
    with Configuration("memory://") as configuration:
        assert configuration.servers() == []


@pytest.mark.deep
@pytest.mark.parametrize(("shape", "replicas"), [("cluster", [1, 1, 1]), ("sentinel", [1])])
def test_of_a_configuration_those_that_are_written_to(
    shape: Literal["cluster", "sentinel"], replicas: list[int]
) -> None:
    group = shared("redis", "cluster") if shape == "cluster" else shared("redis", "sentinel")
    with Configuration(group.url) as configuration:
        configuration.refresh()
        states = configuration.servers()
    assert [(state.up, state.replicas) for state in states] == [(True, count) for count in replicas]
    assert len({state.server for state in states}) == len(replicas)


def test_one_that_is_gone_is_down_and_its_breaker_opens() -> None:
    with single("redis") as server, Limiter(f"{server.url}?deadline=1s", [POLICY], on_store_error="allow") as limiter:
        assert limiter.servers()[0].up
        server.kill()
        for _ in range(3):
            limiter.decide("p", "u")
        (state,) = limiter.servers()
        assert (state.up, state.breaker, state.memory_bytes) == (False, "open", None)
        assert soon(lambda: limiter.servers()[0].breaker == "half-open")


def test_a_user_who_may_not_ask_gets_no_figures() -> None:
    with single("redis") as server:
        server.command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "+@all", "-info")
        url = server.url.replace("redis://", "redis://limited:any@")
        with Limiter(url, [POLICY]) as limiter:
            (state,) = limiter.servers()
    assert state == ServerState(state.server, up=True, breaker="closed")


def test_what_somebody_should_look_at_is_named_by_its_figure() -> None:
    well = ServerState("a:1", True, "closed", replica_lag_s=10, evicted_keys=0, unsaved_s=9_000, save_failed=False)
    ill = ServerState("b:1", False, "half-open", replica_lag_s=11, evicted_keys=1_000, save_failed=True)
    (of_well, of_ill) = ServerReports().reports([well, ill])
    assert of_well == {**asdict(well), "script_mean_us": None, "faults": {}}
    assert of_ill["faults"] == {
        "breaker": "calls fail at once, as it did not answer",
        "replica_lag_s": "a replica has not confirmed for 11 s",
        "evicted_keys": "1,000 keys were evicted, their hits are lost",
        "unsaved_s": "its last save failed",
    }


def test_evicted_keys_need_attention_until_none_was_evicted_for_a_while() -> None:
    at, away = 0.0, ServerState("a:1", False, "closed")
    servers = ServerReports(lambda: at)

    def is_fault(evicted_keys: int, state: ServerState | None = None) -> bool:
        shown = state or ServerState("a:1", True, "closed", evicted_keys=evicted_keys)
        return "evicted_keys" in servers.reports([shown])[0]["faults"]

    assert [is_fault(0), is_fault(7)] == [False, True]
    at = EVICTED_LATELY_S - 1
    assert [is_fault(7), is_fault(8)] == [True, True]
    at *= 2
    assert is_fault(8)
    at += 2
    assert [is_fault(8), is_fault(8, away), is_fault(8)] == [False, False, False]  # away, it lost nothing more
    assert [is_fault(0), is_fault(3)] == [False, True]  # a restart counts anew


def test_what_was_shown_last_is_what_is_read() -> None:
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry)
    metrics.show([ServerState("a:1", True, "closed", 7, 100, 2, 10, 1), ServerState("b:1", False, "open")])
    assert [sample(registry, name, "a:1") for name in ("up", "breaker_open", "memory_bytes")] == [1, 0, 7]
    assert [sample(registry, name, "a:1") for name in ("max_memory_bytes", "clients", "max_clients", "replicas")] == [
        100,
        2,
        10,
        1,
    ]
    assert [sample(registry, name, "b:1") for name in ("up", "breaker_open", "memory_bytes")] == [0, 1, None]
    lagging = ServerState(
        "d:1", True, "closed", replica_lag_s=3, evicted_keys=5, unsaved_s=60, save_failed=True, scripts=4, script_us=100
    )
    metrics.show([lagging])
    named = ("replica_lag_seconds", "evicted_keys_total", "unsaved_seconds", "save_failed", "scripts_total")
    assert [sample(registry, name, "d:1") for name in named] == [3, 5, 60, 1, 4]
    assert sample(registry, "script_seconds_total", "d:1") == 100 / 1e6
    assert [report["script_mean_us"] for report in metrics.reports["main"]] == [25]
    metrics.show([ServerState("c:1", True, "half-open")])
    assert [sample(registry, "up", server) for server in ("a:1", "b:1", "c:1")] == [None, None, 1]
    assert [sample(registry, "breaker_open", server) for server in ("b:1", "c:1")] == [0, 1]


def test_the_servers_of_two_stores_are_told_apart() -> None:
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry)
    metrics.show([ServerState("a:1", True, "open", 7)])
    metrics.show([ServerState("a:1", False, None)], "config")
    assert [sample(registry, "up", "a:1", store) for store in ("main", "config")] == [1, 0]
    assert [sample(registry, "breaker_open", "a:1", store) for store in ("main", "config")] == [1, None]
    metrics.show([], "config")
    assert [sample(registry, "up", "a:1", store) for store in ("main", "config")] == [1, None]
    assert sample(registry, "breaker_open", "a:1") == 1


def test_a_second_one_in_a_registry_is_refused() -> None:
    registry = CollectorRegistry()
    ServerMetrics(registry)
    with pytest.raises(InvalidValueError, match="already"):
        ServerMetrics(registry)


async def test_a_service_shows_them_and_none_when_its_limiter_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_metrics, "SERVERS_EVERY_S", 0.01)
    registry = CollectorRegistry()
    metrics, url = ServerMetrics(registry), shared("redis").url

    def up() -> float | None:
        return sample(registry, "up", url.split("/")[2])

    limiter = AsyncLimiter(url, [POLICY])
    task = asyncio.create_task(service_metrics.watch_servers(limiter, metrics))
    assert await asyncio.to_thread(soon, lambda: up() == 1)
    await limiter.close()
    assert await asyncio.to_thread(soon, lambda: up() is None)
    task.cancel()


async def test_a_service_shows_those_of_its_configuration_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_metrics, "SERVERS_EVERY_S", 0.01)
    registry, url = CollectorRegistry(), shared("redis").url
    metrics, name = ServerMetrics(registry), url.split("/")[2]

    async with AsyncLimiter.from_config(url, "memory://") as limiter:
        task = asyncio.create_task(service_metrics.watch_servers(limiter, metrics))
        assert await asyncio.to_thread(soon, lambda: sample(registry, "up", name, "config") == 1)
        assert sample(registry, "up", name) is None
        task.cancel()
        await asyncio.wait([task])


def test_the_worst_breaker_of_all_processes_is_shown(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from prometheus_client import CollectorRegistry, generate_latest\n"
        "from prometheus_client.multiprocess import MultiProcessCollector\n"
        "from capline.model.server_state import ServerState\n"
        "from capline.observe import ServerMetrics\n"
        "asked = CollectorRegistry()\n"
        "MultiProcessCollector(asked)\n"
        "metrics = ServerMetrics(asked, CollectorRegistry())\n"
        "metrics.show([ServerState('a:1', True, sys.argv[1])])\n"
        "print(generate_latest(asked).decode(), flush=True)\n"
        "sys.stdin.read()\n"
    )

    def start(state: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", program, state]
        own = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        return subprocess.Popen(words, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with start("open") as first:
        assert first.stdout is not None
        while "capline_server_up" not in first.stdout.readline():
            pass
        with start("closed") as second:
            told, _ = second.communicate()
        first.communicate()
    assert 'capline_server_breaker_open{server="a:1",store="main"} 1.0' in told
    assert 'capline_server_up{server="a:1",store="main"} 1.0' in told
