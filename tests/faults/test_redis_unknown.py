"""A reply that was lost: the limiter says that it does not know, and asking again by id or receipt counts once."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.kit.server import (
    Limiters,
    Proxy,
    each_kind,
    each_layout,
    each_pair,
    executed,
    soon,
    stamps,
    tries,
    units,
    warm,
)
from tests.kit.servers import KINDS, shared, single

from capline import Attempt, Decision, Policy, StoreError
from capline.model.errors import StoreUnavailableError, StoreUnknownError
from capline.store.redis.scripting import parts

pytestmark = pytest.mark.alone

SHORT = "deadline=150ms&bulk_deadline=500ms"


@pytest.fixture(params=KINDS)
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    with Proxy(shared(request.param)) as made:
        yield made


def fates(seed: int, chance: float) -> Any:
    """Lose this share of the replies, in each way."""
    draw = random.Random(seed)

    def fate(_: bytes) -> str:
        return draw.choice(("hang", "reset", "cut")) if draw.random() < chance else "pass"

    return fate


def once(proxy: Proxy, what: str) -> None:
    """Lose the next reply so, and no other."""
    left = [what]
    proxy.fate = lambda _: left.pop() if left else "pass"


@pytest.mark.parametrize("fate", ["hang", "reset", "cut"])
def test_a_lost_reply_is_an_unknown_answer_and_the_hit_is_there(proxy: Proxy, limiters: Limiters, fate: str) -> None:
    limiter = limiters(proxy.url(SHORT), Policy("p", ["3/day"]))
    direct = limiters(proxy.server, Policy("p", ["3/day"]))
    warm(limiter)
    assert limiter.decide("p", "s")
    before = executed(proxy.server)
    once(proxy, fate)
    with pytest.raises(StoreUnknownError, match="whether the attempt was recorded is not known"):
        limiter.decide("p", "s")
    assert units(direct, "s") == 2
    assert executed(proxy.server) <= before + 2, "it was sent again by itself (the look at the log is the other script)"
    assert limiter.decide("p", "s").remaining == 0


@pytest.mark.parametrize("fate", ["hang", "reset", "cut"])
def test_with_an_id_it_is_one_consumption_and_the_first_answer(proxy: Proxy, limiters: Limiters, fate: str) -> None:
    limiter = limiters(proxy.url(SHORT), Policy("p", ["3/day"]))
    direct = limiters(proxy.server, Policy("p", ["3/day"]))
    warm(limiter)
    assert limiter.decide("p", "s", 2, id="first")
    once(proxy, fate)
    try:
        answer = limiter.decide("p", "s", id="x")  # sent again by itself where the deadline leaves time for it
    except StoreUnknownError:
        assert fate == "hang"
        answer = limiter.decide("p", "s", id="x")
    assert answer.allowed
    assert answer.remaining == 0
    assert stamps(direct, "s")[-1] == answer.hit
    assert units(direct, "s") == 3
    assert not limiter.decide("p", "s", id="y")


@pytest.mark.parametrize(
    "fate", ["reset", pytest.param("hang", marks=pytest.mark.deep), pytest.param("cut", marks=pytest.mark.deep)]
)
def test_a_reservation_whose_replies_are_lost_is_held_and_committed_once(
    proxy: Proxy, limiters: Limiters, fate: str
) -> None:
    policy = Policy("p", ["3/day"], reservations=True)
    limiter, direct = limiters(proxy.url(SHORT), policy), limiters(proxy.server, policy)
    warm(limiter)

    def asked_once_more(ask: Callable[[], Any]) -> Any:
        once(proxy, fate)
        try:
            return ask()  # sent again by itself where the deadline leaves time for it
        except StoreUnknownError:
            assert fate == "hang"
            return ask()

    once(proxy, fate)
    with pytest.raises(StoreUnknownError):
        limiter.reserve("p", "s")
    assert units(direct, "s") == 1
    reserved = asked_once_more(lambda: limiter.reserve("p", "s", id="x"))
    assert (reserved.allowed, reserved.remaining, units(direct, "s")) == (True, 1, 2)
    assert stamps(direct, "s")[-1] == reserved.hit
    assert asked_once_more(lambda: limiter.commit("p", "s", reserved.hit))
    once(proxy, fate)
    with pytest.raises(StoreUnknownError):
        limiter.cancel("p", "s", reserved.hit)
    assert (limiter.cancel("p", "s", reserved.hit), units(direct, "s")) == (False, 1)


@each_pair
def test_two_hundred_attempts_with_ids_are_each_counted_once_whatever_is_lost(
    proxy: Proxy, limiters: Limiters, layout: str
) -> None:
    policy = Policy("p", ["1000/day"], layout=layout)
    limiter, direct = limiters(proxy.url("deadline=25ms"), policy), limiters(proxy.server, policy)
    warm(limiter)
    proxy.fate = fates(1, 0.2)
    hits: dict[str, int] = {}
    unanswered = 0
    for number in range(200):
        name = f"attempt {number}"
        for _ in tries():
            try:
                decision = limiter.decide("p", number % 3, 1 + number % 4, id=name)
            except StoreError as error:
                unanswered += 1
                assert isinstance(error, (StoreUnknownError, StoreUnavailableError))  # noqa: PT017 - it may come or not
                time.sleep(0.02)  # past the breaker
                continue
            assert decision.allowed
            hits[name] = decision.hit
            break
    assert len(hits) == 200
    assert unanswered > 5
    for subject in range(3):
        numbers = range(subject, 200, 3)
        assert units(direct, subject) == sum(1 + number % 4 for number in numbers)
        assert stamps(direct, subject) == sorted(hits[f"attempt {number}"] for number in numbers)


@each_pair
def test_a_batch_of_ids_under_losses_counts_each_once(proxy: Proxy, limiters: Limiters, layout: str) -> None:
    policy = Policy("p", ["1000/day"], layout=layout)
    limiter, direct = limiters(proxy.url("deadline=80ms"), policy), limiters(proxy.server, policy)
    warm(limiter)
    ways = iter(("hang", "cut", "hang", "reset", "reset"))
    proxy.fate = lambda _: next(ways, "pass")
    unanswered = 0
    attempts = [Attempt("p", number % 50, id=f"id {number}") for number in range(300)]
    answers: dict[str, Decision] = {}
    for _ in tries():
        left = [attempt for attempt in attempts if attempt.id not in answers]
        if not left:
            break
        for attempt, answer in zip(left, limiter.decide_batch(left), strict=True):
            if isinstance(answer, Decision):
                answers[attempt.id or ""] = answer
            else:
                unanswered += 1
                assert isinstance(answer, (StoreUnknownError, StoreUnavailableError))
        time.sleep(0.02)
    assert len(answers) == 300
    assert unanswered
    assert all(answer.allowed for answer in answers.values())
    for subject in range(50):
        mine = [answers[attempt.id or ""].hit for attempt in attempts if attempt.subject == subject]
        assert stamps(direct, subject) == sorted(hit for hit in mine if hit)


@each_pair
def test_a_batch_under_a_receipt_counts_once_whatever_is_lost(
    proxy: Proxy, limiters: Limiters, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 500)
    policy = Policy("p", ["2/day"], layout=layout)
    limiter = limiters(proxy.url("deadline=60ms&bulk_deadline=150ms"), policy)
    direct = limiters(proxy.server, policy)
    subjects = [*range(3000), *range(1000), *range(500)]
    warm(limiter)
    proxy.fate = fates(3, 0.1)
    failed = 0
    for _ in tries():
        try:
            answers = limiter.decide_many("p", subjects, receipt="r")
        except StoreError:
            failed += 1
        else:
            if not answers.errors:
                break
            failed += 1
        time.sleep(0.05)
    else:
        pytest.fail("never answered whole")
    assert failed
    expected = [True] * 4000 + [False] * 500
    assert answers.allowed.tolist() == expected
    peeked = direct.peek_many("p", np.arange(3000))
    assert peeked.remaining.tolist() == [0] * 1000 + [0] * 2000
    for subject in (0, 499, 500, 999, 1000, 2999):
        rows = [row for row, one in enumerate(subjects) if one == subject and answers.allowed[row]]
        assert stamps(direct, subject) == sorted(int(answers.hit[row]) for row in rows)


@each_layout
def test_rows_of_a_batch_get_their_own_answers_when_a_connection_is_lost_between_its_parts(
    proxy: Proxy, limiters: Limiters, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later part's replies must never be read as those of an earlier one, whose connection was lost."""
    monkeypatch.setattr(parts, "PART_ROWS", 256)
    policy = Policy("p", ["1/day"], layout=layout)
    limiter = limiters(proxy.url("deadline=1s&bulk_deadline=2s"), policy)
    direct = limiters(proxy.server, policy)
    warm(limiter)
    seen = [0]

    def fate(_: bytes) -> str:
        seen[0] += 1
        return "reset" if seen[0] % 3 == 0 else "pass"

    for lot in range(4):
        subjects = np.arange(lot * 5120, (lot + 1) * 5120)
        proxy.fate = fate
        answers = limiter.decide_many("p", subjects)
        proxy.fate = lambda _: "pass"
        assert answers.errors
        logged = direct.peek_many("p", subjects)
        for row, subject in enumerate(subjects.tolist()):
            error = answers.errors.get(row)
            if error is None:
                assert answers.allowed[row]
                assert not logged.allowed[row], "answered, and not recorded"
                if row % 64 == 0:
                    assert stamps(direct, subject) == [answers.hit[row]], "another row's answer"
            else:
                assert isinstance(error, (StoreUnknownError, StoreUnavailableError))
                if isinstance(error, StoreUnavailableError):
                    assert logged.allowed[row], "said not to be recorded, and it is"


def test_an_attempt_without_an_id_runs_at_most_once(proxy: Proxy, limiters: Limiters) -> None:
    limiter = limiters(proxy.url("deadline=60ms"), Policy("p", ["1000/day"]))
    warm(limiter)
    before = executed(proxy.server)
    proxy.fate = fates(4, 0.4)
    sure, unknown, tries = 0, 0, 120
    for _ in range(tries):
        try:
            sure += bool(limiter.decide("p", "s"))
        except StoreUnknownError:
            unknown += 1
        except StoreUnavailableError:
            time.sleep(0.01)
    ran = executed(proxy.server) - before
    direct = limiters(proxy.server, Policy("p", ["1000/day"]))
    assert unknown > 5
    assert ran <= sure + unknown
    assert units(direct, "s") == ran


@each_kind
def test_a_connection_that_ended_while_idle_is_noticed_and_the_call_is_sent_once(kind: str, limiters: Limiters) -> None:
    with single(kind) as server:
        limiter = limiters(server, Policy("p", ["100/day"]))
        for number in range(5):
            assert limiter.decide("p", "s").remaining == 99 - number
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert soon(lambda: len(server.command("CLIENT", "LIST").splitlines()) == 1)
        assert units(limiter, "s") == 5


@pytest.mark.parametrize("ids", [("x", None), (None, "x"), (None, None), ("x", "y")])
def test_a_joint_attempt_is_sent_again_only_where_each_part_has_an_id(
    proxy: Proxy, limiters: Limiters, ids: tuple[str | None, str | None]
) -> None:
    limiter = limiters(proxy.url(SHORT), Policy("p", ["3/day"]))
    direct = limiters(proxy.server, Policy("p", ["3/day"]))
    warm(limiter)
    parts = [Attempt("p", subject, id=one) for subject, one in zip(("s", "t"), ids, strict=True)]
    limiter.peek_all(parts)
    assert limiter.decide_all([Attempt("p", "other")])
    once(proxy, "reset")
    if all(ids):
        assert limiter.decide_all(parts).hits == tuple(stamps(direct, subject)[0] for subject in ("s", "t"))
    else:
        with pytest.raises(StoreUnknownError):
            limiter.decide_all(parts)
    assert [units(direct, subject) for subject in ("s", "t")] == [1, 1]
