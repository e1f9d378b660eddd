"""The queue's verbs on real servers: whose a batch is, what may be asked twice, what is refused."""

import signal
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.kit.campaign import Far, Site, with_sender
from tests.kit.servers import KINDS, Server, single

from capline.campaign.breaker import Breaker
from capline.campaign.deliver import Delivery
from capline.campaign.ledger.inputs import Input
from capline.campaign.ledger.ledger import RunFacts
from capline.campaign.ledger.rows import DELIVERED, FAILED, PENDING, REFUNDED, BatchRows
from capline.campaign.part import Part
from capline.campaign.queue.queue import MOST_CLAIMS, Queue
from capline.campaign.queue.records import Claimed, DeadLetter, Over, QueuedRun, Waiting
from capline.campaign.queue.server import QueueServer
from capline.campaign.queue.status import QueueStatus
from capline.campaign.queue.worker import _Lost, _Paused, _QueueRecord  # pyright: ignore[reportPrivateUsage] - what a worker's batch meets
from capline.campaign.senders.protocol import TRANSIENT, RunInfo
from capline.campaign.stop import CampaignStopped, Stop
from capline.model.errors import CampaignError

FACTS = RunFacts("sale", "promo", None, 1, 9, ((None, 9),), 1_000_000, "0123456789abcdef")
RUN = QueuedRun(FACTS, (Input("cost", "aa", "1"),), "campaign: sale\n", "/sale.yaml", "", b"policies: {}", (), (), 3)
DAY_US = 86_400_000_000
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
def queue(server: Server) -> Generator[Queue]:
    with QueueServer(server.url, patience_s=0.0) as opened:
        yield Queue(opened)


def part(number: int) -> Part:
    return Part(number, np.arange(3 * number, 3 * number + 3, dtype=np.uint32), np.zeros(3, np.uint16), {})


def put(queue: Queue, *numbers: int) -> int:
    return [0, *queue.put(RUN, ((number, 3, part(number).pack()) for number in numbers))][-1]


def filled(queue: Queue) -> None:
    assert queue.begin(RUN)
    assert put(queue, 0, 1, 2) == 3


def claimed(queue: Queue, worker: str, takeover_s: float = 60) -> Claimed:
    found = queue.claim("sale", worker, takeover_s)
    assert isinstance(found, Claimed), found
    return found


def rows_of(batch: Claimed, state: int = PENDING) -> BatchRows:
    ids = part(batch.number).ids
    none = np.full(3, -1, np.int64)
    small = np.zeros(3, np.uint8)
    states = np.full(3, state, np.uint8)
    return BatchRows(
        batch.number,
        5,
        ("1/day",),
        ids,
        np.zeros(3, np.uint16),
        np.zeros(3, np.int16),
        none,
        none,
        states,
        small,
        small,
    )


def finish(queue: Queue, batch: Claimed, worker: str) -> bool:
    return queue.record(batch, worker, rows_of(batch, DELIVERED), decided=True)


# ---- putting


def test_a_run_is_begun_once_and_read_as_it_was_written(queue: Queue) -> None:
    assert queue.find("sale") is None
    assert queue.begin(RUN)
    assert not queue.begin(replace(RUN, facts=replace(FACTS, run_id="another", cost=2)))
    assert queue.find("sale") == RUN
    assert queue.open_campaigns() == ["sale"]


def test_a_batch_is_put_once_and_in_order(queue: Queue, server: Server) -> None:
    queue.begin(RUN)
    assert put(queue, 0, 1) == 2
    assert put(queue, 0, 1) == 2
    assert put(queue, 2, 1, 0) == 3
    assert [entry for entry, _ in server.command("XRANGE", PREFIX + "batches", "-", "+")] == [b"1-0", b"1-1", b"1-2"]


def test_nothing_is_put_to_a_run_that_is_gone_or_another(queue: Queue, server: Server) -> None:
    with pytest.raises(CampaignError, match="the run of 'sale' is gone; enqueue it again"):
        put(queue, 0)
    queue.begin(replace(RUN, facts=replace(FACTS, run_id="another")))
    with pytest.raises(CampaignError, match="is gone"):
        put(queue, 0)
    assert server.command("XLEN", PREFIX + "batches") == 0


def test_what_another_version_queued_is_left_alone(queue: Queue, server: Server) -> None:
    queue.begin(RUN)
    server.command("HSET", PREFIX + "run", "facts", "{}")
    with pytest.raises(CampaignError, match="is damaged; give the campaign another name"):
        queue.find("sale")
    server.command("HSET", PREFIX + "run", "version", "1")
    with pytest.raises(CampaignError, match="was queued by another version of capline"):
        queue.find("sale")


# ---- whose a batch is


def test_each_batch_is_given_to_one_and_the_same_one_again(queue: Queue) -> None:
    filled(queue)
    batches = [claimed(queue, worker) for worker in ("a", "b", "a", "c")]
    assert [batch.number for batch in batches] == [0, 1, 0, 2]
    assert batches[2] == batches[0]
    assert queue.claim("sale", "d", 60) == Waiting(3)
    found = batches[3]
    assert Part.unpack(found.number, found.rows, found.data, (), 1).ids.tolist() == [6, 7, 8]
    assert found.run_id == FACTS.run_id


def test_a_silent_worker_loses_its_batch_and_writes_nothing_any_more(queue: Queue, server: Server) -> None:
    filled(queue)
    late = claimed(queue, "late")
    assert queue.record(late, "late", rows_of(late), decided=True)
    new = claimed(queue, "new", takeover_s=0)
    assert (new.number, new.entry) == (late.number, late.entry)
    steps = new.steps()
    assert steps is not None
    assert steps.state.tolist() == [PENDING] * 3
    before = server.command("HGETALL", PREFIX + "steps")
    assert not queue.renew(late, "late")
    assert not queue.record(late, "late", rows_of(late, FAILED), decided=False)
    assert not finish(queue, late, "late")
    assert not any(queue.release(late, "late", how, "x") for how in ("give_back", "fail", "set_aside"))
    assert server.command("HGETALL", PREFIX + "steps") == before
    assert queue.state("sale").aside == {}
    assert queue.renew(new, "new")
    assert finish(queue, new, "new")
    assert not finish(queue, late, "late")
    assert (queue.state("sale").settled, queue.state("sale").done) == (1, 3)


def test_a_sign_of_life_keeps_a_batch(queue: Queue) -> None:
    filled(queue)
    batches = [claimed(queue, worker) for worker in ("a", "b", "c")]
    for _ in range(3):
        time.sleep(0.4)
        assert queue.renew(batches[0], "a")
        assert queue.record(batches[1], "b", rows_of(batches[1]), decided=True)
    assert [each.takes for each in queue.state("sale").in_work] == [1, 1, 1]
    assert claimed(queue, "d", takeover_s=1).number == 2
    assert isinstance(queue.claim("sale", "e", 1), Waiting)


def test_a_batch_that_is_given_back_goes_to_the_next_at_once_and_is_not_counted(queue: Queue) -> None:
    filled(queue)
    for _ in range(2 * MOST_CLAIMS):
        assert queue.release(claimed(queue, "a"), "a", "give_back")
    batch = claimed(queue, "b")
    assert batch.number == 0
    assert [(each.worker, each.takes) for each in queue.state("sale").in_work] == [("b", 1)]


def test_a_batch_that_failed_waits_for_its_lease(queue: Queue) -> None:
    filled(queue)
    assert queue.release(claimed(queue, "a"), "a", "fail", "disk full")
    assert [claimed(queue, worker).number for worker in ("a", "b")] == [1, 2]
    again = claimed(queue, "c", takeover_s=0)
    assert again.number == 0
    assert [(each.takes, each.error) for each in queue.state("sale").in_work if each.batch == 0] == [(2, "disk full")]


def test_a_batch_that_ends_whoever_takes_it_is_set_aside(queue: Queue) -> None:
    filled(queue)
    queue.release(claimed(queue, "first"), "first", "fail", "disk full")
    assert [claimed(queue, worker).number for worker in ("x", "y")] == [1, 2]
    for worker in range(1, MOST_CLAIMS):
        assert claimed(queue, str(worker), takeover_s=0).number in (0, 1, 2)
    found = [queue.claim("sale", f"after-{count}", 0) for count in range(3 * MOST_CLAIMS)]
    aside = {each.number: each.why for each in found if isinstance(each, DeadLetter)}
    assert aside[0] == f"claimed {MOST_CLAIMS} times and never settled; last error: disk full"
    assert aside == queue.state("sale").aside
    assert put(queue, *aside) == 3
    assert queue.state("sale").aside == {}
    assert {claimed(queue, f"again-{count}").number for count in range(len(aside))} == set(aside)


def test_an_entry_that_somebody_removed_is_reported(queue: Queue, server: Server) -> None:
    filled(queue)
    batch = claimed(queue, "a")
    server.command("XDEL", PREFIX + "batches", batch.entry)
    assert queue.claim("sale", "b", 0) == DeadLetter(0, "its entry is gone from the stream")
    assert put(queue, 0) == 3
    assert claimed(queue, "b").number == 1


def test_a_batch_that_was_lost_between_two_tries_is_not_handed_over_again(
    queue: Queue, server: Server, tmp_path: Path
) -> None:
    filled(queue)
    site = Site(tmp_path)
    far = Far(lambda _id, _tries: TRANSIENT)
    job = with_sender(site.job(segments=None), far)
    batch = claimed(queue, "late")
    stop = Stop()
    info = RunInfo("sale", FACTS.run_id, None, ())
    steps = _QueueRecord(queue, batch, "late", stop)
    try:
        with job.open_limiter("memory://") as limiter:
            delivery = Delivery(
                job.file,
                job.policy,
                (None,),
                (),
                limiter,
                info,
                steps,
                Breaker(0),
                lambda _s: claimed(queue, "new", takeover_s=0),
            )
            with pytest.raises(_Lost):
                delivery.deliver(part(0), None)
    finally:
        stop.close()
    assert len(far.hand_overs) == 1


def test_every_verb_renews_what_expires(queue: Queue, server: Server) -> None:
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
    assert queue.renew(batch, "a")
    assert renewed()
    assert queue.record(batch, "a", rows_of(batch), decided=True)
    assert renewed()
    for how in ("give_back", "fail", "set_aside"):
        assert queue.release(claimed(queue, "a"), "a", how, "why")
        assert renewed()
    server.command("DEL", PREFIX + "aside")
    gone = claimed(queue, "b")
    assert renewed()
    server.command("XDEL", PREFIX + "batches", gone.entry)
    assert isinstance(queue.claim("sale", "b", 0), DeadLetter)
    assert server.command("PTTL", PREFIX + "aside") > 29 * 86_400_000


# ---- due later, paused


def test_a_campaign_that_is_due_later_is_not_there_for_workers_until_then(queue: Queue, server: Server) -> None:
    now_us = time.time_ns() // 1000
    later_us = now_us + 100 * DAY_US
    queue.begin(RUN)
    assert queue.steer("sale", due_us=later_us)
    put(queue, 0, 1, 2)
    assert queue.begin(replace(RUN, facts=replace(FACTS, campaign="other")))
    assert server.command("PTTL", "capline:campaigns") > 131 * 86_400_000, "the list outlives each of them"
    assert queue.open_campaigns() == ["other"]
    assert QueueStatus(queue, "sale").report().state == "scheduled"
    assert server.command("PTTL", PREFIX + "batches") > 129 * 86_400_000, "it outlives its wait"
    assert queue.release(claimed(queue, "a"), "a", "give_back")
    assert server.command("PTTL", PREFIX + "run") > 129 * 86_400_000
    assert queue.steer("sale", due_us=now_us - DAY_US)
    assert queue.open_campaigns() == ["sale", "other"], "that which was due first"
    assert queue.ages_s()["sale"] > 86_000
    assert queue.steer("sale", due_us=0)
    assert queue.ages_s()["sale"] < 3600, "due since it was enqueued"


def test_a_paused_campaign_keeps_its_due_time_and_its_batches(queue: Queue, server: Server) -> None:
    filled(queue)
    late_us = time.time_ns() // 1000 - DAY_US
    batch = claimed(queue, "a")
    assert queue.steer("sale", paused=True)
    assert queue.open_campaigns() == []
    assert queue.claim("sale", "b", 60) == Waiting(1), "it was on the list a moment ago"
    lives_ms = server.command("PTTL", PREFIX + "run")
    comes_up_ms = float(server.command("ZSCORE", "capline:campaigns", "sale")) / 1000 - time.time() * 1000
    assert lives_ms < comes_up_ms < server.command("PTTL", "capline:campaigns"), "its name goes after it"
    assert QueueStatus(queue, "sale").report().state == "paused"
    assert queue.steer("sale", due_us=late_us), "enqueued again"
    assert queue.open_campaigns() == []
    with closing(Stop()) as stop:
        steps = _QueueRecord(queue, batch, "a", stop)
        with pytest.raises(_Paused):
            steps.check()
        assert queue.steer("sale", paused=False)
        steps.check()
    assert queue.ages_s()["sale"] > 86_000
    for _ in range(3):
        finish(queue, claimed(queue, "a"), "a")
    assert not queue.steer("sale", paused=True), "it is finished"
    assert queue.open_campaigns() == []
    assert not queue.steer("none", paused=True)


# ---- the end


def test_the_last_batch_ends_the_run_once_and_everything_expires(queue: Queue, server: Server) -> None:
    filled(queue)
    for _ in range(3):
        batch = claimed(queue, "a")
        assert finish(queue, batch, "a")
        assert finish(queue, batch, "a"), "the same call again, after a reply that was lost"
        assert all(server.command("PTTL", key) > 29 * 86_400_000 for key in server.command("KEYS", "*"))
    state = queue.state("sale")
    assert (state.settled, state.done, state.finished, state.waiting) == (3, 9, True, 0)
    assert queue.claim("sale", "a", 60) == Over()
    assert queue.open_campaigns() == []
    assert server.command("XLEN", PREFIX + "batches") == 0
    report = QueueStatus(queue, "sale").report()
    assert (report.state, report.total.sent) == ("finished", 9)


def test_the_name_of_a_run_that_expired_is_forgotten(queue: Queue, server: Server) -> None:
    filled(queue)
    server.command("DEL", PREFIX + "run")
    assert queue.claim("sale", "a", 60) == Over()
    assert queue.open_campaigns() == []
    with pytest.raises(CampaignError, match="no run of a campaign 'sale'"):
        QueueStatus(queue, "sale")
    assert queue.begin(RUN)
    assert queue.state("sale").queued == 0
    assert server.command("XLEN", PREFIX + "batches") == 0


def test_a_status_that_is_looked_at_again_is_the_same_as_a_new_one(queue: Queue) -> None:
    filled(queue)
    watched = QueueStatus(queue, "sale")
    for state in (PENDING, DELIVERED, REFUNDED):
        batch = claimed(queue, "a")
        queue.record(batch, "a", rows_of(batch, state), decided=True)
        if state == PENDING:
            queue.release(batch, "a", "fail", "later")
        assert watched.report().total == QueueStatus(queue, "sale").report().total
    assert (watched.report().total.sent, watched.report().total.failed, watched.report().total.pending) == (3, 3, 3)
    batch = claimed(queue, "b", takeover_s=0)
    queue.record(batch, "b", rows_of(batch, DELIVERED), decided=False)
    assert watched.report().total == QueueStatus(queue, "sale").report().total
    assert watched.report().state == "finished"


# ---- a server that does not answer


def test_a_call_is_made_again_until_the_server_is_back() -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            stopped.start()
        time.sleep(0.05)

    with single("redis") as stopped, QueueServer(stopped.url, pause=pause) as opened:
        assert Queue(opened).open_campaigns() == []
        stopped.kill()
        assert Queue(opened).open_campaigns() == []
    assert pauses[:3] == [0.05, 0.1, 0.2]


def test_a_stop_ends_the_waiting() -> None:
    stop = Stop()
    try:
        with single("redis") as gone, QueueServer(gone.url, pause=stop.wait) as opened:
            gone.kill()
            stop.ask(signal.SIGTERM)
            with pytest.raises(CampaignStopped):
                Queue(opened).open_campaigns()
    finally:
        stop.close()


def test_a_full_server_is_reported_and_what_it_holds_is_safe(queue: Queue, server: Server) -> None:
    filled(queue)
    batch = claimed(queue, "a")
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(CampaignError, match=r"OOM|memory.*what it holds is safe: fix it and run the same command"):
            queue.record(batch, "a", rows_of(batch), decided=True)
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert claimed(queue, "a").decided is None
    assert finish(queue, batch, "a")
