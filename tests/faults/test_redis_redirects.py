"""A slot that moves under load: MOVED, ASK and TRYAGAIN are met, and nothing is lost or counted twice."""

# pyright: reportPrivateUsage=false

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.kit.server import Limiters, each_pair, stamps, warm
from tests.kit.servers import HOST, KINDS, Cluster, Server, cluster

from capline import Attempt, Decision, Policy
from capline.store.redis.cluster.router import Router
from capline.store.redis.scripting.keys import bucket_count, slot_of, tag_of

POPULATION = 64 * 5
SUBJECTS = 30


@pytest.fixture(scope="module", params=KINDS)
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    # No node ends here: one that is only slow is not to be taken for failed, as its clients then read the map anew.
    with cluster(request.param, 3, 0, options=("cluster-node-timeout 60000",)) as made:
        yield made


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each error reply was met."""
    met: Counter[str] = Counter()
    judged: Callable[..., str] = Router._verdict

    def verdict(self: Router, call: Any, reply: Any, *rest: Any) -> str:
        met[getattr(reply, "code", "lost")] += 1
        return judged(self, call, reply, *rest)

    monkeypatch.setattr(Router, "_verdict", verdict)
    return met


def neighbours(layout: str) -> tuple[int, list[str]]:
    """A slot, and text subjects that live in it."""
    buckets = bucket_count(POPULATION) if layout == "bucket" else 0
    by_slot: dict[int, list[str]] = defaultdict(list)
    number = 0
    while True:
        name = f"user {number}"
        number += 1
        found = by_slot[slot_of(tag_of(name, buckets))]
        found.append(name)
        if len(found) == SUBJECTS:
            return slot_of(tag_of(name, buckets)), found


def begin(nodes: Cluster, slot: int) -> tuple[Server, Server]:
    """Make the slot migrate, from its server to another."""
    source = nodes.owner(slot)
    target = next(one for one in nodes.primaries if one is not source)
    names = {one: one.command("CLUSTER", "MYID") for one in (source, target)}
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    return source, target


def move(slot: int, source: Server, target: Server, each_s: float) -> None:
    """Key by key."""
    while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 1):
        source.command("MIGRATE", HOST, target.port, keys[0], 0, 1000)
        time.sleep(each_s)


def settle(nodes: Cluster, slot: int, target: Server) -> None:
    name = target.command("CLUSTER", "MYID")
    for one in (target, *(one for one in nodes.primaries if one is not target)):
        one.command("CLUSTER", "SETSLOT", slot, "NODE", name)


@each_pair
def test_a_slot_that_moves_under_load_loses_nothing_and_counts_nothing_twice(  # noqa: C901, PLR0915 - one story
    nodes: Cluster, limiters: Limiters, layout: str, verdicts: Counter[str]
) -> None:
    policy = Policy("p", ["40/day"], layout=layout, population=POPULATION, channels={"c": ["25/day"], "d": ["30/day"]})
    limiter = limiters(nodes, policy)
    slot, subjects = neighbours(layout)
    hits: dict[str, list[int]] = defaultdict(list)

    def note(subject: str, answer: Any) -> None:
        assert isinstance(answer, Decision), answer
        if answer.hit is not None:
            hits[subject].append(answer.hit)

    done = threading.Event()
    failed: list[BaseException] = []

    def migrate() -> None:
        try:
            for _ in range(2):
                source, target = begin(nodes, slot)
                for one in nodes.servers:
                    one.command("SCRIPT", "FLUSH")
                move(slot, source, target, 0.015)
                time.sleep(0.05)
                settle(nodes, slot, target)
                time.sleep(0.05)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)
        finally:
            done.set()

    for subject in subjects[: SUBJECTS // 2]:
        note(subject, limiter.decide("p", subject, channel="c"))
    thread = threading.Thread(target=migrate)
    thread.start()
    turn = 0
    while not done.is_set() or turn < 6:
        turn += 1
        for number, subject in enumerate(subjects):
            if (number + turn) % 5 == 0:
                note(subject, limiter.decide("p", subject, channel="cd"[turn % 2]))
            if (number + turn) % 7 == 0:
                note(subject, limiter.decide("p", subject))
        if turn % 4 == 0:
            answers = limiter.decide_many("p", subjects)
            assert not answers.errors
            for row, subject in enumerate(subjects):
                note(subject, answers[row])
        if turn % 4 == 2:
            asked = [Attempt("p", subject, id=f"{turn}", channel="d") for subject in subjects[:8]] * 2
            batch = limiter.decide_batch(asked)
            for attempt, answer, again in zip(asked, batch[:8], batch[8:], strict=False):
                assert answer == again
                note(str(attempt.subject), answer)
    thread.join()
    assert not failed, failed
    for subject in subjects:
        assert stamps(limiter, subject) == sorted(set(hits[subject])), subject
        assert len(hits[subject]) == len(set(hits[subject]))
        assert len(hits[subject]) <= 40
    assert verdicts["MOVED"] > 0
    assert verdicts["ASK"] > 0
    assert verdicts["NOSCRIPT"] > 0
    if layout == "subject":
        assert verdicts["TRYAGAIN"] > 0


def test_half_a_subject_s_keys_moved_is_waited_for_and_reported_in_time(
    nodes: Cluster, limiters: Limiters, verdicts: Counter[str]
) -> None:
    """Two keys of one attempt lie on two servers for a while: TRYAGAIN, and nothing is recorded."""
    policy = Policy("p", ["9/day"], channels={"c": ["9/day"]})
    hasty, patient = limiters(nodes, policy, options="deadline=400ms"), limiters(nodes, policy)
    warm(hasty)
    assert patient.decide("p", "s", channel="c")
    assert patient.peek("p", "s", channel="c")
    slot = slot_of(tag_of("s", 0))
    source, target = begin(nodes, slot)
    key = f"{limiters.namespace}:p:{{'s}}"
    source.command("MIGRATE", HOST, target.port, key, 0, 1000)
    answer = hasty.decide_batch([Attempt("p", "s", channel="c"), Attempt("p", "elsewhere", channel="c")])
    assert "TRYAGAIN" in str(answer[0])
    assert "nothing was recorded" in str(answer[0])
    assert isinstance(answer[1], Decision)
    met = verdicts["TRYAGAIN"]
    assert 1 < met < 40

    def finish() -> None:
        time.sleep(0.2)
        move(slot, source, target, 0)
        settle(nodes, slot, target)

    thread = threading.Thread(target=finish)
    thread.start()
    assert patient.decide("p", "s", channel="c").remaining == 7
    thread.join()
    assert len(stamps(patient, "s")) == 2


def test_a_key_that_has_moved_already_is_found_by_ask_also_with_its_script_missing(
    nodes: Cluster, limiters: Limiters, verdicts: Counter[str]
) -> None:
    limiter = limiters(nodes, Policy("p", ["9/day"]))
    slot = slot_of(tag_of("t", 0))
    source, target = begin(nodes, slot)
    target.command("SCRIPT", "FLUSH")
    assert limiter.decide("p", "t").remaining == 8
    assert limiter.decide_many("p", ["t", "t"]).remaining.tolist() == [7, 6]
    assert verdicts["ASK"] >= 2
    assert verdicts["NOSCRIPT"] >= 1
    move(slot, source, target, 0)
    settle(nodes, slot, target)
    assert limiter.decide("p", "t").remaining == 5
    assert verdicts["MOVED"] >= 1
