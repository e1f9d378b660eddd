"""`wait_replicas`: a hit counts as allowed only when so many replicas have it; a refusal needs none."""

import re
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from proof.chaos.verbs import NOT_WAITING, WAITING, policies, with_hits
from tests.kit.server import SLOW, Limiters, each_layout, soon, stamps, units
from tests.kit.servers import HOST, KINDS, Server, single

from capline import Attempt, Decision, Policy
from capline.model.errors import StoreError, StoreUnknownError

pytestmark = pytest.mark.alone

QUICK = "deadline=800ms&bulk_deadline=900ms"
"""For what no replica answers, and for that alone: what is to be answered has the time that a busy machine takes."""
ROOMY = "deadline=4s&bulk_deadline=4s"
"""For what is answered in time although it asks for a replica."""
LATEST_S = 30.0
DOUBT = "recorded, but .* replicas have it .*by the deadline"


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """A master and its replica."""
    with single(request.param) as master, single(request.param, f"replicaof {HOST} {master.port}") as replica:
        caught_up(master)
        yield master, replica


def caught_up(master: Server) -> None:
    """What is written now arrives and is acknowledged; a Valkey replica that says `online` may take a second for it."""
    master.command("SET", "caught-up", str(time.monotonic()), "PX", 60_000)
    assert soon(master.is_replicated)


@contextmanager
def hanging(pair: tuple[Server, Server]) -> Generator[None]:
    """The replica stands still meanwhile, and has caught up afterwards."""
    master, replica = pair
    replica.pause()
    try:
        yield
    finally:
        replica.resume()
        caught_up(master)


def policy(layout: str, limit: str = "3/day", replicas: int = 1) -> Policy:
    return Policy("p", [limit], layout=layout, population=100, wait_replicas=replicas)


def quick(limiters: Limiters, pair: tuple[Server, Server], under: Policy) -> Any:
    """A limiter with `QUICK` deadlines that is connected already: a busy machine may take longer for that."""
    limiter = limiters(pair[0], under, options=QUICK)

    assert soon(partial(answers_at_once, limiter))
    return limiter


def answers_at_once(limiter: Any) -> bool:
    with suppress(StoreError):
        return limiter.peek("p", "warm").allowed
    return False


@each_layout
def test_an_allowed_hit_is_answered_when_the_replica_has_it(
    pair: tuple[Server, Server], limiters: Limiters, layout: str
) -> None:
    master, replica = pair
    limiter = limiters(master, policy(layout))
    for remaining in (2, 1, 0):
        assert limiter.decide("p", "s").remaining == remaining
        [key] = replica.command("KEYS", f"{limiters.namespace}*")
        assert replica.command("DUMP", key) == master.command("DUMP", key), "answered, and the replica has it not"
    assert not limiter.decide("p", "s").allowed
    assert limiter.decide_many("p", range(40)).allowed.all()
    assert all(answer.allowed for answer in limiter.decide_batch([Attempt("p", "t"), Attempt("p", "u", 2, "id")]))


@each_layout
def test_without_the_replica_an_allowed_hit_is_unknown_and_a_refusal_a_refusal(
    pair: tuple[Server, Server], limiters: Limiters, layout: str
) -> None:
    patient, limiter = limiters(pair[0], policy(layout)), quick(limiters, pair, policy(layout))
    assert patient.decide("p", "s", 2)
    assert patient.decide("p", "warm"), "both scripts are there"
    with hanging(pair):
        start = time.monotonic()
        with pytest.raises(StoreUnknownError, match=DOUBT):
            limiter.decide("p", "s")
        assert time.monotonic() - start < LATEST_S
        assert not patient.decide("p", "s").allowed
        assert not patient.peek("p", "s").allowed
        with pytest.raises(StoreUnknownError, match=DOUBT):
            limiter.schedule("p", "new")
        assert units(patient, "s") == 3, "it is recorded, where it was asked"
    assert not patient.decide("p", "s").allowed
    assert patient.decide("p", "other").allowed


@each_layout
def test_in_a_batch_it_is_reported_of_each_row(pair: tuple[Server, Server], limiters: Limiters, layout: str) -> None:
    patient, limiter = limiters(pair[0], policy(layout, "1/day")), quick(limiters, pair, policy(layout, "1/day"))
    assert patient.decide_many("p", range(10)).allowed.all()
    with hanging(pair):
        start = time.monotonic()
        answers = limiter.decide_many("p", range(20))
        assert time.monotonic() - start < LATEST_S
        assert sorted(answers.errors) == [*range(10, 20)]
        assert all(type(error) is StoreUnknownError for error in answers.errors.values())
        assert not answers.allowed.any()
        attempts = [Attempt("p", number) for number in range(5)] + [Attempt("p", f"t{number}") for number in range(5)]
        decided = limiter.decide_batch(attempts)
        assert [type(one) for one in decided] == [Decision] * 5 + [StoreUnknownError] * 5
        assert not patient.peek_many("p", range(20)).allowed.any(), "all are recorded"
    assert patient.decide_many("p", range(30)).allowed.tolist() == [False] * 20 + [True] * 10


@each_layout
def test_asked_again_by_id_it_is_known_only_when_the_replica_has_it(
    pair: tuple[Server, Server], limiters: Limiters, layout: str
) -> None:
    """On another connection too, on which nothing was written."""
    first, second = (quick(limiters, pair, policy(layout)) for _ in range(2))
    patient = limiters(pair[0], policy(layout))
    assert patient.decide("p", "warm").allowed
    with hanging(pair):
        for limiter in (first, second):
            with pytest.raises(StoreUnknownError, match=DOUBT):
                limiter.decide("p", "s", id="x")
            [answer] = limiter.decide_batch([Attempt("p", "s", 1, "x")])
            assert isinstance(answer, StoreUnknownError)
    answer = patient.decide("p", "s", id="x")
    assert answer.allowed
    assert stamps(patient, "s") == [answer.hit]


@each_layout
def test_asked_again_by_receipt_it_is_known_only_when_the_replica_has_it(
    pair: tuple[Server, Server], limiters: Limiters, layout: str
) -> None:
    with hanging(pair):
        for _ in range(2):
            limiter = limiters(pair[0], policy(layout), options=QUICK)
            answers = limiter.decide_many("p", range(10), receipt="r")
            assert sorted(answers.errors) == [*range(10)]
    answers = limiters(pair[0], policy(layout)).decide_many("p", range(10), receipt="r")
    assert answers.allowed.all()
    assert answers.remaining.tolist() == [2] * 10


def test_more_replicas_than_there_are_is_never_enough(pair: tuple[Server, Server], limiters: Limiters) -> None:
    limiter = quick(limiters, pair, policy("subject", replicas=2))
    with pytest.raises(StoreUnknownError, match=DOUBT):
        limiter.decide("p", "s")


def test_who_waits_for_none_does_not_wait(pair: tuple[Server, Server], limiters: Limiters) -> None:
    limiter = limiters(pair[0], policy("subject", replicas=0), options=SLOW)
    with hanging(pair):
        start = time.monotonic()
        assert limiter.decide("p", "s").allowed
        assert time.monotonic() - start < LATEST_S


@each_layout
def test_each_verb_that_could_later_admit_too_much_waits_and_no_other(
    pair: tuple[Server, Server], limiters: Limiters, layout: str
) -> None:
    asked: dict[str, Callable[[], Any]] = {}
    for number, (verb, ask) in enumerate((WAITING | NOT_WAITING).items()):
        place = {"namespace": f"{limiters.namespace}.{number}"}
        before = limiters(pair[0], *policies(layout, 0), **place)
        limiter = limiters(pair[0], *policies(layout, 1), options=QUICK if verb in WAITING else ROOMY, **place)
        asked[verb] = partial(ask, limiter, with_hits(before, verb))
        assert soon(partial(answers_at_once, limiter))
    caught_up(pair[0])
    with hanging(pair), ThreadPoolExecutor(len(asked)) as pool:
        answers = {verb: pool.submit(ask) for verb, ask in asked.items()}
        raised = {verb: str(answer.exception() or "") for verb, answer in answers.items()}
    assert [verb for verb in WAITING if not re.search(DOUBT, raised[verb])] == []
    assert {verb: raised[verb] for verb in NOT_WAITING if raised[verb]} == {}
    assert [verb for verb in NOT_WAITING if not answers[verb].result()] == []


@each_layout
def test_less_is_unknown_too_after_more_that_no_replica_has(
    pair: tuple[Server, Server], limiters: Limiters, layout: str
) -> None:
    """Else, after a failover, the caller counts on 5 units where the replica has 1."""
    patient, limiter = limiters(pair[0], policy(layout, "9/day")), quick(limiters, pair, policy(layout, "9/day"))
    hit = patient.decide("p", "s").hit
    with hanging(pair):
        for cost in (9, 5, 5):
            with pytest.raises(StoreUnknownError, match=DOUBT):
                limiter.settle("p", "s", hit, cost)
        assert units(patient, "s") == 5, "it is recorded, where it was asked"
        assert limiter.settle("p", "s", hit + 1, 5) is False, "there is nothing to have"
    assert patient.settle("p", "s", hit, 5) is True
    [key] = pair[0].command("KEYS", f"{limiters.namespace}*")
    assert pair[1].command("DUMP", key) == pair[0].command("DUMP", key)


@each_layout
def test_a_commit_is_answered_when_the_replica_has_it(
    pair: tuple[Server, Server], limiters: Limiters, layout: str
) -> None:
    reserving = policy(layout).having(reservations=True)
    patient, limiter = limiters(pair[0], reserving), quick(limiters, pair, reserving)
    hit = patient.reserve("p", "s", ttl=3600).hit
    with hanging(pair):
        for _ in range(2):
            with pytest.raises(StoreUnknownError, match="replicas have it"):
                limiter.commit("p", "s", hit)
        assert patient.commit("p", "s", hit + 1) is False, "there is nothing to have"
    assert patient.commit("p", "s", hit) is True


@each_layout
def test_a_changed_policy_waits_at_once_and_its_hits_outlive_a_failover(limiters: Limiters, layout: str) -> None:
    before, after = policy(layout, replicas=0), policy(layout, "4/hour").having(channels={"push": ["2/day"]})
    with single("valkey") as master, single("valkey", f"replicaof {HOST} {master.port}") as replica:
        caught_up(master)
        limiter = quick(limiters, (master, replica), before)
        with hanging((master, replica)):
            assert limiter.decide("p", "s"), "who waits for none does not wait"
            limiter.use([after])
            with pytest.raises(StoreUnknownError, match=DOUBT):
                limiter.decide("p", "s", id="a", channel="push")
        assert limiter.decide("p", "s", id="a", channel="push").remaining == 1
        replica.command("REPLICAOF", "NO", "ONE")
        promoted = limiters(replica, after.having(wait_replicas=0))
        assert promoted.decide("p", "s", 1, "a", channel="push").remaining == 1, "the retry is known there"
        assert promoted.decide("p", "s", channel="push").remaining == 0
        promoted.use([before])
        assert not promoted.decide("p", "s")
        assert units(promoted, "s") == 3
