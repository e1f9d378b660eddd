"""A server that hangs or is gone: answers by the deadline, a breaker, and nobody gets another's answer."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.kit.server import Limiters, Proxy, each_kind, soon, units, warm
from tests.kit.servers import KINDS, Server, free_port, shared, single

from capline import AsyncLimiter, Attempt, Decision, Insurance, Limiter, Policy, StoreError
from capline.model.errors import StoreUnavailableError, StoreUnknownError

pytestmark = pytest.mark.alone

SHORT = "deadline=50ms&bulk_deadline=200ms"
POLICY = Policy("p", ["100/day"])
LATE_S = 30.0
"""The machine does other things too; who waits for a server that hangs waits for ever."""


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One of this module's own to pause: resumed when the test ends."""
    with single(request.param) as made:
        yield made
        made.resume()


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returned or raised, and the seconds it took."""
    start = time.monotonic()
    try:
        answer = call()
    except StoreError as error:
        answer = error
    return answer, time.monotonic() - start


def test_a_server_that_hangs_is_unknown_by_the_deadline(server: Server, limiters: Limiters) -> None:
    limiter = limiters(server, POLICY, options=SHORT)
    warm(limiter)
    server.pause()
    answer, seconds = timed(lambda: limiter.decide("p", "s"))
    assert isinstance(answer, StoreUnknownError)
    assert 0.04 < seconds < LATE_S


@pytest.mark.parametrize("verb", ["decide", "peek", "schedule", "refund", "erase", "explain", "now", "batch", "many"])
def test_every_verb_ends_by_its_deadline(server: Server, limiters: Limiters, verb: str) -> None:
    limiter = limiters(server, POLICY, options=SHORT)
    warm(limiter)
    server.pause()
    verbs: dict[str, Callable[[], Any]] = {
        "decide": lambda: limiter.decide("p", "s", 2, id="x"),
        "peek": lambda: limiter.peek("p", "s"),
        "schedule": lambda: limiter.schedule("p", "s"),
        "refund": lambda: limiter.refund("p", "s", 5),
        "erase": lambda: limiter.erase("s"),
        "explain": lambda: limiter.explain("p", "s"),
        "now": limiter.now_us,
        "batch": lambda: limiter.decide_batch([Attempt("p", "s")])[0],
        "many": lambda: limiter.decide_many("p", ["s"]).errors[0],
    }
    answer, seconds = timed(verbs[verb])
    assert isinstance(answer, StoreError)
    assert seconds < LATE_S


def test_a_server_that_hangs_at_the_first_meeting_is_known_not_to_have_recorded(
    server: Server, limiters: Limiters
) -> None:
    limiter = limiters(server, POLICY, options=SHORT)
    server.pause()
    answer, seconds = timed(lambda: limiter.decide("p", "s"))
    assert isinstance(answer, StoreUnavailableError)
    assert seconds < LATE_S
    server.resume()
    assert soon(lambda: isinstance(timed(lambda: limiter.peek("p", "s"))[0], Decision))
    assert units(limiter, "s") == 0
    assert limiter.decide("p", "s").remaining == 99


@pytest.mark.parametrize(
    ("choice", "allowed", "origin"),
    [("allow", True, "fallback"), ("deny", False, "fallback"), (Insurance(hosts=2), True, "insurance")],
    ids=["allow", "deny", "insurance"],
)
def test_the_choice_for_an_outage_answers_by_the_deadline(
    server: Server, limiters: Limiters, choice: Any, allowed: bool, origin: str
) -> None:
    limiter = limiters(server, POLICY, options=SHORT, on_store_error=choice)
    assert soon(lambda: limiter.decide("p", "s").origin == "store")
    server.pause()
    for _ in range(5):
        answer, seconds = timed(lambda: limiter.decide("p", "s"))
        assert (answer.allowed, answer.origin) == (allowed, origin)
        assert seconds < LATE_S
    server.resume()
    assert soon(lambda: limiter.decide("p", "s").origin == "store")


def test_after_three_failures_calls_fail_at_once_and_it_closes_by_itself(server: Server, limiters: Limiters) -> None:
    limiter = limiters(server, POLICY, options="deadline=100ms")
    warm(limiter)
    server.pause()
    for _ in range(3):
        assert timed(lambda: limiter.decide("p", "s"))[1] > 0.09
    swift = [timed(lambda: limiter.decide("p", "s")) for _ in range(5)]
    # Who asks a server that hangs does not know; who is told so at once was kept from asking.
    kept = [answer for answer, _ in swift if isinstance(answer, StoreUnavailableError)]
    assert kept
    assert "nothing was recorded" in str(kept[0])
    server.resume()
    assert soon(lambda: isinstance(timed(lambda: limiter.decide("p", "s"))[0], Decision), 60)
    after = [timed(lambda: limiter.decide("p", "s"))[0] for _ in range(10)]
    assert all(isinstance(answer, Decision) for answer in after)


def test_failures_that_are_not_in_a_row_do_not_open_the_breaker(limiters: Limiters) -> None:
    with Proxy(shared("redis")) as proxy:
        limiter = limiters(proxy.url(), POLICY)
        for _ in range(5):
            assert limiter.decide("p", "s")
            proxy.fate = lambda _: "reset"
            assert isinstance(timed(lambda: limiter.decide("p", "s"))[0], StoreUnknownError)
            proxy.fate = lambda _: "pass"


@each_kind
def test_a_limiter_comes_back_by_itself_when_its_server_does(kind: str, limiters: Limiters) -> None:
    with single(kind, "appendonly yes", "appendfsync always") as server:
        limiter = limiters(server, POLICY, options="deadline=100ms")
        warm(limiter)
        assert limiter.decide("p", "s")
        for _ in range(2):
            server.kill()
            for _ in range(5):
                answer, seconds = timed(lambda: limiter.decide("p", "s"))
                assert isinstance(answer, (StoreUnavailableError, StoreUnknownError))
                assert seconds < LATE_S
            server.restart()
            assert soon(lambda: isinstance(timed(lambda: limiter.peek("p", "s"))[0], Decision))
        assert units(limiter, "s") == 1


def test_a_server_that_is_not_there_yet_is_waited_for_till_the_deadline(limiters: Limiters) -> None:
    port = free_port()
    limiter = limiters(f"redis://127.0.0.1:{port}?deadline=50ms", POLICY)
    answer, seconds = timed(lambda: limiter.decide("p", "s"))
    assert isinstance(answer, StoreUnavailableError)
    assert "nothing was recorded" in str(answer)
    assert seconds < LATE_S


def test_a_call_takes_one_deadline_also_when_it_has_to_log_in_first(limiters: Limiters) -> None:
    with single("redis", password="secret") as server:  # noqa: S106 - of a server that lives for this test
        limiter = limiters(server, POLICY, options="deadline=200ms")
        server.pause()
        answer, seconds = timed(lambda: limiter.decide("p", "s"))
        server.resume()
    assert isinstance(answer, StoreUnavailableError)
    assert seconds < LATE_S


@each_kind
def test_nobody_gets_another_s_answer_after_a_timeout(kind: str) -> None:
    """Each policy has a quota of its own, so an answer shows whose it is."""
    policies = [Policy(f"p{quota}", [f"{quota}/day"]) for quota in range(2, 26)]
    with single(kind) as server, Limiter(f"{server.url}?deadline=20ms", policies, namespace="sync") as limiter:
        wrong: list[Any] = []
        answered = [0]

        def ask(policy: Policy) -> None:
            # Until it has had some answers: on a busy machine 20 ms pass often, and the breaker is open.
            number, had, end = 0, 0, time.monotonic() + 30
            while (number < 60 or had < 10) and time.monotonic() < end:
                number += 1
                try:
                    decision = limiter.decide(policy.name, f"s{number}")
                except StoreError:
                    time.sleep(0.002)
                    continue
                had += 1
                answered[0] += 1
                if decision.limit != policy.limits[0] or decision.remaining != policy.limits[0].quota - 1:
                    wrong.append((policy, number, decision))

        threads = [threading.Thread(target=ask, args=(policy,)) for policy in policies]
        for thread in threads:
            thread.start()
        for _ in range(10):
            server.pause()
            time.sleep(0.03)
            server.resume()
            time.sleep(0.03)
        for thread in threads:
            thread.join()
    assert not wrong
    assert answered[0] > 100


@each_kind
def test_no_task_gets_another_s_answer_after_a_timeout(kind: str) -> None:
    policies = [Policy(f"p{quota}", [f"{quota}/day"]) for quota in range(2, 26)]
    wrong: list[Any] = []
    answered = [0]

    async def ask(limiter: AsyncLimiter, policy: Policy) -> None:
        number, had, end = 0, 0, time.monotonic() + 30
        while (number < 60 or had < 10) and time.monotonic() < end:
            number += 1
            try:
                decision = await limiter.decide(policy.name, f"s{number}")
            except StoreError:
                await asyncio.sleep(0.002 * (number % 3))
                continue
            had += 1
            answered[0] += 1
            if decision.limit != policy.limits[0] or decision.remaining != policy.limits[0].quota - 1:
                wrong.append((policy, number, decision))

    async def disturb(server: Server) -> None:
        for _ in range(10):
            server.pause()
            await asyncio.sleep(0.03)
            server.resume()
            await asyncio.sleep(0.03)

    async def main(server: Server) -> None:
        async with AsyncLimiter(f"{server.url}?deadline=20ms", policies) as limiter:
            await asyncio.gather(disturb(server), *(ask(limiter, policy) for policy in policies))

    with single(kind) as server:
        asyncio.run(main(server))
    assert not wrong
    assert answered[0] > 100


@each_kind
def test_a_large_batch_on_a_slow_line_has_the_time_of_a_batch(kind: str, limiters: Limiters) -> None:
    """What one call may take is no bound on how long a batch is on its way to the server."""
    with Proxy(shared(kind)) as proxy:
        limiter = limiters(proxy.url("deadline=400ms&bulk_deadline=30s"), Policy("p", ["1/day"]))
        warm(limiter)
        proxy.bytes_per_second = 16_000_000
        # More than the buffers on the way take, though not by much.
        answers = limiter.decide_many("p", [f"{number:0>400}" for number in range(40_000)])
    assert not answers.errors
    assert answers.allowed.all()


# A machine that is busy elsewhere may take longer. All day: tests/unit/store/redis/test_batches.py.
@pytest.mark.deep
def test_a_batch_of_ten_thousand_attempts_fits_the_default_deadline_of_its_kind(limiters: Limiters) -> None:
    limiter = limiters(shared("redis"), POLICY, options="bulk_deadline=30s")
    warm(limiter)
    answers = limiter.decide_batch([Attempt("p", number, id=f"{number}") for number in range(10_000)])
    assert [answer for answer in answers if not isinstance(answer, Decision)] == []


def test_more_calls_at_once_than_connections_wait_for_one(limiters: Limiters) -> None:
    """Also where each finds its script missing: who has a connection and would wait for another would wait for ever."""
    with single("redis") as server:
        limiter = limiters(server, POLICY, options="deadline=5s&max_connections=2")
        answers: list[Decision] = []
        if limiters.asynchronous:

            async def many() -> list[Decision]:
                return await asyncio.gather(*(limiter.inner.schedule("p", "s") for _ in range(30)))

            answers += limiter.run(many())
        else:
            threads = [threading.Thread(target=lambda: answers.append(limiter.schedule("p", "s"))) for _ in range(30)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert sorted(answer.remaining for answer in answers) == [*range(70, 100)]
