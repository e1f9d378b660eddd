"""The verbs of a campaign store, on each kind: whose a batch is, what may be asked twice, what is refused."""

import math
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.campaign_store import DAY_US, FACTS, RUN, claimed, fill, filled, finish, part, put, rows_of
from tests.kit.server import tries
from tests.kit.servers import KINDS, Server, cluster, sentinel, single

from capline.campaign.deliver import Cancelled, Paused, StepRecorder
from capline.campaign.erase import ErasedFrom, erase
from capline.campaign.part import Part
from capline.campaign.queue.status import QueueStatus
from capline.campaign.stop import Stop
from capline.campaign.store.open import open_store
from capline.campaign.store.protocol import MOST_CLAIMS, Batch, CampaignStore, chunks
from capline.campaign.store.records import PREPARE, Claimed, DeadLetter, Over, Rate, RetryBatch, Waiting
from capline.campaign.store.rows import (
    DELIVERED,
    FAILED,
    NOT_KNOWN,
    PENDING,
    REFUNDED,
    RETRIED,
    UNSURE,
    BatchRows,
)
from capline.campaign.store.server import Server as StoreServer
from capline.model.errors import CampaignError

STORE_GROUPS = ("redis+cluster", "valkey+sentinel")
REPEATED = "redis+repeated"
"""A server whose first answer to each script is lost, so that the script is sent again."""
NOT_REPEATED = ("ends_whoever_takes_it", "kept_as_long_as_it_says_is_forgotten")
"""A lost answer that a batch was set aside is in the status; a run that is gone at once does not know who ended it."""
ANOTHER = replace(RUN, facts=replace(FACTS, run_id="another", cost=2))


@pytest.fixture(scope="module", params=[*KINDS, "sqlite", *STORE_GROUPS, REPEATED])
def running(request: pytest.FixtureRequest) -> Generator[Any]:
    kind, _, shape = request.param.partition("+")
    if kind == "sqlite":
        yield None
    else:
        with {"cluster": cluster, "sentinel": sentinel}.get(shape, single)(kind) as server:
            yield server


@pytest.fixture
def url(running: Any, tmp_path: Path) -> str:
    if running is None:
        return f"sqlite://{tmp_path}/campaigns.sqlite"
    for server in [running] if isinstance(running, Server) else getattr(running, "primaries", None) or [running.master]:
        server.command("FLUSHALL")
    return running.url


@pytest.fixture
def queue(url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[CampaignStore]:
    if REPEATED in request.node.name and not any(each in request.node.name for each in NOT_REPEATED):
        run = StoreServer.run
        monkeypatch.setattr(StoreServer, "run", lambda *call: [run(*call), run(*call)][1])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    store = open_store(url, make=True, patience_s=0.0)
    yield store
    store.close()


def test_a_run_is_begun_once_and_read_as_it_was_written(queue: CampaignStore) -> None:
    assert queue.find("sale") is None
    assert queue.begin(RUN)
    assert queue.begin(RUN), "the same run"
    assert not queue.begin(replace(ANOTHER, priority=60))
    assert queue.find("sale") == RUN
    assert list(queue.ages_s()) == ["sale"]


def test_new_files_replace_what_they_say_and_nothing_that_was_prepared(queue: CampaignStore) -> None:
    filled(queue)
    queue.put_files(replace(RUN, batches=0, columns=("name",), inputs=(), policies=b"policies: {a: {}}", priority=60))
    assert queue.find("sale") == replace(RUN, policies=b"policies: {a: {}}", priority=60)


def test_campaigns_are_listed_by_name_page_by_page(queue: CampaignStore) -> None:
    names = ["b.1", "B", "a", "b", "b-1"]
    assert queue.page("", 10) == []
    for name in names:
        queue.begin(replace(RUN, facts=replace(FACTS, campaign=name)))
    queue.steer("a", "cancel")
    assert queue.page("", 10) == sorted(names)
    pages = [queue.page("", 2)]
    while pages[-1]:
        pages.append(queue.page(pages[-1][-1], 2))
    assert pages == [["B", "a"], ["b", "b-1"], ["b.1"], []]
    assert queue.page("aa", 1) == ["b"], "after a name that is not there"


def test_each_batch_is_given_to_one_and_the_same_one_again(queue: CampaignStore) -> None:
    filled(queue)
    batches = [claimed(queue, worker) for worker in ("a", "b", "a", "c")]
    assert [batch.number for batch in batches] == [0, 1, 0, 2]
    assert batches[2] == batches[0]
    assert queue.claim("sale", "d", 60) == Waiting(3)
    found = batches[3]
    assert Part.unpack(found.number, found.rows, found.data, (), 1).ids.tolist() == [6, 7, 8]
    assert found.run_id == FACTS.run_id


def test_a_sign_of_life_keeps_a_batch(queue: CampaignStore) -> None:
    filled(queue)
    batches = [claimed(queue, worker, lease_s=1) for worker in ("a", "b", "c")]
    for _ in range(3):
        time.sleep(0.4)
        assert queue.renew(batches[0])
        assert queue.record(batches[1], rows_of(batches[1]), decided=True)
    assert [each.takes for each in queue.state("sale").in_work] == [1, 1, 1]
    assert claimed(queue, "d").number == 2
    assert isinstance(queue.claim("sale", "e", 60), Waiting)


def test_a_batch_that_is_given_back_goes_to_the_next_at_once_and_is_not_counted(queue: CampaignStore) -> None:
    filled(queue)
    for _ in range(2 * MOST_CLAIMS):
        assert queue.release(claimed(queue, "a"), "give_back")
    batch = claimed(queue, "b")
    assert batch.number == 0
    assert [(each.worker, each.takes) for each in queue.state("sale").in_work] == [("b", 1)]


def test_a_batch_that_failed_is_due_later(queue: CampaignStore) -> None:
    filled(queue)
    assert queue.release(claimed(queue, "a"), "fail", "disk full", wait_s=60)
    assert [claimed(queue, worker).number for worker in ("a", "b")] == [1, 2]
    assert queue.claim("sale", "c", 60) == Waiting(2)
    assert 0 < queue.look(1).next_s <= 60
    assert queue.release(claimed(queue, "b"), "fail", "disk full", wait_s=1e-6)
    assert claimed(queue, "c").number == 2
    assert queue.release(claimed(queue, "a"), "give_back")
    assert queue.put_again(RUN, []) == 0
    again = claimed(queue, "a")
    assert again.number == 1
    assert queue.release(again, "fail", "disk full")
    again = claimed(queue, "d")
    assert [(each.takes, each.error) for each in queue.state("sale").in_work if each.batch == 1] == [(2, "disk full")]


def test_a_batch_that_ends_whoever_takes_it_is_set_aside(queue: CampaignStore) -> None:
    filled(queue)
    queue.release(claimed(queue, "first"), "fail", "disk full")
    found = [queue.claim("sale", str(count), 0) for count in range(3 * MOST_CLAIMS + 3)]
    aside = {each.number: each.why for each in found if isinstance(each, DeadLetter)}
    why = f"claimed {MOST_CLAIMS} times and never settled"
    assert aside == {0: f"{why}; last error: disk full", 1: why, 2: why} == queue.state("sale").aside
    assert queue.look(1).campaigns == []
    assert put(queue, *aside) == 3
    assert queue.state("sale").aside == {}
    assert {claimed(queue, f"again-{count}").number for count in range(len(aside))} == set(aside)


def test_a_status_that_is_looked_at_again_is_the_same_as_a_new_one(queue: CampaignStore) -> None:
    filled(queue)
    watched = QueueStatus(queue, "sale")
    for state in (DELIVERED, REFUNDED, PENDING):
        batch = claimed(queue, "a")
        queue.record(batch, rows_of(batch, state), decided=True)
        if state == PENDING:
            queue.release(batch, "fail", "later")
        assert watched.report().total == QueueStatus(queue, "sale").report().total
    assert (watched.report().total.sent, watched.report().total.failed, watched.report().total.pending) == (3, 3, 3)
    batch = claimed(queue, "b")
    queue.record(batch, rows_of(batch, DELIVERED), decided=False)
    assert watched.report().total == QueueStatus(queue, "sale").report().total
    assert watched.report().state == "finished"


def test_a_silent_worker_loses_its_batch_and_writes_nothing_any_more(queue: CampaignStore) -> None:
    filled(queue)
    late = claimed(queue, "late", lease_s=0)
    assert queue.record(late, rows_of(late), decided=True)
    new = claimed(queue, "new")
    assert (new.number, new.fence > late.fence) == (late.number, True)
    steps = new.steps()
    assert steps is not None
    assert steps.state.tolist() == [PENDING] * 3
    assert not queue.renew(late)
    assert not queue.record(late, rows_of(late, FAILED), decided=False)
    assert not finish(queue, late)
    assert not any(queue.release(late, how, "x") for how in ("give_back", "fail", "set_aside"))
    assert [rows.state.tolist() for rows in queue.steps("sale", range(3))] == [[PENDING] * 3]
    assert queue.state("sale").aside == {}
    assert queue.renew(new)
    assert finish(queue, new)
    assert not finish(queue, late)
    assert (queue.state("sale").settled, queue.state("sale").done) == (1, 3)


def test_a_batch_is_put_once_and_in_order(queue: CampaignStore) -> None:
    queue.begin(RUN)
    assert put(queue, 0, 1) == 2
    assert put(queue, 0, 1) == 2
    assert put(queue, 2, 1, 0) == 3
    assert [claimed(queue, worker).number for worker in "abc"] == [0, 1, 2]
    assert queue.claim("sale", "d", 60) == Waiting(3)


def test_nothing_is_put_to_a_run_that_is_gone_or_another(queue: CampaignStore) -> None:
    with pytest.raises(CampaignError, match="the run of 'sale' is gone; enqueue it again"):
        put(queue, 0)
    queue.begin(replace(RUN, facts=replace(FACTS, run_id="another")))
    with pytest.raises(CampaignError, match="is gone"):
        put(queue, 0)
    assert queue.state("sale").queued == 0


def test_a_campaign_that_is_due_later_is_not_there_until_then(queue: CampaignStore) -> None:
    now_us = time.time_ns() // 1000
    filled(queue)
    assert queue.steer("sale", due_us=now_us + 100 * DAY_US)
    assert queue.begin(replace(RUN, facts=replace(FACTS, campaign="other")))
    assert list(queue.ages_s()) == ["other"]
    assert queue.claim("sale", "a", 60) == Waiting(0)
    assert QueueStatus(queue, "sale").report().state == "scheduled"
    assert queue.steer("sale", due_us=now_us - DAY_US)
    assert list(queue.ages_s()) == ["sale", "other"], "that which was due first"
    assert next(iter(queue.ages_s(most=1))) == "sale"
    assert queue.ages_s()["sale"] > 86_000
    assert queue.steer("sale", due_us=0)
    assert queue.ages_s()["sale"] < 3600, "due since it was enqueued"


def test_a_batch_has_a_due_time_of_its_own(queue: CampaignStore) -> None:
    now_us = time.time_ns() // 1000
    queue.begin(RUN)
    dues_us = [now_us + DAY_US, now_us - 5_000_000, now_us - 9_000_000]
    batches = [(number, 3, part(number).pack(), due_us, None) for number, due_us in enumerate(dues_us)]
    assert fill(queue, RUN, batches) == 3
    assert queue.steer("sale", due_us=now_us + DAY_US // 2)
    assert (queue.look(1).campaigns, queue.claim("sale", "a", 60)) == ([], Waiting(0))
    assert 42_000 < queue.look(1).next_s <= 43_200
    assert queue.steer("sale", due_us=0)
    assert queue.look(1).campaigns == ["sale"]
    assert [claimed(queue, worker).number for worker in "ab"] == [2, 1], "the one that is due longest"
    assert queue.claim("sale", "c", 60) == Waiting(2)
    assert queue.look(1).campaigns == []
    assert 0 < queue.look(1).next_s <= 60, "when the first lease ends"
    for worker in "ab":
        assert finish(queue, claimed(queue, worker))
    assert 86_000 < queue.look(1).next_s <= 86_400
    assert queue.state("sale").waiting == 1


def test_only_what_was_decided_and_waits_is_woken(queue: CampaignStore) -> None:
    filled(queue)
    for wait_s, settles in ((60, False), (0, True)):
        batch = claimed(queue, "a")
        assert queue.record(batch, rows_of(batch, DELIVERED if settles else PENDING), decided=True)
        assert settles or queue.release(batch, "give_back", wait_s=wait_s)
    queue.wake("sale", [0, 1, 2, 7])
    assert [claimed(queue, worker).number for worker in "ab"] == [0, 2]
    queue.wake("sale", [0, 2])
    assert queue.claim("sale", "c", 60) == Waiting(2)
    assert queue.look(1).campaigns == []


def test_a_look_never_takes_a_lease_for_longer_than_it_is(queue: CampaignStore) -> None:
    assert queue.begin(replace(RUN, batches=1))
    assert put(queue, 0) == 1
    for turn in range(25):
        claim = claimed(queue, "a", lease_s=60)
        assert 50 < queue.look(1).next_s <= 60, f"turn {turn}"
        assert queue.release(claim, "give_back")


def test_workers_look_at_the_higher_priority_first_then_at_the_one_due_longest(queue: CampaignStore) -> None:
    now_us = time.time_ns() // 1000
    for age, (name, priority) in enumerate({"a": 50, "b": 50, "late": 100, "low": 0, "high": 99}.items()):
        run = replace(RUN, facts=replace(FACTS, campaign=name), priority=priority, batches=1)
        assert queue.begin(run)
        due_us = now_us + DAY_US if name == "late" else now_us - (1 + age) * 1_000_000
        queue.steer(name, due_us=due_us)
        assert fill(queue, run, [(0, 3, part(0).pack(), 0, None)]) == 1
    assert queue.look(9).campaigns == ["high", "b", "a", "low"]
    assert queue.look(2).campaigns == ["high", "b"]
    assert queue.steer("high", "pause")
    claim = queue.claim("b", "w", 60)
    assert isinstance(claim, Claimed)
    assert queue.look(9).campaigns == ["a", "low"]
    queue.release(claim, "give_back")
    queue.put_files(replace(RUN, facts=replace(FACTS, campaign="low"), priority=70))
    assert queue.look(9).campaigns == ["low", "b", "a"]


def test_a_rate_is_changed_by_who_read_it(queue: CampaignStore) -> None:
    first, second = Rate("9/s", ("5/s",), 7, "ann"), Rate("5/2s", ("5/s", "9/s"), 8, "zoë")
    assert queue.rate("push") is None
    assert queue.keep_rate("push", None, first)
    assert not queue.keep_rate("push", None, second)
    assert (queue.rate("push"), queue.rate("pus")) == (first, None)
    assert queue.keep_rate("push", first, second)
    assert queue.rate("push") == second
    assert queue.keep_rate("push", second, None)
    assert queue.rate("push") is None


def test_a_paused_campaign_keeps_its_due_time_and_its_batches(queue: CampaignStore) -> None:
    filled(queue)
    late_us = time.time_ns() // 1000 - DAY_US
    batch = claimed(queue, "a")
    assert queue.steer("sale", "pause")
    assert list(queue.ages_s()) == []
    assert queue.claim("sale", "b", 60) == Waiting(1), "it was on the list a moment ago"
    assert QueueStatus(queue, "sale").report().state == "paused"
    assert queue.steer("sale", due_us=late_us), "enqueued again"
    assert list(queue.ages_s()) == []
    with closing(Stop()) as stop:
        steps = StepRecorder(queue, batch, stop)
        with pytest.raises(Paused):
            steps.check()
        assert queue.steer("sale", "resume")
        steps.check()
    assert queue.ages_s()["sale"] > 86_000
    for _ in range(3):
        finish(queue, claimed(queue, "a"))
    assert not queue.steer("sale", "pause"), "it is finished"
    assert list(queue.ages_s()) == []
    assert not queue.steer("none", "pause")


def test_each_change_is_a_version_until_it_is_due_and_then_its_end_alone(queue: CampaignStore) -> None:
    filled(queue)
    now_us = time.time_ns() // 1000
    assert queue.steer("sale", due_us=now_us + DAY_US // 2, until_us=now_us + DAY_US), "its file says so"
    assert (queue.state("sale").until_us, queue.state("sale").changes) == (now_us + DAY_US, 0)
    assert queue.steer("sale", due_us=now_us - 5_000_000, by="ann")
    assert queue.steer("sale", "pause", by="bob")
    assert queue.steer("sale", "resume", by="ann")
    before = queue.state("sale")
    assert (before.changes, before.changed_by, before.until_us) == (3, "ann", now_us + DAY_US)
    assert abs(before.changed_us - now_us) < DAY_US
    assert not queue.steer("sale", due_us=now_us + DAY_US, until_us=5, by="bob"), "it was due"
    assert queue.state("sale") == before
    assert queue.steer("sale", until_us=0, by="bob")
    assert (queue.state("sale").until_us, queue.state("sale").changes, queue.halt("sale")) == (0, 4, "")
    assert queue.steer("sale", until_us=now_us - 1, by="bob")
    assert queue.halt("sale") == "cancel", "it is over"
    assert queue.state("sale").cancelled
    assert not queue.steer("sale", until_us=0, by="bob")


def test_the_last_batch_ends_the_run_once(queue: CampaignStore) -> None:
    filled(queue)
    for _ in range(3):
        batch = claimed(queue, "a")
        assert finish(queue, batch)
        assert finish(queue, batch), "the same call again, after a reply that was lost"
    state = queue.state("sale")
    assert (state.settled, state.done, state.finished, state.waiting) == (3, 9, True, 0)
    assert queue.claim("sale", "a", 60) == Over()
    assert list(queue.ages_s()) == []
    report = QueueStatus(queue, "sale").report()
    assert (report.state, report.total.sent) == ("finished", 9)
    assert queue.claim("none", "a", 60) == Over()


def test_the_time_of_work_is_without_what_lies_between(queue: CampaignStore) -> None:
    began = time.monotonic()
    filled(queue)
    for _ in range(3):
        batch = claimed(queue, "a")
        time.sleep(0.1)  # it is sent
        assert finish(queue, batch)
        time.sleep(0.2)  # nobody works
    passed_s = time.monotonic() - began
    assert 0.3 <= queue.state("sale").elapsed_us / 1e6 <= passed_s - 0.6


def test_what_is_not_finished_stays_and_what_is_as_long_as_it_says(queue: CampaignStore) -> None:
    assert queue.begin(replace(RUN, keep_us=1))
    put(queue, 0, 1, 2)
    for _ in range(2):
        assert finish(queue, claimed(queue, "a")), "what is not finished stays"
    queue.put_files(replace(RUN, keep_us=60_000_000))
    assert finish(queue, claimed(queue, "a"))
    assert queue.find("sale") is not None


def test_what_was_kept_as_long_as_it_says_is_forgotten(queue: CampaignStore) -> None:
    assert queue.begin(replace(RUN, keep_us=1))
    put(queue, 0, 1, 2)
    for _ in range(3):
        assert finish(queue, claimed(queue, "a"))
    for _ in tries():
        queue.look(1)
        if queue.find("sale") is None:
            break
    assert (queue.page("", 9), [*queue.steps("sale", range(3))]) == ([], [])


# ---- erase


def test_a_subject_is_erased_from_what_waits_what_was_decided_and_what_was_settled(queue: CampaignStore) -> None:
    filled(queue)
    assert finish(queue, claimed(queue, "a"))
    second = claimed(queue, "a")
    assert queue.record(second, rows_of(second), decided=True)
    assert erase(queue, 4) == [ErasedFrom("sale", 0, 0, 1)], "a worker has it"
    assert queue.release(second, "give_back")
    before = queue.state("sale")
    assert [erase(queue, subject) for subject in (1, 4, 7, 99, "1")] == [
        [ErasedFrom("sale", 0, 1, 0)],
        [ErasedFrom("sale", 0, 1, 0)],
        [ErasedFrom("sale", 1, 0, 0)],
        [],
        [],
    ]
    assert queue.state("sale") == replace(before, done=2)
    assert QueueStatus(queue, "sale").report().total.audience == 6
    assert [(rows.number, rows.ids.tolist()) for rows in queue.steps("sale", range(3))] == [(0, [0, 2]), (1, [3, 5])]
    again, third = claimed(queue, "a"), claimed(queue, "b")
    assert again.number == 1
    assert again.fence > second.fence
    for batch, ids in ((again, [3, 5]), (third, [6, 8])):
        assert (batch.rows, Part.claimed(batch, RUN).ids.tolist()) == (2, ids)
    assert not queue.rewrite(third, replace(third, rows=0), None, 0, done=False)


def test_a_batch_of_which_all_are_erased_is_settled_as_any(queue: CampaignStore) -> None:
    filled(queue)
    for subject in range(3):
        assert erase(queue, subject) == [ErasedFrom("sale", 1, 0, 0)]
    batch = claimed(queue, "a")
    assert (batch.number, len(Part.claimed(batch, RUN))) == (0, 0)
    assert queue.record(batch, rows_of(batch, DELIVERED, count=0), decided=True)
    for _ in range(2):
        assert finish(queue, claimed(queue, "a"))
    state, report = queue.state("sale"), QueueStatus(queue, "sale").report()
    assert (state.finished, state.done, report.total.audience, report.total.sent) == (True, 6, 6, 6)


def test_who_is_retried_is_erased_from_both_batches(queue: CampaignStore) -> None:
    first, *_ = ended(queue)
    assert queue.put_again(RUN, [further(3, first)]) == 1
    done = queue.state("sale").done
    assert erase(queue, 1) == [ErasedFrom("sale", 1, 1, 0)]
    assert (queue.state("sale").done, QueueStatus(queue, "sale").report().total.audience) == (done, 8)


# ---- what failed, again


def ended(queue: CampaignStore) -> list[BatchRows]:
    """All three batches settled; one subject of each has failed."""
    filled(queue)
    for _ in range(3):
        batch = claimed(queue, "a")
        rows = rows_of(batch, DELIVERED)
        rows.state[1] = REFUNDED
        assert queue.record(batch, rows, decided=True)
    assert queue.state("sale").finished
    return list(queue.steps("sale", range(3)))


def further(number: int, *sources: BatchRows) -> RetryBatch:
    """A further batch of those that failed in these."""
    ids = np.concatenate([rows.ids[rows.in_state(REFUNDED)] for rows in sources])
    for rows in sources:
        rows.retry_failed()
    data = Part(number, ids, np.zeros(len(ids), np.uint16), {}).pack()
    return RetryBatch(number, len(ids), data, sources, len(ids))


def test_those_who_failed_make_a_further_batch_in_one_step(queue: CampaignStore) -> None:
    first, second, third = ended(queue)
    again = [further(3, first, second), further(4, third)]
    assert queue.put_again(RUN, again) == 2
    state = queue.state("sale")
    assert (state.batches, state.queued, state.settled, state.done, state.finished) == (5, 5, 3, 6, False)
    assert [rows.in_state(RETRIED).tolist() for rows in queue.steps("sale", range(5))] == [[1]] * 3
    assert list(queue.ages_s()) == ["sale"]
    batches = [claimed(queue, worker) for worker in "ab"]
    assert [Part.unpack(each.number, each.rows, each.data, (), 1).ids.tolist() for each in batches] == [[1, 4], [7]]
    assert batches[0].decided is None
    for batch in batches:
        rows = rows_of(batch, DELIVERED, count=batch.rows)
        assert queue.record(batch, rows, decided=True)
    state = queue.state("sale")
    assert (state.batches, state.settled, state.done, state.finished) == (5, 5, 9, True)
    assert [queue.holding("sale", subject) for subject in (0, 2, 3, 5, 9)] == [[0], [0], [1], [1], [3]]


def test_who_comes_second_with_what_failed_changes_nothing(queue: CampaignStore) -> None:
    mine, theirs = ended(queue), list(queue.steps("sale", range(3)))
    assert queue.put_again(RUN, [further(3, *mine[:2])]) == 1
    before = queue.state("sale")
    other = [replace(further(3, *theirs), rows=9), further(4, theirs[2])]
    assert queue.put_again(RUN, other) < 2
    after = queue.state("sale")
    assert (after.batches, after.done, after.queued) == (before.batches, before.done, before.queued)


def test_a_settled_batch_is_put_back_to_ask_again(queue: CampaignStore) -> None:
    filled(queue)
    for _ in range(3):
        batch = claimed(queue, "a")
        assert queue.record(batch, rows_of(batch, NOT_KNOWN), decided=True)
    rows = next(iter(queue.steps("sale", [1])))
    assert rows.retry_unknown()
    back = RetryBatch(1, 3, part(1).pack(), (rows,), 3)
    watched = QueueStatus(queue, "sale")
    assert watched.report().total.not_known == 9
    assert queue.put_again(RUN, [back]) == 1
    state = queue.state("sale")
    assert (state.settled, state.done, state.finished, state.batches) == (2, 6, False, 3)
    assert watched.report().total.not_known == 6
    batch = claimed(queue, "b")
    assert (batch.number, batch.rows) == (1, 3)
    steps = batch.steps()
    assert steps is not None
    assert steps.in_state(UNSURE).size == 3
    assert queue.record(batch, rows_of(batch, DELIVERED), decided=False)
    assert (queue.state("sale").finished, watched.report().total.sent) == (True, 3)
    assert queue.claim("sale", "c", 60) == Over()


# ---- cancelled


@pytest.mark.parametrize("is_due", [True, False])
def test_a_cancelled_campaign_that_nobody_works_on_is_over_at_once(queue: CampaignStore, *, is_due: bool) -> None:
    filled(queue)
    if not is_due:
        queue.steer("sale", due_us=time.time_ns() // 1000 + DAY_US)
    queue.steer("sale", "pause")
    assert queue.steer("sale", "cancel")
    assert list(queue.ages_s()) == []
    assert queue.claim("sale", "a", 60) == Over()
    assert not queue.steer("sale", "cancel")
    report = QueueStatus(queue, "sale").report()
    assert (report.state, report.total.undecided) == ("cancelled", 9)


def test_of_a_cancelled_campaign_only_what_is_decided_is_claimed(queue: CampaignStore) -> None:
    filled(queue)
    decided, undecided = claimed(queue, "a"), claimed(queue, "b")
    assert queue.record(decided, rows_of(decided), decided=True)
    assert queue.steer("sale", due_us=time.time_ns() // 1000 + DAY_US)
    assert queue.steer("sale", "cancel")
    assert queue.halt("sale") == "cancel"
    assert not any(queue.steer("sale", change) for change in ("pause", "resume", "cancel")), "it cannot go on"
    assert not queue.steer("sale", due_us=time.time_ns() // 1000 + DAY_US)
    with closing(Stop()) as stop, pytest.raises(Cancelled):
        StepRecorder(queue, decided, stop).check()
    assert list(queue.ages_s()) == ["sale"], "for what is decided, though it was due later"
    assert queue.claim("sale", "c", 60) == Waiting(2)
    assert queue.release(decided, "give_back")
    again = claimed(queue, "c")
    assert again.number == 0
    assert queue.claim("sale", "b", 60) == Waiting(1), "its undecided one is gone"
    assert not queue.record(undecided, rows_of(undecided), decided=True)
    rows = rows_of(again, REFUNDED)
    assert queue.record(again, rows, decided=False)
    assert queue.claim("sale", "c", 60) == Over()
    report = QueueStatus(queue, "sale").report()
    assert (report.state, report.total.failed, report.total.undecided) == ("cancelled", 3, 6)


@pytest.mark.parametrize("ends", ["settled", "set aside"])
def test_a_campaign_that_was_cancelled_is_over_with_the_last_batch_in_work(queue: CampaignStore, ends: str) -> None:
    filled(queue)
    held = claimed(queue, "a")
    assert queue.record(held, rows_of(held), decided=True)
    assert queue.steer("sale", "cancel")
    if ends == "settled":
        assert finish(queue, held)
    else:
        assert queue.release(held, "set_aside", "damaged")
    assert queue.state("sale").finished
    assert list(queue.ages_s()) == []


# ---- what is stored in one step


def test_batches_are_stored_in_steps_of_bounded_bytes() -> None:
    sizes = [3 << 20, 3 << 20, 1, 5 << 20, *[1] * 250]
    batches = [(number, 1, bytes(size), 0, None) for number, size in enumerate(sizes)]
    listed = list(chunks(iter(batches)))
    assert [batch for chunk in listed for batch in chunk] == batches
    assert [len(chunk) for chunk in listed] == [2, 2, 100, 100, 50]


def test_a_file_that_is_not_there_is_only_made_to_begin(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/new/campaigns.sqlite"
    with pytest.raises(CampaignError, match="no such file; begin a campaign there with: capline campaign enqueue"):
        open_store(url)
    assert not (tmp_path / "new").exists()
    open_store(url, make=True).close()
    open_store(url).close()
    with pytest.raises(CampaignError, match="names no file"):
        open_store("sqlite://")


# ---- prepare


def batches(*numbers: int) -> list[Batch]:
    return [(number, 3, part(number).pack(), 0, None) for number in numbers]


def test_nothing_can_be_claimed_before_all_is_there_and_a_late_preparer_puts_nothing(queue: CampaignStore) -> None:
    assert queue.begin(replace(RUN, batches=0))
    late = claimed(queue, "a", lease_s=0.001)
    assert (late.number, queue.state("sale").is_whole, queue.state("sale").waiting) == (PREPARE, False, 0)
    queue.describe(late, RUN)
    queue.describe(late, replace(RUN, batches=7))
    assert queue.find("sale") == RUN, "what the audience is was written once"
    assert [*queue.put(RUN, batches(0, 1), late.fence)] == [2]
    time.sleep(0.01)
    second = claimed(queue, "b")
    assert (second.number, second.fence > late.fence) == (PREPARE, True)
    assert [*queue.put(RUN, batches(2), late.fence)] == []
    assert not queue.renew(late)
    assert (queue.look(1).campaigns, queue.claim("sale", "c", 60)) == ([], Waiting(1))
    assert [*queue.put(RUN, batches(0, 1, 2), second.fence)] == [3]
    assert [claimed(queue, worker).number for worker in "bcd"] == [0, 1, 2]
    assert queue.state("sale").is_whole
    assert not queue.renew(second), "it is prepared"


def test_a_batch_is_found_by_its_subjects_before_it_is_decided(queue: CampaignStore) -> None:
    filled(queue)
    due_us = time.time_ns() // 1000 + DAY_US
    assert [queue.holding("sale", subject) for subject in (0, 2, 3, 8, 9)] == [[0], [0], [1], [2], []]
    assert queue.holding("sale", 2, to=6) == [2, 1, 0]
    assert queue.put_again(RUN, [RetryBatch(3, 3, part(7).pack(), (), 3)]) == 1
    assert queue.holding("sale", 4) == [3, 1], "of a further batch that is not known"
    batch = claimed(queue, "a")
    assert queue.release(batch, "give_back", wait_s=DAY_US / 1e6)
    found = [queue.stored("sale", number) for number in (batch.number, 1)]
    assert [each is not None and each.due_us // DAY_US == due_us // DAY_US for each in found] == [True, False]
    assert queue.steer("sale", due_us=due_us)
    assert (list(queue.ages_s()), list(queue.ages_s(DAY_US / 1e6)), list(queue.ages_s(math.inf))) == (
        [],
        ["sale"],
        ["sale"],
    )


def test_one_that_is_paused_or_due_later_is_prepared_before(queue: CampaignStore) -> None:
    assert queue.begin(RUN)
    assert queue.steer("sale", due_us=time.time_ns() // 1000 + DAY_US)
    assert queue.steer("sale", "pause")
    assert queue.look(1).campaigns == ["sale"]
    assert put(queue, 0, 1, 2) == 3
    assert queue.look(1).campaigns == []
    assert queue.steer("sale", "resume")
    assert queue.claim("sale", "a", 60) == Waiting(0)


def test_what_is_refused_begins_again_with_another_audience(queue: CampaignStore) -> None:
    assert queue.begin(RUN)
    late = claimed(queue, "a")
    assert [*queue.put(RUN, batches(0, 1), late.fence)] == [2]
    assert queue.release(late, "set_aside", "users.csv, row 7: not an id")
    assert (queue.look(1).campaigns, queue.claim("sale", "b", 60)) == ([], Waiting(0))
    status = QueueStatus(queue, "sale").report()
    assert (status.state, status.queue.refused, status.queue.set_aside) == (
        "refused",
        "users.csv, row 7: not an id",
        {},
    )
    assert queue.begin(replace(RUN, batches=2))
    state = queue.state("sale")
    assert (state.queued, state.refused, erase(queue, 4)) == (0, None, [])
    again = claimed(queue, "b")
    assert again.fence > late.fence
    assert [*queue.put(RUN, batches(0), late.fence)] == []
    assert [*queue.put(RUN, batches(0, 1), again.fence)] == [2]
    assert not queue.begin(ANOTHER)


@pytest.mark.parametrize("held", [False, True])
def test_what_is_cancelled_while_it_is_prepared_is_over(queue: CampaignStore, *, held: bool) -> None:
    assert queue.begin(RUN)
    prepares = claimed(queue, "a") if held else None
    assert queue.steer("sale", "cancel")
    if prepares is not None:
        assert not queue.state("sale").finished
        assert [*queue.put(RUN, batches(0, 1, 2), prepares.fence)] == [3]
        assert queue.claim("sale", "a", 60) == Over()
    assert queue.state("sale").finished
    assert not queue.begin(ANOTHER)
