"""`schedule_all` and `acquire_all`: what is between a caller and a store, sync and async."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.limiter import behind_a_door, close, gone

from capline import (
    AsyncLimiter,
    Attempt,
    Insurance,
    InvalidValueError,
    Limiter,
    LimitExceeded,
    ManualClock,
    Policy,
    StoreError,
)

POLICIES = (Policy("requests", ["1/h"]), Policy("tokens", ["100/h"]))
PARTS = [Attempt("requests", "key"), Attempt("tokens", "key", 60)]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[Any] = []

    def limiter(choice: Any, **options: Any) -> Any:
        limiter, door = behind_a_door(
            *POLICIES, asynchronous=request.param, on_store_error=choice, clock=ManualClock(10**15), **options
        )
        made.append(limiter)
        return limiter, door

    yield limiter
    for one in made:
        close(one)


def left(limiter: Limiter) -> list[int]:
    return [limiter.usage(one.policy, "key")[0].remaining for one in PARTS]


def test_a_free_slot_is_gone_through_at_once_and_one_past_the_timeout_takes_nothing() -> None:
    with Limiter("memory://", POLICIES) as limiter:
        with limiter.acquire_all(PARTS) as slot:
            assert (slot.allowed, slot.wait_us, len(slot.hits)) == (True, 0, 2)
        with (
            pytest.raises(LimitExceeded, match=r"'requests', subject 'key': limit 1/hour") as refused,
            limiter.acquire_all(PARTS, timeout=1),
        ):
            pass
        assert refused.value.decision.retry_after == pytest.approx(3600, abs=60)
        assert left(limiter) == [0, 40]


def test_an_interrupted_wait_gives_every_part_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    with Limiter("memory://", POLICIES) as limiter:
        assert limiter.decide("requests", "key")
        monkeypatch.setattr("time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt), limiter.acquire_all(PARTS):
            pass
        assert left(limiter) == [0, 100]


def test_what_cannot_be_given_back_does_not_keep_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    with Limiter("memory://", POLICIES) as limiter:
        assert limiter.decide("requests", "key")
        given_back: Any = getattr(limiter, "_refund")  # noqa: B009 - the verb that it is a part of

        def refund(policy: str, *rest: Any, **limits: Any) -> Any:
            if policy == "requests":
                raise gone()
            return given_back(policy, *rest, **limits)

        def interrupted(_seconds: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(limiter, "_refund", refund)
        monkeypatch.setattr("time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt) as stopped, limiter.acquire_all(PARTS):
            pass
        assert "the slot was not given back: nobody is there" in stopped.value.__notes__
        assert limiter.usage("tokens", "key")[0].remaining == 100


async def test_a_cancelled_wait_gives_every_part_back() -> None:
    async def wait(limiter: AsyncLimiter) -> None:
        async with limiter.acquire_all(PARTS):
            raise AssertionError("the slot is an hour away")

    async with AsyncLimiter("memory://", POLICIES) as limiter:
        async with limiter.acquire_all(PARTS) as slot:
            assert slot.wait_us == 0
        waiting = asyncio.create_task(wait(limiter))
        await asyncio.sleep(0.001)
        assert len((await limiter.explain("requests", "key")).hits) == 2
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [(await limiter.usage(one.policy, "key"))[0].used for one in PARTS] == [1, 60]
        with pytest.raises(LimitExceeded, match="1/hour"):
            async with limiter.acquire_all(PARTS, timeout=1):
                pass


@pytest.mark.parametrize(("choice", "allowed"), [("allow", True), ("deny", False)])
def test_in_an_outage_the_choice_answers(make: Any, choice: str, allowed: bool) -> None:
    limiter, door = make(choice)
    door.down = gone()
    slot = limiter.schedule_all(PARTS)
    assert (slot.allowed, slot.hits, slot.origin) == (allowed, (), "fallback")


def test_in_an_outage_limits_of_this_process_give_one_slot_to_all_parts(make: Any) -> None:
    limiter, door = make(Insurance(1))
    door.down = gone()
    slots = [limiter.schedule_all(PARTS) for _ in range(2)]
    assert [(one.allowed, one.hits, one.origin, one.wait) for one in slots] == [
        (True, (), "insurance", 0.0),
        (True, (), "insurance", 3600.0),
    ]
    limiter, door = make("raise")
    door.down = gone()
    with pytest.raises(StoreError, match="nobody is there"):
        limiter.schedule_all(PARTS)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([], "over 1 to 16 subjects"),
        ([PARTS[0], PARTS[0]], "on the same log"),
        ([Attempt("requests", "key", 1, "x"), PARTS[1]], "an id in all of its attempts"),
    ],
)
def test_what_is_no_slot_is_one_clear_error(make: Any, parts: list[Attempt], told: str) -> None:
    limiter, _ = make("raise")
    with pytest.raises(InvalidValueError, match=told):
        limiter.schedule_all(parts)
    for wrong in ({"max_wait": -1}, {"not_before": -1}):
        with pytest.raises(InvalidValueError, match="is a number of seconds"):
            limiter.schedule_all(PARTS, **wrong)


def test_a_caller_s_own_id_names_the_slot_of_an_acquire_too() -> None:
    named = [Attempt("requests", "key", 1, "job:7"), Attempt("tokens", "key", 60, "job:7")]
    with Limiter("memory://", POLICIES) as limiter:
        with limiter.acquire_all(named) as first:
            pass
        with limiter.acquire_all(named, timeout=0) as again:
            assert again.hits == first.hits
        assert left(limiter) == [0, 40]
