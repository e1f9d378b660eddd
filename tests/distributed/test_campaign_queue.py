"""A campaign store on real servers: its keys, what expires, what somebody removed, a server that is away."""

import re
import signal
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kit.campaign import Far, Site, with_sender
from tests.kit.campaign_store import DAY_US, FACTS, RUN, claimed, fill, filled, finish, part, put, rows_of
from tests.kit.servers import KINDS, Server, single

from capline.campaign.breaker import Breaker
from capline.campaign.deliver import Delivery, DueLater, LeaseLost, StepRecorder
from capline.campaign.queue.status import QueueStatus
from capline.campaign.senders.protocol import TRANSIENT
from capline.campaign.stop import CampaignStopped, Stop
from capline.campaign.store.records import Over
from capline.campaign.store.redis_store import RedisCampaignStore
from capline.campaign.store.server import Server as StoreServer
from capline.model.errors import CampaignError

PREFIX = "capline:{campaign:sale}:"


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest) -> Generator[Server]:
    with single(request.param) as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    running.command("FLUSHALL")
    return running


@pytest.fixture
def queue(server: Server) -> Generator[RedisCampaignStore]:
    with StoreServer(server.url, patience_s=0.0) as opened:
        yield RedisCampaignStore(opened)


def test_what_another_version_queued_is_left_alone(queue: RedisCampaignStore, server: Server) -> None:
    queue.begin(RUN)
    server.command("HSET", PREFIX + "run", "facts", "{}")
    with pytest.raises(CampaignError, match="is damaged; give the campaign another name"):
        queue.find("sale")
    server.command("HSET", PREFIX + "run", "version", "1")
    with pytest.raises(CampaignError, match="was queued by another version of capline"):
        queue.find("sale")


def test_what_has_expired_leaves_the_list(queue: RedisCampaignStore, server: Server) -> None:
    for name in ("a", "b", "c", "d"):
        queue.begin(replace(RUN, facts=replace(FACTS, campaign=name)))
    server.command("DEL", "capline:{campaign:a}:run", "capline:{campaign:c}:run")
    assert queue.page("", 2) == ["b", "d"]
    assert server.command("ZRANGE", "capline:{campaign:}names", 0, -1) == [b"b", b"d"]


def test_a_batch_that_was_lost_between_two_tries_is_not_handed_over_again(
    queue: RedisCampaignStore, server: Server, tmp_path: Path
) -> None:
    filled(queue)
    site = Site(tmp_path)
    far = Far(lambda _id, _tries: TRANSIENT)
    job = with_sender(site.job(segments=None), far)
    batch = claimed(queue, "late", lease_s=0)
    stop = Stop()
    steps = StepRecorder(queue, batch, stop)
    try:
        with job.open_limiter("memory://") as limiter:
            delivery = Delivery(RUN, job.file, job.policy, limiter, Breaker(0))
            with pytest.raises(DueLater):
                delivery.deliver(steps, part(0), None)
            rows = next(iter(queue.steps("sale", [0])))
            claimed(queue, "new")
            with pytest.raises(LeaseLost):
                delivery.deliver(steps, part(0), rows)
    finally:
        stop.close()
    assert len(far.hand_overs) == 1


def test_every_verb_renews_what_expires(queue: RedisCampaignStore, server: Server) -> None:
    def renewed() -> bool:
        keys = server.command("KEYS", "*")
        whole = all(server.command("PTTL", key) > 29 * 86_400_000 for key in keys)
        for key in keys:
            server.command("PEXPIRE", key, 60_000)
        return whole and len(keys) >= 3

    queue.begin(RUN)
    assert renewed()
    put(queue, 0, 1, 2)
    assert renewed()
    batch = claimed(queue, "a")
    assert renewed()
    assert queue.renew(batch)
    assert renewed()
    assert queue.record(batch, rows_of(batch), decided=True)
    assert renewed()
    for how in ("give_back", "fail", "set_aside"):
        assert queue.release(claimed(queue, "a"), how, "why")
        assert renewed()


def test_what_is_due_later_lives_so_much_longer(queue: RedisCampaignStore, server: Server) -> None:
    queue.begin(RUN)
    assert queue.steer("sale", due_us=time.time_ns() // 1000 + 100 * DAY_US)
    put(queue, 0, 1, 2)
    assert queue.begin(replace(RUN, facts=replace(FACTS, campaign="other")))
    assert server.command("PTTL", "capline:campaigns") > 131 * 86_400_000, "the list outlives each of them"
    assert all(server.command("PTTL", PREFIX + key) > 129 * 86_400_000 for key in ("run", "waiting", "steps"))


def test_the_name_of_a_paused_one_goes_after_it(queue: RedisCampaignStore, server: Server) -> None:
    filled(queue)
    assert queue.steer("sale", "pause")
    lives_ms = server.command("PTTL", PREFIX + "run")
    comes_up_ms = float(server.command("ZSCORE", "capline:campaigns", "sale")) / 1000 - time.time() * 1000
    assert lives_ms < comes_up_ms < server.command("PTTL", "capline:campaigns")


def test_when_it_is_finished_everything_expires(queue: RedisCampaignStore, server: Server) -> None:
    filled(queue)
    for _ in range(3):
        assert finish(queue, claimed(queue, "a"))
        assert all(server.command("PTTL", key) > 29 * 86_400_000 for key in server.command("KEYS", "*"))
    assert queue.state("sale").finished
    assert server.command("EXISTS", PREFIX + "waiting", PREFIX + "held", "capline:{campaign:}due") == 0


def test_the_name_of_a_run_that_expired_is_forgotten(queue: RedisCampaignStore, server: Server) -> None:
    filled(queue)
    server.command("DEL", PREFIX + "run")
    assert queue.claim("sale", "a", 60) == Over()
    assert list(queue.ages_s()) == []
    with pytest.raises(CampaignError, match="no run of a campaign 'sale'"):
        QueueStatus(queue, "sale")
    assert queue.begin(RUN)
    assert queue.state("sale").queued == 0
    assert queue.state("sale").waiting == 0


def test_a_look_costs_the_same_beside_hundreds_of_pending_campaigns(queue: RedisCampaignStore, server: Server) -> None:
    def commands() -> int:
        server.command("CONFIG", "RESETSTAT")
        assert queue.look(1).campaigns == ["sale"]
        found = re.search(r"cmdstat_zrange:calls=(\d+)", server.command("INFO", "commandstats").decode())
        assert found is not None
        return int(found[1])

    filled(queue)
    alone = commands()
    for number in range(200):
        run = replace(RUN, facts=replace(FACTS, campaign=f"pending-{number}"), priority=(50, 90)[number % 2], batches=1)
        queue.begin(run)
        queue.steer(run.facts.campaign, due_us=time.time_ns() // 1000 + DAY_US)
        fill(queue, run, [(0, 3, part(0).pack(), 0, None)])
    assert commands() <= alone + 3, "three more for one more priority"


def test_a_call_is_made_again_until_the_server_is_back() -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            stopped.start()
        time.sleep(0.05)

    with single("redis") as stopped, StoreServer(stopped.url, pause=pause) as opened:
        assert list(RedisCampaignStore(opened).ages_s()) == []
        stopped.kill()
        assert list(RedisCampaignStore(opened).ages_s()) == []
    assert all(0 < seconds <= 1 for seconds in pauses)


def test_a_stop_ends_the_waiting() -> None:
    stop = Stop()
    try:
        with single("redis") as gone, StoreServer(gone.url, pause=stop.wait) as opened:
            gone.kill()
            stop.ask(signal.SIGTERM)
            with pytest.raises(CampaignStopped):
                RedisCampaignStore(opened).ages_s()
    finally:
        stop.close()


def test_a_full_server_is_reported_and_what_it_holds_is_safe(queue: RedisCampaignStore, server: Server) -> None:
    filled(queue)
    batch = claimed(queue, "a")
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(CampaignError, match=r"OOM|memory.*what it holds is safe: fix it and run the same command"):
            queue.record(batch, rows_of(batch), decided=True)
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert claimed(queue, "a").decided is None
    assert finish(queue, batch)
