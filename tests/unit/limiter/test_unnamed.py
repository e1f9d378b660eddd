"""Limits that come with the call, and limiters that are pickled."""

import copy
import pickle
from typing import Any

import pytest

from capline import AsyncLimiter, Insurance, Limit, Limiter, LimitExceeded, ManualClock, Policy
from capline.limiter.policies import unnamed
from capline.model.errors import InvalidTypeError, InvalidValueError, PolicyError, StoreClosedError

MINUTE_US = 60_000_000


def test_limits_come_with_the_call_and_their_history_is_kept() -> None:
    clock = ManualClock(MINUTE_US)
    with Limiter("memory://", clock=clock) as limiter:
        assert [bool(limiter.decide("search", "a", limits=["2/minute"])) for _ in range(3)] == [True, True, False]
        assert limiter.decide("search", "b", limits=["2/minute"])
        refused = limiter.decide("search", "a", limits=[Limit.parse("2 per 60s")])  # the same limits, written otherwise
        assert (refused.allowed, str(refused.limit), refused.retry_after) == (False, "2/minute", 60)
        assert limiter.peek("search", "a", limits=("2/minute",)).remaining == 0
        clock.advance_us(MINUTE_US)
        assert limiter.decide("search", "a", limits=["2/minute"])


def test_other_limits_under_the_name_have_a_history_of_their_own() -> None:
    with Limiter("memory://", clock=ManualClock(MINUTE_US)) as limiter:
        assert limiter.decide("search", "a", limits=["1/minute", "5/hour"])
        assert not limiter.decide("search", "a", limits=["5/hour", "1/minute"])  # in any order they are the same
        assert limiter.decide("search", "a", limits=["1/day"])
        assert limiter.decide("login", "a", limits=["1/day"])


def test_every_name_of_a_policy_has_a_history_of_its_own() -> None:
    names = ["x" * 64, *("x" * length + end for length in (39, 40, 63) for end in "12"), *("GET:/search", "GET:/", "/")]
    names += ["/" * 64, "/" * 40 + ":"]
    with Limiter("memory://", clock=ManualClock(MINUTE_US)) as limiter:
        for name in names:
            assert [bool(limiter.decide(name, "a", limits=["1/day"])) for _ in range(2)] == [True, False], name


def test_a_hit_is_given_back_under_its_limits() -> None:
    with Limiter("memory://", clock=ManualClock(MINUTE_US)) as limiter:
        hit = limiter.decide("search", "a", 2, "order-7", limits=["2/day"]).hit
        assert limiter.decide("search", "a", 2, "order-7", limits=["2/day"]).hit == hit
        assert limiter.refund("search", "a", hit, limits=["2/day"])
        assert not limiter.refund("search", "a", hit, limits=["2/day"])
        assert limiter.decide("search", "a", 2, limits=["2/day"])


async def test_the_same_awaited() -> None:
    async with AsyncLimiter("memory://", clock=ManualClock(MINUTE_US)) as limiter:
        hit = (await limiter.decide("search", "a", limits=["1/day"])).hit
        assert not await limiter.decide("search", "a", limits=["1/day"])
        assert (await limiter.peek("search", "a", limits=["1/day"])).remaining == 0
        assert await limiter.refund("search", "a", hit, limits=["1/day"])
        assert await limiter.decide("search", "a", limits=["1/day"])


def test_a_defined_policy_keeps_its_limits() -> None:
    with Limiter("memory://", policies=[Policy("promo", ["1/day"])]) as limiter:
        match = "policy 'promo' is defined; leave limits= out"
        with pytest.raises(InvalidValueError, match=match):
            limiter.decide("promo", "a", limits=["100/day"])


@pytest.mark.parametrize(
    ("limits", "error"),
    [("10/minute", InvalidTypeError), (5, InvalidTypeError), ([[1]], InvalidTypeError), (["x"], PolicyError)],
)
def test_what_is_no_list_of_limits_is_refused(limits: Any, error: type[Exception]) -> None:
    with Limiter("memory://") as limiter, pytest.raises(error):
        limiter.decide("search", "a", limits=limits)


def test_no_more_are_kept_than_the_bound_and_one_that_was_dropped_finds_its_log(monkeypatch: Any) -> None:
    monkeypatch.setattr(unnamed, "MOST", 3)
    with Limiter("memory://", clock=ManualClock(MINUTE_US)) as limiter:
        for quota in range(1, 9):
            assert limiter.decide("search", "a", limits=[f"{quota}/day"])
        assert len(limiter._unnamed) == 3  # pyright: ignore[reportPrivateUsage]
        assert not limiter.decide("search", "a", limits=["1/day"])


def test_a_closed_limiter_and_an_outage_answer_as_for_any_policy() -> None:
    limiter = Limiter("memory://")
    limiter.decide("search", "a", limits=["1/day"])
    limiter.close()
    with pytest.raises(StoreClosedError):
        limiter.decide("search", "a", limits=["1/day"])
    for choice in ("allow", Insurance(hosts=1)):
        with Limiter("redis://127.0.0.1:1?deadline=1ms", on_store_error=choice) as down:
            assert down.decide("search", "a", limits=["1/day"]).origin in {"fallback", "insurance"}


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_limiter_is_not_pickled_and_says_what_to_do(act: Any) -> None:
    with Limiter("memory://", policies=[Policy("promo", ["1/day"])]) as limiter:
        match = r"make one in each process, like Limiter\(url, policies=\.\.\.\)"
        with pytest.raises(InvalidTypeError, match=match):
            act(limiter)


async def test_an_async_one_neither() -> None:
    async with AsyncLimiter("memory://") as limiter:
        with pytest.raises(InvalidTypeError, match="like AsyncLimiter"):
            pickle.dumps(limiter)


async def test_a_slot_takes_its_limits_with_the_call_too() -> None:
    with Limiter("memory://", clock=ManualClock(10**15)) as limiter:
        assert [limiter.schedule("psp", "a", limits=["1/10s"]).wait for _ in range(2)] == [0, 10.0]
        with limiter.acquire("psp", "b", limits=["1/10s"]) as slot:
            assert slot.wait_us == 0
        with pytest.raises(LimitExceeded, match="1/10s"), limiter.acquire("psp", "b", timeout=1, limits=["1/10s"]):
            pass
        assert limiter.refund("psp", "b", slot.hit, limits=["1/10s"])

    async with AsyncLimiter("memory://", clock=ManualClock(10**15)) as limiter:
        async with limiter.acquire("psp", "a", limits=["1/10s"]):
            pass
        assert (await limiter.schedule("psp", "a", limits=["1/10s"])).wait == 10.0
