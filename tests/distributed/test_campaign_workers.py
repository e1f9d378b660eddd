"""Campaigns across workers: real servers, real processes, real signals, against `campaign run` of the same campaign.

The clock stands still (`as_of:`), so both decide at one instant, and what is compared is all there is: who got a
message, the report, and every hit in the store with its stamp.
"""

import contextlib
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.kit import forked
from tests.kit.campaign import (
    MIXED_STATUS,
    Receiver,
    Site,
    answer,
    capline,
    comparable,
    environment,
    folded,
    kept_in_doubt,
    mixed,
    receiver,
    stored,
)
from tests.kit.campaign_store import RUN as ONE_RUN
from tests.kit.forked import Command
from tests.kit.program import Program
from tests.kit.servers import KINDS, Cluster, SentinelGroup, Server, certificates, cluster, sentinel, single
from tests.profiles import size

from capline.campaign.store.open import open_store
from capline.campaign.store.records import Input, State
from capline.campaign.store.redis_store import RedisCampaignStore
from capline.campaign.store.server import Server as StoreServer
from capline.store.redis.scripting.keys import slot_of
from capline.support.instant import instant_text

parquet: Any = import_module("pyarrow.parquet")

SUBJECTS = 1600
BATCH = 80
KILLS = size(6, 6, 14)
RUN, WAITING, STEPS = (f"capline:{{campaign:summer-sale}}:{part}" for part in ("run", "waiting", "steps"))


@dataclass
class Shared:
    """A campaign store that is a file."""

    url: str


Queue = Server | Cluster | SentinelGroup | Shared


@pytest.fixture(scope="module")
def servers() -> Generator[dict[str, Server]]:
    """One of each kind, of our own: it is emptied before each test."""
    with single("redis") as redis, single("valkey") as valkey:
        yield {"redis": redis, "valkey": valkey}


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    servers[request.param].command("FLUSHALL")
    return servers[request.param]


@pytest.fixture
def redis_server(servers: dict[str, Server]) -> Server:
    servers["redis"].command("FLUSHALL")
    return servers["redis"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path / "site")


def make_site(path: Path, subjects: int = SUBJECTS, store: str = "") -> Site:
    path.mkdir()
    site = Site(path, store=store)
    site.seed()
    site.audience(range(subjects))
    site.settings["batch"] = str(BATCH)
    site.write()
    return site


def by_webhook(site: Site, far: Receiver, concurrency: int = 4, **settings: str | None) -> None:
    site.settings |= {"sender": f"{{webhook: {{url: '{far.url}', concurrency: {concurrency}}}}}", "channel": "push"}
    site.write(**settings)


def answered(subject: int, tries: int) -> int:
    return MIXED_STATUS[mixed(subject, tries)]


def one_process(path: Path, subjects: int = SUBJECTS) -> tuple[Site, Any, list[int]]:
    """What `campaign run` makes of it."""
    site = make_site(path, subjects)
    with receiver(answered) as far:
        by_webhook(site, far)
        return site, answer("campaign", "run", site.file), far.delivered()


def enqueue(site: Site, server: Queue) -> Any:
    return answer("campaign", "enqueue", site.file, "--queue", server.url)


def start(server: Queue, *more: str, takeover: str = "1", **variables: str) -> Command:
    words = ("worker", "--queue", server.url, "--takeover", takeover, "--until-idle", *more)
    return forked.start(*words, env=environment(**variables))


def ended(process: Command, code: int = 0) -> tuple[str, str]:
    """What a worker said, that ends by itself and with this code."""
    said, told = process.communicate(timeout=120)
    assert process.returncode == code, told
    return said, told


@contextlib.contextmanager
def workers(server: Queue, count: int, **more: str) -> Generator[list[Command]]:
    """Some workers; whatever still runs in the end is killed."""
    processes = [start(server, **more) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()


def until(happened: Callable[[], object], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.002)


def state(server: Queue) -> State:
    with closing(open_store(server.url)) as store:
        return store.state("summer-sale")


def steps(server: Queue) -> list[tuple[int, list[int]]]:
    """What is recorded of each batch."""
    with closing(open_store(server.url)) as store:
        return [(rows.number, rows.state.tolist()) for rows in store.steps("summer-sale", range(SUBJECTS // BATCH))]


def holders(server: Queue) -> dict[int, int]:
    """The processes that have a batch, and which."""
    return {int(each.worker.split(":")[1]): each.batch for each in state(server).in_work}


def status(server: Queue, name: str = "summer-sale") -> Any:
    return answer("campaign", "status", name, "--queue", server.url)


def finished(server: Queue) -> Any:
    """The finished run's report, without what a run in one process does not have."""
    report = status(server)
    assert report["state"] == "finished"
    queue = report.pop("queue")
    assert queue["settled"] == queue["batches"]
    assert (queue["unqueued"], queue["waiting"], queue["in_work"], queue["set_aside"]) == (0, 0, [], {})
    return report


def everything_expires(server: Server) -> bool:
    """The queue's keys in a month, the store's by their windows."""
    queues = server.command("KEYS", "capline:*")
    return all(server.command("PTTL", key) > 29 * 86_400_000 for key in queues) and all(
        server.command("PTTL", key) > 0 for key in server.command("KEYS", "*")
    )


# ---- the same as one process


@pytest.mark.deep
@pytest.mark.parametrize(
    ("kind", "store"),
    [
        ("sqlite", "lmdb"),
        ("redis", "the queue's"),
        pytest.param("redis", "lmdb", marks=pytest.mark.long),
        pytest.param("valkey", "the queue's", marks=pytest.mark.long),
    ],
)
def test_workers_of_which_many_are_killed_end_as_one_process_that_was_not(
    servers: dict[str, Server], tmp_path: Path, kind: str, store: str
) -> None:
    server: Queue = Shared(f"sqlite://{tmp_path}/shared/campaigns.sqlite")
    if kind != "sqlite":
        server = servers[kind]
        server.command("FLUSHALL")
    chance = random.Random(20_261_121)
    alone, expected, expected_delivered = one_process(tmp_path / "alone")
    assert expected["total"]["failed"] > 100
    assert expected["total"]["refused"] > 10

    site = make_site(tmp_path / "site", store="" if store == "lmdb" else f"{server.url}?deadline=5s")
    killed_in_work = 0
    with receiver(answered) as far:
        by_webhook(site, far)
        enqueue(site, server)
        with workers(server, 3) as processes:
            for _ in range(KILLS):
                if chance.random() < 0.6:
                    target = far.requests + chance.randint(1, BATCH)
                    until(lambda target=target: far.requests >= target, "requests")
                else:
                    before = steps(server)
                    until(lambda before=before: steps(server) != before, "a step")
                time.sleep(chance.choice([0.0, chance.uniform(0, 0.01)]))
                in_work = holders(server)
                busy = [process for process in processes if process.pid in in_work]
                victim = chance.choice(busy or [process for process in processes if process.poll() is None])
                victim.kill()
                victim.communicate()
                killed_in_work += victim in busy
                processes.remove(victim)
                processes.append(start(server))
            assert not state(server).finished, "over before the last kill: give it more subjects"
            for process in processes:
                ended(process)
        report = finished(server)
    assert killed_in_work > KILLS // 2
    assert folded(report) == folded(expected)
    assert far.delivered() == expected_delivered
    assert {len(keys) for keys in far.keys.values()} == {1}
    assert len(kept_in_doubt(stored(site, SUBJECTS), stored(alone, SUBJECTS))) == report["total"]["not_known"]
    if isinstance(server, Server):
        assert everything_expires(server)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_killed_while_messages_yield_each_user_gets_the_one_that_wins(
    servers: dict[str, Server], tmp_path: Path, kind: str, *, cancelled: bool
) -> None:
    """Of 600 users 300 are to get a notice soon, and one message a day: newsletters wait for it, or for its end."""
    server: Queue = Shared(f"sqlite://{tmp_path}/shared/campaigns.sqlite")
    if kind != "sqlite":
        server = servers[kind]
        server.command("FLUSHALL")
    chance = random.Random(20_261_127)
    site = Site(make_path(tmp_path / "site"))
    (site.path / "policies.yaml").write_text("namespace: marketing\npolicies: {promo: {limits: [1/24h]}}")
    site.settings |= {"batch": "50", "retry": "{attempts: 9, wait: 0.001, longest: 0.002}"}
    words = ("worker", "--queue", server.url, "--takeover", "1")
    processes: list[Command] = []

    def kill_one(*_: object) -> None:
        victim = processes.pop(chance.randrange(len(processes)))
        victim.kill()
        victim.communicate()
        processes.append(forked.start(*words, env=environment()))

    def report(name: str) -> Any:
        return status(server, name)["total"]

    with receiver() as far:
        site.settings["sender"] = f"{{webhook: {{url: '{far.url}', concurrency: 2}}}}"
        site.audience(range(300))
        due_us = time.time_ns() // 1000 + (3600 if cancelled else 30) * 1_000_000
        named = {"as_of": None, "segments": None}
        site.write(campaign="notice", send_at=instant_text(due_us), priority="80", **named)
        enqueue(site, server)
        site.audience(range(600))
        site.write(campaign="summer-sale", yields="true", **named)
        enqueue(site, server)
        processes += [forked.start(*words, env=environment()) for _ in range(3)]
        try:
            for requests in (20, 120, 250):
                until(lambda requests=requests: far.requests >= requests, "requests")
                kill_one()
            until(lambda: report("summer-sale")["held"] == 300, "what yields")
            kill_one()
            until(lambda: len(far.taken) >= 300, "the others")
            assert sorted(far.taken.values()) == [*range(300, 600)]
            if cancelled:
                assert capline("campaign", "cancel", "notice", "--yes", "--queue", server.url).returncode == 0
            for requests in (320, 450, 580):
                until(lambda requests=requests: far.requests >= requests, "requests", 90)
                kill_one()
            for name, end in (("summer-sale", "finished"), ("notice", "cancelled" if cancelled else "finished")):
                until(lambda name=name, end=end: status(server, name)["state"] == end, "the end", 90)
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    wins = "summer-sale" if cancelled else "notice"
    assert sorted(far.taken.values()) == [*range(600)], "each is sent one message, once"
    assert {key.partition("/")[0] for key, subject in far.taken.items() if subject < 300} == {wins}
    assert report("summer-sale")["sent"] == (600 if cancelled else 300)


def make_path(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.deep
def test_killed_while_they_write_parts_the_parts_are_the_same(redis_server: Server, tmp_path: Path) -> None:
    chance = random.Random(5)
    alone = make_site(tmp_path / "alone")
    expected = answer("campaign", "run", alone.write(batch="20"))
    site = make_site(tmp_path / "site")
    site.write(batch="20")
    enqueue(site, redis_server)
    with workers(redis_server, 3) as processes:
        for _ in range(6):
            target = int(redis_server.command("HGET", RUN, "settled")) + chance.randint(1, 4)
            until(
                lambda target=target: (
                    int(redis_server.command("HGET", RUN, "settled")) >= target or holders(redis_server)
                ),
                "batches",
            )
            busy = [process for process in processes if process.pid in holders(redis_server)]
            victim = chance.choice(busy or processes)
            victim.kill()
            victim.communicate()
            processes[processes.index(victim)] = start(redis_server)
        for process in processes:
            ended(process)
    assert comparable(finished(redis_server)) == comparable(expected)
    assert parts(site) == parts(alone)
    assert site.content(range(SUBJECTS)) == alone.content(range(SUBJECTS))


@pytest.mark.deep
def test_workers_keep_the_zones_of_the_audience(redis_server: Server, tmp_path: Path) -> None:
    zones = ("", "Asia/Tokyo", "Europe/Berlin", "America/New_York")
    sites = [make_site(tmp_path / name, subjects=0) for name in ("alone", "site")]
    for site in sites:
        rows = "".join(f"{number},{zones[number % 4]}\n" for number in range(400))
        (site.path / "users.csv").write_text(f"id,zone\n{rows}")
        (site.path / "policies.yaml").write_text(
            "namespace: marketing\npolicies: {promo: {limits: [1/calendar-day, not between 00:30 and 08:00], "
            "channels: {push: [9/day]}}}\n"
        )
        site.write(audience="{csv: users.csv, zone_column: zone}")
    alone, site = sites
    expected = answer("campaign", "run", alone.file)
    assert set(expected["total"]["refused_by"]) == {"1/calendar-day", "not between 00:30 and 08:00"}
    enqueue(site, redis_server)
    with workers(redis_server, 2) as processes:
        for process in processes:
            ended(process)
    assert comparable(finished(redis_server)) == comparable(expected)
    assert parts(site) == parts(alone)
    assert site.content() == alone.content()


def parts(site: Site) -> list[tuple[str, list[int]]]:
    found = sorted((site.path / "out").glob("part-*"))
    return [(path.name, parquet.read_table(path)["id"].to_pylist()) for path in found]


# ---- who has a batch


def test_a_worker_that_slept_past_its_lease_leaves_the_batch_to_the_other(server: Server, tmp_path: Path) -> None:
    alone, expected, expected_delivered = one_process(tmp_path / "alone", 160)
    site = make_site(tmp_path / "site", 160)
    asleep = threading.Event()
    sleeper: list[Command] = []

    def stop_at(count: int) -> None:
        if count == 10 and not asleep.is_set():
            sleeper[0].send_signal(signal.SIGSTOP)
            asleep.set()

    with receiver(answered, on_request=stop_at) as far:
        by_webhook(site, far)
        enqueue(site, server)
        with workers(server, 1) as processes:
            sleeper += processes
            assert asleep.wait(30)
            batch = next(iter(holders(server).values()))
            processes.append(start(server))
            ended(processes[1])
            report = finished(server)
            steps = server.command("HGETALL", STEPS)
            processes[0].send_signal(signal.SIGCONT)
            _, told = ended(processes[0])
        assert f"batch {batch} was taken over by another worker" in told
    assert server.command("HGETALL", STEPS) == steps
    assert comparable(finished(server)) == comparable(report)
    assert folded(report) == folded(expected)
    assert far.delivered() == expected_delivered
    assert {len(keys) for keys in far.keys.values()} == {1}
    # At most one hand-over, 8 for each of 4 connections, went out twice.
    assert sum(far.tries.values()) <= sum_of_tries(expected_delivered, expected) + 32 * 4
    assert len(kept_in_doubt(stored(site, 160), stored(alone, 160))) == report["total"]["not_known"]


def sum_of_tries(delivered: list[int], report: Any) -> int:
    """At most four tries for each that is not refused."""
    return 4 * (len(delivered) + report["total"]["failed"])


@pytest.mark.deep
def test_a_long_hand_over_is_not_taken_over(redis_server: Server, tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", 12)

    def slow(_subject: int, _tries: int) -> int:
        time.sleep(0.6)  # 8 messages at a hand-over: 4.8 s, where a lease is 2 s
        return 200

    with receiver(slow) as far:
        by_webhook(site, far, concurrency=1)
        enqueue(site, redis_server)
        with workers(redis_server, 2, takeover="2") as processes:
            told = [ended(process)[1] for process in processes]
    assert not any("taken over" in text for text in told)
    assert set(far.tries.values()) == {1}
    assert finished(redis_server)["total"]["sent"] == len(far.taken)


def test_a_worker_that_is_asked_to_stop_gives_its_batch_back_at_once(server: Server, tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", 160)
    stopped: list[int] = []
    process: list[Command] = []

    def stop_at(count: int) -> None:
        if count == 10 and not stopped:
            stopped.append(count)
            process[0].send_signal(signal.SIGTERM)

    with receiver(on_request=stop_at) as far:
        by_webhook(site, far, concurrency=1)
        enqueue(site, server)
        with workers(server, 1, takeover="600") as processes:
            process += processes
            _, told = ended(processes[0], 128 + signal.SIGTERM)
            assert "nothing is lost" in told
            assert far.requests <= 40, "it ends after the hand-over, not after the batch"
            assert holders(server) == {}
            assert status(server)["state"] == "stopped"
            began = time.monotonic()
            processes.append(start(server, takeover="600"))
            ended(processes[1])
            assert time.monotonic() - began < 300
    assert set(far.tries.values()) == {1}
    assert finished(server)["total"]["sent"] == len(far.taken)


@pytest.mark.parametrize("killed", [False, True])
def test_workers_heed_a_pause_before_the_next_hand_over(redis_server: Server, tmp_path: Path, *, killed: bool) -> None:
    site = make_site(tmp_path / "site", 160)
    steer = "summer-sale", "--queue", redis_server.url
    process: list[Command] = []

    def pause_at(count: int) -> None:
        if count == 10:
            capline("campaign", "pause", *steer)
            if killed:
                process[0].kill()

    with receiver(answered, on_request=pause_at) as far:
        by_webhook(site, far, concurrency=1)
        enqueue(site, redis_server)
        with workers(redis_server, 1) as processes:
            process += processes
            ended(processes[0], -signal.SIGKILL if killed else 0)
            assert far.requests <= 40
            assert status(redis_server)["state"] == "paused"
            processes.append(start(redis_server))
            ended(processes[1])
            assert far.requests <= 40, "a paused campaign is no work for anybody"
            assert capline("campaign", "resume", *steer).stdout == "summer-sale: resumed\n"
            # The lease of a killed worker ends before it is idle: its batch is in work until then.
            processes.append(start(redis_server))
            ended(processes[2])
    assert {len(keys) for keys in far.keys.values()} == {1}
    assert finished(redis_server)["total"]["sent"] == len(far.taken)


@pytest.mark.deep
def test_the_server_may_be_killed_and_come_back(tmp_path: Path) -> None:
    alone, expected, expected_delivered = one_process(tmp_path / "alone")
    site = make_site(tmp_path / "site")
    with single("redis", "appendonly yes", "appendfsync always") as server, receiver(answered) as far:
        by_webhook(site, far)
        done = capline("campaign", "enqueue", site.file, "--queue", server.url)
        assert (done.returncode, done.stderr) == (0, "")
        with workers(server, 2, takeover="2") as processes:
            for count in (150, 700):
                until(lambda count=count: far.requests >= count, "requests")
                server.kill()
                time.sleep(0.5)
                server.restart()
            for process in processes:
                ended(process)
        report = finished(server)
    assert folded(report) == folded(expected)
    assert far.delivered() == expected_delivered
    assert {len(keys) for keys in far.keys.values()} == {1}
    assert len(kept_in_doubt(stored(site, SUBJECTS), stored(alone, SUBJECTS))) == report["total"]["not_known"]


@pytest.mark.deep
@pytest.mark.parametrize(
    "kind",
    [
        "redis+cluster",
        "valkey+sentinel",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("valkey+cluster", "redis+sentinel")),
    ],
)
def test_the_primary_that_has_a_campaign_may_be_killed(tmp_path: Path, kind: str) -> None:
    *_, expected_delivered = one_process(tmp_path / "alone")
    site = make_site(tmp_path / "site")
    brand, _, shape = kind.partition("+")
    with (cluster if shape == "cluster" else sentinel)(brand) as group, receiver(answered) as far:
        by_webhook(site, far)
        enqueue(site, group)
        if isinstance(group, Cluster):
            with closing(open_store(group.url)) as store:
                for number in range(20):
                    store.begin(replace(ONE_RUN, facts=replace(ONE_RUN.facts, campaign=f"{number}")))
                    store.steer(f"{number}", "cancel")
                assert set(map(str, range(20))) < set(store.page("", 100))
            assert all(server.command("DBSIZE") for server in group.primaries), "campaigns are on each of them"
        with workers(group, 2, takeover="2") as processes:
            until(lambda: far.requests >= 200, "requests")
            share = slot_of(b"summer-sale") % 16
            primary = group.owner(slot_of(b"campaign:/%x" % share)) if isinstance(group, Cluster) else group.master
            primary.kill()
            processes[0].kill()
            processes.append(start(group, takeover="2"))
            for process in processes[1:]:
                ended(process)
        report = finished(group)
    assert far.delivered() == expected_delivered
    assert {len(keys) for keys in far.keys.values()} == {1}
    assert report["total"]["sent"] + report["total"]["not_known"] >= len(expected_delivered)


@pytest.mark.deep
def test_a_worker_that_starts_while_its_server_restarts_waits_for_it(tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", 20)
    with single("redis", "appendonly yes", "appendfsync always") as server, receiver() as far:
        by_webhook(site, far)
        enqueue(site, server)
        server.kill()
        process = start(server)
        time.sleep(0.5)
        server.restart()
        ended(process)
        assert finished(server)["total"]["sent"] == 20


def test_a_store_that_goes_away_and_comes_back_ends_no_worker(tmp_path: Path) -> None:
    with single("redis") as queue, single("redis", "appendonly yes", "appendfsync always") as store, receiver() as far:
        site = make_site(tmp_path / "site", 200, store=store.url)
        by_webhook(site, far)
        enqueue(site, queue)
        store.kill()
        process = start(queue)
        assert process.stderr is not None
        while "the store does not answer" not in process.stderr.readline():
            assert process.poll() is None
        store.restart()
        _, told = ended(process)
        assert "the store does not answer" not in told  # said once
        total = finished(queue)["total"]
        assert total["sent"] == len(far.taken)
        assert total["sent"] + total["refused"] == 200
    assert {len(keys) for keys in far.keys.values()} == {1}


# ---- enqueueing


def test_enqueue_may_be_killed_and_asked_again(redis_server: Server, tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", 6000)
    site.write(batch="2")
    for _ in range(3):
        queued = int(redis_server.command("HGET", RUN, "queued") or 0)
        process = forked.start("campaign", "enqueue", site.file, "--queue", redis_server.url, env=environment())
        until(lambda q=queued: int(redis_server.command("HGET", RUN, "queued") or 0) > q, "batches")
        process.kill()
        process.communicate()
    assert 0 < int(redis_server.command("HGET", RUN, "queued")) < 3000
    assert enqueue(site, redis_server)["state"] == "continued"
    assert entries(redis_server) == list(range(3000))
    assert everything_expires(redis_server)


def test_two_enqueue_at_once_and_each_batch_is_there_once(redis_server: Server, tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", 4000)
    site.write(batch="2")
    words = ("campaign", "enqueue", site.file, "--queue", redis_server.url, "--json")
    both = [forked.start(*words, env=environment()) for _ in range(2)]
    runs = {json.loads(process.communicate(timeout=60)[0])["run"] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(runs) == 1
    assert entries(redis_server) == list(range(2000))


def entries(server: Server) -> list[int]:
    return [int(number) for number in server.command("ZRANGE", WAITING, 0, -1)]


@pytest.mark.deep
def test_a_run_goes_on_only_with_what_it_was_begun_with(redis_server: Server, site: Site) -> None:
    enqueue(site, redis_server)
    site.write(cost="2")
    done = capline("campaign", "enqueue", site.file, "--queue", redis_server.url)
    assert done.returncode == 2
    assert "was enqueued with another cost (was 1, is 2); put it back to go on, or begin a new run" in done.stderr
    site.write(retry="{attempts: 2}")
    assert enqueue(site, redis_server)["put"] == 0
    assert b"attempts: 2" in redis_server.command("HGET", RUN, "file")
    ended(start(redis_server))
    again = capline("campaign", "enqueue", site.file, "--queue", redis_server.url)
    assert (again.returncode, "finished before" in again.stdout) == (0, True)
    assert redis_server.command("ZCARD", WAITING) == 0


@pytest.mark.parametrize("kind", ["lmdb", "redis"])
def test_a_campaign_has_one_run_wherever_it_was_begun(redis_server: Server, tmp_path: Path, kind: str) -> None:
    site = make_site(tmp_path / "site", 30, redis_server.url if kind == "redis" else "")
    run = ("campaign", "run", site.file)
    again = (*run, "--ledger", tmp_path / "again")
    queue = ("campaign", "enqueue", site.file, "--queue", redis_server.url)

    def refused(*words: str | Path) -> None:
        done = capline(*words)
        assert done.returncode == 2
        assert "has another run, of " in done.stderr
        assert "another name" in done.stderr

    with receiver(lambda subject, _tries: 410 if subject % 10 == 0 else 200) as far:
        by_webhook(site, far)
        enqueue(site, redis_server)
        ended(start(redis_server))
        for words in (run, again):
            refused(*words)
        assert "a campaign that was enqueued has none" in capline(*run, "--retry-failed").stderr
        by_webhook(site, far, campaign="autumn")
        capline(*run)
        for words in (again, queue):
            refused(*words)
        # Queued before the run began elsewhere, so a worker finds it.
        by_webhook(site, far, campaign="winter")
        enqueue(site, redis_server)
        capline(*run, "--ledger", tmp_path / "winter")
        _, told = ended(start(redis_server), 2)
        assert "campaign winter cannot be worked on here: campaign 'winter' has another run" in told
    runs = {tuple(key.split("/")[:2]) for keys in far.keys.values() for key in keys}
    assert sorted(name for name, _ in runs) == ["autumn", "summer-sale", "winter"]


def test_a_worker_refuses_a_future_instant_on_a_store_that_may_be_in_use(redis_server: Server, site: Site) -> None:
    site.write(as_of="2199-01-01T00:00:00Z", store=f"lmdb://{site.path}/new", sender="{file: out}")
    enqueue(site, redis_server)
    _, told = ended(start(redis_server, "--store", site.store), 2)
    assert "'as_of:' is in the future" in told
    ended(start(redis_server))


# ---- what cannot go on


def damage(server: Server, number: int) -> None:
    """Change one byte of one batch."""
    data = bytearray(server.command("HGET", STEPS, f"{number}:data"))
    data[len(data) // 2] ^= 0x55
    server.command("HSET", STEPS, f"{number}:data", bytes(data))


@pytest.mark.deep
def test_a_damaged_batch_is_set_aside_and_put_back_by_enqueue(server: Server, tmp_path: Path) -> None:
    alone = make_site(tmp_path / "alone", 400)
    expected = answer("campaign", "run", alone.file)
    site = make_site(tmp_path / "site", 400)
    enqueue(site, server)
    damage(server, 1)
    said, told = ended(start(server, "--json"), 2)
    assert "batch 1 is set aside: batch 1 is damaged; the others go on" in told
    assert (json.loads(said)["settled"], json.loads(said)["aside"]) == (4, 1)
    report = status(server)
    assert report["state"] == "stopped"
    assert report["total"]["undecided"] == BATCH
    assert report["queue"]["set_aside"] == {"1": "batch 1 is damaged"}
    assert "batch 1 is set aside" in capline("campaign", "status", "summer-sale", "-q", server.url).stdout
    assert enqueue(site, server)["put"] == 1
    ended(start(server))
    assert comparable(finished(server)) == comparable(expected)
    assert parts(site) == parts(alone)
    assert site.content() == alone.content()


@pytest.mark.deep
def test_a_worker_that_cannot_go_on_says_why_and_the_next_one_does(redis_server: Server, site: Site) -> None:
    enqueue(site, redis_server)
    (site.path / "out" / "part-000000.parquet").mkdir(parents=True)
    (site.path / "out" / ".capline-run").write_text(redis_server.command("HGET", RUN, "run_id").decode())
    _, told = ended(start(redis_server), 2)
    last = told.splitlines()[-1]
    assert last.startswith("capline: ")
    assert "nothing is lost: fix it" in last
    (held,) = status(redis_server)["queue"]["in_work"] or [None]
    assert held is None
    assert b"part-000000.parquet cannot be written" in redis_server.command("HGET", STEPS, "0:error")
    (site.path / "out" / "part-000000.parquet").rmdir()
    ended(start(redis_server))
    assert finished(redis_server)["total"]["sent"] == sum(len(ids) for _, ids in parts(site))


@pytest.mark.deep
def test_a_worker_whose_receiver_takes_nothing_ends_with_exit_1_and_the_next_goes_on(
    redis_server: Server, tmp_path: Path
) -> None:
    site = make_site(tmp_path / "site", 160)
    said = {"status": 401}
    with receiver(lambda _id, _tries: said["status"]) as far:
        by_webhook(site, far)
        enqueue(site, redis_server)
        _, told = ended(start(redis_server), 1)
        assert "stopped early: 32 messages in a row were not sent by webhook (HTTP 401)" in told
        assert "Traceback" not in told
        report = status(redis_server)
        assert (report["total"]["sent"], report["total"]["failed"]) == (0, 32)
        said["status"] = 200
        ended(start(redis_server))
    total = finished(redis_server)["total"]
    assert (total["failed"], total["sent"]) == (32, len(far.taken))
    assert total["sent"] + total["refused"] + 32 == 160


def test_batches_wait_for_a_receiver_that_is_down_and_others_go_on(redis_server: Server, tmp_path: Path) -> None:
    down = threading.Event()
    down.set()
    with receiver(lambda _id, _tries: 503 if down.is_set() else 200) as far, receiver() as other:
        for name, to in (("spring", far), ("autumn", far), ("winter", other)):
            (tmp_path / name).mkdir()
            site = Site(tmp_path / name, {"campaign": name})
            by_webhook(site, to)
            enqueue(site, redis_server)
        words = "worker", "--queue", redis_server.url, "--takeover", "1"
        began = time.monotonic()
        worker = Program(tmp_path, "-m", "capline.cli", *words, env=environment())
        try:
            worker.says(re.compile(r"messages in a row were not sent by webhook \(HTTP 503\); it is tried again"))
            until(lambda: status(redis_server, "winter")["state"] == "finished", "the other receiver's is sent")
            assert not far.taken
            down.clear()
            for name in ("spring", "autumn"):
                until(lambda name=name: status(redis_server, name)["state"] == "finished", f"{name} is sent")
        finally:
            worker.end()
    assert [status(redis_server, name)["total"]["failed"] for name in ("spring", "autumn")] == [0, 0]
    assert len(far.taken) == 800
    told = [line for line in worker.said if "it is tried again" in line]
    assert len(told) <= 1 + (time.monotonic() - began) // 60, "a line a minute, of both campaigns"


@pytest.mark.deep
def test_secrets_stay_in_the_environment(redis_server: Server, site: Site) -> None:
    secret = "swordfish-7"  # noqa: S105 - made up
    with receiver() as far:
        site.settings |= {"batch": "400", "store": f"lmdb://{site.path}/${{STORE_NAME}}"}
        site.audience(range(3))
        site.write(sender=f"{{webhook: {{url: '{far.url}', headers: {{Authorization: 'Bearer ${{PUSH_KEY}}'}}}}}}")
        done = capline(
            "campaign", "enqueue", site.file, "-q", redis_server.url, PUSH_KEY=secret, STORE_NAME="elsewhere"
        )
        assert done.returncode == 0, done.stderr
        kept = b"".join(
            b"".join(redis_server.command("HGETALL", key))
            for key in redis_server.command("KEYS", "*")
            if redis_server.command("TYPE", key) == b"hash"
        )
        assert b"${PUSH_KEY}" in kept
        assert secret.encode() not in kept
        assert b"elsewhere" not in kept
        _, told = ended(start(redis_server, STORE_NAME="elsewhere"), 2)
        assert "summer-sale cannot be worked on here" in told
        assert "the environment variable PUSH_KEY is not set" in told
        ended(start(redis_server, PUSH_KEY=secret, STORE_NAME="elsewhere"))
    assert finished(redis_server)["total"]["sent"] == 3
    assert (site.path / "elsewhere" / "data.mdb").exists()


def test_a_campaign_of_another_version_stops_no_other(redis_server: Server, site: Site) -> None:
    site.audience(range(3))
    with receiver() as far:
        site.write(sender=f"{{webhook: {{url: '{far.url}'}}}}")
        enqueue(site, redis_server)
        redis_server.command("HSET", RUN.replace("summer-sale", "spring"), "version", "2")
        redis_server.command("ZADD", "capline:campaigns", "0", "spring")
        _, told = ended(start(redis_server), 2)
    assert "spring cannot be worked on here" in told
    assert "another version of capline; finish it with the capline worker of that version" in told
    assert finished(redis_server)["total"]["sent"] == 3


def test_a_store_below_the_working_directory_is_the_same_for_workers_elsewhere(
    redis_server: Server, tmp_path: Path
) -> None:
    site = make_site(tmp_path / "site", 160)
    site.write(store="lmdb://store")
    done = capline("campaign", "enqueue", "campaign.yaml", "-q", redis_server.url, cwd=site.path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "elsewhere").mkdir()
    worked = capline("worker", "-q", redis_server.url, "--until-idle", cwd=tmp_path / "elsewhere")
    assert worked.returncode == 0, worked.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []
    with site.limiter() as limiter:
        assert limiter.peek("promo", 1, segment="active").remaining == 1
    assert len(parts(site)) == 2


@pytest.mark.deep
def test_a_worker_may_be_given_another_store(redis_server: Server, site: Site, tmp_path: Path) -> None:
    enqueue(site, redis_server)
    before = site.content()
    ended(start(redis_server, "--store", f"lmdb://{tmp_path}/other"))
    assert site.content() == before
    assert finished(redis_server)["total"]["sent"] == SUBJECTS
    assert (tmp_path / "other" / "data.mdb").exists()


# ---- looking


@pytest.mark.deep
def test_workers_of_one_run_decide_on_one_store(redis_server: Server, site: Site, tmp_path: Path) -> None:
    enqueue(site, redis_server)
    with StoreServer(redis_server.url) as opened:
        theirs = Input("store identity", "a store of", "another host")
        assert RedisCampaignStore(opened).freeze_store("summer-sale", theirs) == theirs
    told = ended(start(redis_server), 2)[1]
    assert "its other workers decide on another store identity (was another host, is made " in told
    told = ended(start(redis_server, "--store", f"lmdb://{tmp_path}/other"), 2)[1]
    assert "there is no store at" in told
    assert not (tmp_path / "other").exists()
    assert steps(redis_server) == []
    redis_server.command("HDEL", RUN, "store_identity")
    ended(start(redis_server))
    assert finished(redis_server)["total"]["sent"] > 0
    assert everything_expires(redis_server)


@pytest.mark.deep
def test_status_shows_who_has_what(redis_server: Server, tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", 160)
    held = threading.Event()
    looked = threading.Event()

    def hold(count: int) -> None:
        if count == 3:
            held.set()
            looked.wait(30)

    with receiver(on_request=hold) as far:
        by_webhook(site, far)
        enqueue(site, redis_server)
        with workers(redis_server, 1) as processes:
            assert held.wait(30)
            report = status(redis_server)
            text = capline("campaign", "status", "summer-sale", "-q", redis_server.url).stdout
            words = ("campaign", "status", site.file, "-q", redis_server.url, "--watch", "--json")
            watching = forked.start(*words, env=environment())
            looked.set()
            ended(processes[0])
            lines = [json.loads(line) for line in watching.communicate(timeout=30)[0].splitlines()]
            pid = processes[0].pid
    assert report["state"] == "running"
    (batch,) = report["queue"]["in_work"]
    assert (batch["batch"], int(batch["worker"].split(":")[1]), batch["takes"]) == (0, pid, 1)
    assert abs(batch["since_us"] - time.time_ns() // 1000) < 60_000_000
    assert (report["queue"]["waiting"], report["total"]["undecided"]) == (1, BATCH)
    assert "2 batches: 0 settled, 1 in work, 1 waiting" in text
    assert f":{pid}:" in text
    assert lines[-1]["state"] == "finished"
    assert lines[-1]["total"]["sent"] == len(far.taken)


@pytest.mark.deep
def test_the_campaigns_store_is_the_queue_where_it_can_be(server: Server, tmp_path: Path) -> None:
    site = make_site(tmp_path / "site", 160, store=server.url)
    assert answer("campaign", "enqueue", site.file)["queue"] == server.url
    shown = capline("campaign", "enqueue", site.file)
    assert f"capline worker --queue {server.url}" in shown.stdout
    ended(start(server))
    assert answer("campaign", "status", site.file)["state"] == "finished"
    people = capline("campaign", "status", site.file).stdout
    assert "2 batches: 2 settled, 0 in work, 0 waiting" in people


@pytest.mark.deep
def test_two_campaigns_share_the_workers_and_the_urgent_one_goes_first(redis_server: Server, tmp_path: Path) -> None:
    for name, priority in (("spring", "50"), ("autumn", "51")):
        site = make_site(tmp_path / name, 400)
        site.settings |= {"campaign": name, "priority": priority}
        site.write()
        enqueue(site, redis_server)
    with workers(redis_server, 2) as processes:
        worked = [ended(process)[1] for process in processes]
    orders = [[line.split(":")[0] for line in text.splitlines() if " sent, " in line] for text in worked]
    assert sum(map(len, orders)) == 10
    assert orders == [sorted(order) for order in orders]
    for name in ("spring", "autumn"):
        report = answer("campaign", "status", name, "--queue", redis_server.url)
        assert (report["state"], report["campaign"]) == ("finished", name)
    assert redis_server.command("KEYS", "capline:campaigns") == []


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_ten_wait_for_no_more_than_two_batches_of_each_worker_of_a_large_campaign(
    redis_server: Server, tmp_path: Path, kind: str
) -> None:
    """For the one in work, and for another one while the ten are prepared."""
    queue = redis_server if kind == "redis" else Shared(f"sqlite://{tmp_path}/queue.sqlite")
    sites = {name: make_site(tmp_path / name, 0, f"lmdb://{tmp_path}/limits") for name in ("large", "urgent")}
    users, batch = size(200_000, 200_000, 1_000_000), 10_000
    for (name, site), ids in zip(sites.items(), (range(10, users + 10), range(10)), strict=True):
        site.audience(ids)
        more = {"sender": "{file: out, format: csv}", "batch": str(batch), "segments": None, "as_of": None}
        site.write(**{**more, "campaign": name, "priority": "90" if name == "urgent" else None})

    def parts(name: str) -> dict[str, int]:
        return {part.name: part.stat().st_mtime_ns for part in (tmp_path / name / "out").glob("part-*.csv")}

    enqueue(sites["large"], queue)
    with workers(queue, 2) as processes:
        until(lambda: len(parts("large")) >= 2, "parts", 60)
        enqueue(sites["urgent"], queue)
        accepted_ns = time.time_ns()
        for process in processes:
            ended(process)
    (sent_ns,) = parts("urgent").values()
    assert len(parts("large")) == users // batch
    assert sum(accepted_ns < at < sent_ns for at in parts("large").values()) <= 4
    for name, count in (("large", users), ("urgent", 10)):
        told = answer("campaign", "status", name, "--queue", queue.url)
        assert (told["state"], told["total"]["sent"]) == (
            "finished",
            count,
        )


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_campaigns_of_one_rate_key_keep_one_rate_together(redis_server: Server, tmp_path: Path, kind: str) -> None:
    queue = redis_server if kind == "redis" else Shared(f"sqlite://{tmp_path}/queue.sqlite")
    store = f"{redis_server.url}" if kind == "redis" else f"lmdb://{tmp_path}/limits"
    arrived: list[float] = []

    def note(_count: int) -> None:
        arrived.append(time.monotonic())

    with receiver(answered, on_request=note) as far:
        for name, rate in (("spring", "20/s"), ("autumn", "20/s"), ("winter", "25/s")):
            (tmp_path / name).mkdir()
            site = Site(tmp_path / name, store=store)
            site.audience(range(25))
            site.settings |= {"campaign": name, "batch": "5"}
            by_webhook(site, far, as_of=None, rate=rate, rate_key="push")
            if rate == "20/s":
                enqueue(site, queue)
        begin = "campaign", "enqueue", site.file, "--queue", queue.url
        refused = [capline(*begin)]
        steered = ("--queue", queue.url)
        assert capline("campaign", "set", "autumn", "--rate", "21/s", *steered).returncode == 0
        refused.append(capline(*begin))
        began = time.monotonic()
        with workers(queue, 2) as processes:
            until(lambda: far.requests > 10, "requests", 60)
            assert capline("campaign", "set", "spring", "--rate", "25/s", *steered).returncode == 0
            assert answer("campaign", "status", "autumn", *steered)["steering"]["speed"]["rate"] == "25/second"
            assert answer(*begin)["state"] == "new"
            for process in processes:
                ended(process)
        assert capline("worker", *steered, "--until-idle", "--quiet").returncode in (0, 1)
    assert far.requests > 60
    assert arrived[-1] - began >= (far.requests - 25) / 25
    for done, said in zip(refused, ("another rate than 25/s", "21/second, not 25/second, by "), strict=True):
        assert done.returncode == 2
        assert f"rate_key 'push' has {said}" in done.stderr


@pytest.mark.deep
@pytest.mark.parametrize("seed", [28, 2812])
def test_workers_that_are_killed_on_their_way_to_a_slot_leave_it_to_the_others(
    redis_server: Server, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    site = Site(tmp_path, store=redis_server.url)
    began = time.monotonic()
    with receiver() as far, workers(redis_server, 0) as processes:
        by_webhook(site, far, as_of=None, rate="40/s", segments=None)
        enqueue(site, redis_server)
        processes += [start(redis_server) for _ in range(2)]
        for _ in range(5):
            target = far.requests + chance.randint(5, 60)
            until(lambda target=target: far.requests >= target, "requests", 120)
            time.sleep(chance.uniform(0, 0.3))
            victim = processes.pop(0)
            victim.kill()
            victim.communicate()
            processes.append(start(redis_server))
        for process in processes:
            ended(process)
        report = status(redis_server)
    assert (report["state"], report["total"]["sent"]) == ("finished", 400)
    assert far.delivered() == list(range(400))
    assert {len(keys) for keys in far.keys.values()} == {1}
    assert time.monotonic() - began >= (far.requests - 40) / 40
    assert sum(report["total"]["delays"].values()) == 400


# ---- bad input


def refusals(site: Site, url: str) -> Iterator[tuple[list[str | Path], str]]:
    file = site.file
    yield ["campaign", "enqueue", file], "its store cannot hold a queue; name one: --queue redis://127.0.0.1:6379/0"
    yield ["campaign", "enqueue", file, "-q", "http://h"], "is not the URL of a Redis or Valkey server; write it like"
    yield ["worker", "-q", "redis+sentinel://:swordfish@127.0.0.1:1/m"], "queue redis+sentinel://127.0.0.1:1/m/0: "
    yield ["worker", "-q", "redis://:swordfish@127.0.0.1:1/0"], "queue redis://127.0.0.1:1/0: "
    yield ["worker", "-q", "redis://:swordfish@127.0.0.1:x/0"], "is not host:port"
    yield ["worker", "-q", "redis://:swordfish@127.0.0.1/zero"], "at most the number of a database"
    yield ["worker", "-q", url, "--takeover", "0.1"], "taken over after 1 to 86400 s, not 0.1"
    yield ["campaign", "status", "winter", "-q", url], "no run of a campaign 'winter'; begin it with: capline campaign"
    yield ["campaign", "status", "win ter", "-q", url], "campaign name 'win ter' is not"
    yield ["campaign", "status", "winter"], "name the campaign file, a run's directory, or a campaign with --queue"


@pytest.mark.deep
def test_bad_input_is_one_line_with_the_fix(redis_server: Server, site: Site) -> None:
    for words, said in refusals(site, redis_server.url):
        done = capline(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.count("\n") == 1, done.stderr
        assert said in done.stderr
        assert "swordfish" not in done.stderr


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("memory://", "store memory:// belongs to one process; workers need one that they share"),
        ("redis://:swordfish@127.0.0.1:1/0", "write it as ${NAME} in the campaign file's 'store:'"),
    ],
)
def test_a_store_that_workers_cannot_use_is_refused(redis_server: Server, site: Site, store: str, said: str) -> None:
    site.write(store=store)
    done = capline("campaign", "enqueue", site.file, "-q", redis_server.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "swordfish" not in done.stderr
    assert redis_server.command("DBSIZE") == 0


def test_a_wrong_password_is_reported_and_not_shown() -> None:
    with single("redis", password="right-one") as server:  # noqa: S106 - made up
        done = capline("worker", "-q", server.url.replace("right-one", "wrong-one"))
        assert (done.returncode, done.stdout) == (2, "")
        assert "did not take the user name or password" in done.stderr
        assert "wrong-one" not in done.stderr
        assert "TLS" not in done.stderr
        told = capline("worker", "-q", server.url, "--until-idle")
        assert told.returncode == 0
        assert "right-one" not in told.stderr + told.stdout


@pytest.mark.deep
def test_over_tls_the_servers_certificate_is_checked(tmp_path: Path) -> None:
    made = certificates(tmp_path)
    with single("redis", tls=made) as server:
        refused = capline("worker", "-q", server.url, "--until-idle")
        assert (refused.returncode, "certificate" in refused.stderr) == (2, True)
        taken = capline("worker", "-q", f"{server.url}?ca={made.ca}", "--until-idle")
        assert taken.returncode == 0, taken.stderr


def test_a_cluster_node_and_a_server_that_forgets_are_reported(tmp_path: Path) -> None:
    with single("redis", "cluster-enabled yes", "maxmemory-policy allkeys-lru") as server:
        done = capline("worker", "-q", server.url, "--until-idle")
        assert (done.returncode, "a node of a cluster; name that: redis+cluster://" in done.stderr) == (2, True)
    with single("redis", "maxmemory-policy allkeys-lru") as server:
        done = capline("worker", "-q", server.url, "--until-idle")
        assert done.returncode == 0
        assert "maxmemory-policy allkeys-lru" in done.stderr
        assert "appendonly no" in done.stderr


def test_a_queue_is_not_needed_to_look_at_a_ledger(site: Site) -> None:
    answer("campaign", "run", site.file)
    assert answer("campaign", "status", site.file)["state"] == "finished"
    assert os.environ.get("CAPLINE_QUEUE") is None


# ---- outcomes, and what failed again, of a campaign that workers deliver


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_workers_campaigns_have_outcomes_and_what_failed_is_tried_again(
    redis_server: Server, site: Site, tmp_path: Path, kind: str
) -> None:
    queue = Shared(f"sqlite://{tmp_path}/campaigns.sqlite") if kind == "sqlite" else redis_server
    with receiver(lambda subject, tries: 503 if subject % 9 == 4 and tries < 3 else 200) as far:
        by_webhook(site, far, retry="{attempts: 2, wait: 0.001, longest: 0.002}")
        first = enqueue(site, queue)
        assert first["put"] == SUBJECTS // BATCH
        again = ["campaign", "enqueue", site.file, "--queue", queue.url, "--retry-failed"]
        assert "is not finished; retry what failed when it is" in capline(*again).stderr
        ended(start(queue))
        report = finished(queue)
        failed = report["total"]["failed"]
        assert failed > 100
        one = answer("campaign", "outcome", "summer-sale", "4", "--queue", queue.url)
        assert (one["outcome"], one["reason"], one["given_back"]) == ("failed", "HTTP 503", True)
        assert answer(*again)["put"] == -(-failed // BATCH)
        waiting = status(queue)
        assert (waiting["state"], waiting["total"]["undecided"]) == ("stopped", failed)
        ended(start(queue))
    report = finished(queue)
    assert (report["total"]["failed"], len(far.taken)) == (0, report["total"]["sent"])
    assert {len(keys) for keys in far.keys.values()} == {1}
    assert answer("campaign", "outcome", "summer-sale", "4", "--queue", queue.url)["outcome"] == "sent"
    file = tmp_path / "outcomes.parquet"
    assert capline("campaign", "outcomes", "summer-sale", "--to", file, "--queue", queue.url).returncode == 0
    table = parquet.read_table(file)
    assert sorted(table["id"].to_pylist()) == list(range(SUBJECTS))
    assert table["outcome"].to_pylist().count("sent") == report["total"]["sent"]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("how", ["until", "cancel"])
def test_workers_send_nothing_of_a_campaign_that_is_over(
    redis_server: Server, site: Site, tmp_path: Path, kind: str, how: str
) -> None:
    queue = Shared(f"sqlite://{tmp_path}/campaigns.sqlite") if kind == "sqlite" else redis_server
    with receiver() as far:
        by_webhook(site, far, as_of=None, until="2026-01-01T00:00:00Z" if how == "until" else None)
        enqueue(site, queue)
        if how == "cancel":
            assert capline("campaign", "cancel", "summer-sale", "--queue", queue.url, "--yes").returncode == 0
        ended(start(queue))
        report = status(queue)
    assert (report["state"], report["total"]["undecided"]) == ("cancelled", SUBJECTS)
    assert not far.taken
    again = capline("campaign", "enqueue", site.file, "--queue", queue.url, "--retry-failed")
    assert "was cancelled" in again.stderr
