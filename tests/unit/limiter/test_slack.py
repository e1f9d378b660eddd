"""Who wakes up later than the slack after its slot gives it back and takes another; sync and async."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from capline import AsyncLimiter, Attempt, InvalidValueError, Limiter, LimitExceeded, ManualClock, Policy
from capline.limiter import patience
from capline.limiter.patience import MOST_MISSED
from capline.model.errors import StoreUnknownError
from capline.store.local.memory import MemoryStore
from capline.store.protocol import Operation

POLICIES = (Policy("p", ["1/10s"]), Policy("q", ["5/10s"]))
STEP = MemoryStore.step
PARTS = [Attempt("p", "s"), Attempt("q", "s", 2)]


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[ManualClock, list[float]], None]:
    """Sleeping advances the clock, by so many seconds too much the first times; so does a slot that is now.

    No seconds are no sleep: every 64th slot of a process lets the event loop have its turn.
    """
    turn = asyncio.sleep

    def fake(clock: ManualClock, late: list[float]) -> None:
        def slept(seconds: float) -> None:
            clock.advance_us(round((seconds + (late.pop(0) if late else 0)) * 1e6))

        async def awaited(seconds: float) -> None:
            if seconds:
                slept(seconds)
            else:
                await turn(0)

        def answered(store: MemoryStore, operation: Operation) -> Any:
            answer = STEP(store, operation)
            if operation.kind == "schedule" and not answer.wait_us:
                slept(0)
            return answer

        monkeypatch.setattr(MemoryStore, "step", answered)
        monkeypatch.setattr(patience.time, "monotonic", lambda: clock.now_us() / 1e6)
        monkeypatch.setattr("time.sleep", slept)
        monkeypatch.setattr("asyncio.sleep", awaited)

    return fake


def acquired(asynchronous: bool, clock: ManualClock, **options: Any) -> Any:
    """The slot of an `acquire_all` behind one decision, and the units in both logs."""

    async def main() -> Any:
        async with AsyncLimiter("memory://", POLICIES, clock=clock) as limiter:
            await limiter.decide("p", "s")
            async with limiter.acquire_all(PARTS, **options) as slot:
                hits = [(await limiter.explain(name, "s")).hits for name in "pq"]
                return slot, *[[hit.units for hit in one] for one in hits]

    if asynchronous:
        return asyncio.run(main())
    with Limiter("memory://", POLICIES, clock=clock) as limiter:
        limiter.decide("p", "s")
        with limiter.acquire_all(PARTS, **options) as slot:
            return slot, *[[hit.units for hit in limiter.explain(name, "s").hits] for name in "pq"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_is_later_than_the_slack_takes_another_slot(asleep: Any, asynchronous: bool) -> None:
    clock = ManualClock(10**15)
    asleep(clock, [4.0])
    slot, own, other = acquired(asynchronous, clock, slack=0.5)
    assert clock.now_us() == 10**15 + 14_000_000
    assert (slot.wait_us, slot.hits) == (0, (clock.now_us(),) * 2)
    assert (own, other) == ([0, 1], [0, 2])
    clock = ManualClock(10**15)
    asleep(clock, [0.4])
    assert acquired(asynchronous, clock, slack=0.5)[0].wait == 10.0
    clock = ManualClock(10**15)
    asleep(clock, [4.0])
    assert acquired(asynchronous, clock)[0].wait == 10.0, "without a slack it goes however late"


def test_an_acquire_of_one_policy_does_the_same_and_goes_late_in_the_end(asleep: Any) -> None:
    clock = ManualClock(10**15)
    with Limiter("memory://", POLICIES, clock=clock) as limiter:
        late = [1.0] * (MOST_MISSED + 3)
        asleep(clock, late)
        with limiter.acquire("p", "s", slack=0.1) as slot:
            assert slot.allowed
        assert len(late) == 2
        assert sum(hit.units for hit in limiter.explain("p", "s").hits) == 1


def test_slots_that_were_missed_count_towards_the_timeout(asleep: Any) -> None:
    clock = ManualClock(10**15)
    with Limiter("memory://", POLICIES, clock=clock) as limiter:
        limiter.decide("p", "s")
        asleep(clock, [3.0])
        with limiter.acquire("p", "s", timeout=10, slack=5) as slot:
            assert slot.wait == 10.0
        asleep(clock, [3.0])
        limiter.schedule("p", "s", not_before=9)
        with pytest.raises(LimitExceeded), limiter.acquire("p", "s", timeout=10, slack=1):
            pass
    with pytest.raises(InvalidValueError, match="slack is a number of seconds"), Limiter("memory://", POLICIES) as one:
        one.acquire("p", "s", slack=-1).__enter__()


async def _both(asynchronous: bool, clock: ManualClock, slack: float | None, ids: str, at: list[float]) -> Any:
    """`acquire` under each of these ids, at these seconds: the slots, in seconds, and the units that are recorded."""
    began = clock.now_us()
    limiter = (AsyncLimiter if asynchronous else Limiter)("memory://", POLICIES, clock=clock)
    hits: list[Any] = []
    for id, seconds in zip(ids, at, strict=True):
        clock.advance_us(round(began + seconds * 1e6) - clock.now_us())
        if isinstance(limiter, AsyncLimiter):
            async with limiter.acquire("q", "s", 2, id, slack=slack) as slot:
                hits.append(slot.hit)
        else:
            with limiter.acquire("q", "s", 2, id, slack=slack) as slot:
                hits.append(slot.hit)
    seen: Any = limiter.usage("q", "s")
    used: int = (await seen if asynchronous else seen)[0].used
    closed = limiter.close()
    if closed is not None:
        await closed
    return [(hit - began) / 1e6 for hit in hits], used


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_same_id_again_goes_in_its_slot_however_late(asleep: Any, asynchronous: bool) -> None:
    clock = ManualClock(10**15)
    asleep(clock, [])
    assert asyncio.run(_both(asynchronous, clock, None, "aba", [0, 1, 5])) == ([0.0, 1.0, 0.0], 4)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_with_a_slack_its_first_slot_stays_used_and_it_takes_another(asleep: Any, asynchronous: bool) -> None:
    clock = ManualClock(10**15)
    asleep(clock, [])
    assert asyncio.run(_both(asynchronous, clock, 0.5, "aa", [0, 0.4])) == ([0.0, 0.0], 2)
    assert asyncio.run(_both(asynchronous, clock, 0.5, "aa", [0, 0.6])) == ([0.0, 0.6], 4)
    # The third finds the second's slot, under the id's second name.
    assert asyncio.run(_both(asynchronous, clock, 0.5, "aaa", [0, 0.6, 1.0])) == ([0.0, 0.6, 0.6], 4)


def test_a_named_slot_that_it_wakes_up_late_for_is_given_back(asleep: Any) -> None:
    clock = ManualClock(10**15)
    asleep(clock, [0.0, 4.0])
    assert asyncio.run(_both(False, clock, 0.5, "ab", [0, 0])) == ([0.0, 4.000001], 4)


def test_a_part_that_is_asked_for_again_leaves_its_slot_used_too(asleep: Any) -> None:
    clock = ManualClock(10**15)
    asleep(clock, [])
    parts = [Attempt("p", "s", id="a"), Attempt("q", "s", 2, id="a")]
    with Limiter("memory://", POLICIES, clock=clock) as limiter:
        for slack, wait in ((0.5, 0), (0.5, 0), (None, 0)):
            with limiter.acquire_all(parts, slack=slack) as slot:
                assert slot.wait == wait
            clock.advance_us(400_000)
        clock.advance_us(200_000)
        with limiter.acquire_all(parts, slack=0.5) as slot:
            assert slot.hits == (10**15 + 10_000_000,) * 2
        assert limiter.usage("q", "s")[0].used == 2


def test_a_slot_whose_answer_was_lost_is_late_by_the_stores_clock(asleep: Any, monkeypatch: Any) -> None:
    clock = ManualClock(10**15)
    asleep(clock, [])
    with Limiter("memory://", POLICIES, clock=clock) as limiter:
        store: Any = limiter._store  # pyright: ignore[reportPrivateUsage]
        store.may_lose_answers = True
        place, lost = store.step, [True]

        def answer(operation: Operation) -> Any:
            slot = place(operation)
            if operation.kind == "schedule" and lost and lost.pop():
                clock.advance_us(2_000_000)
                raise StoreUnknownError("the connection was lost")
            return slot

        monkeypatch.setattr(store, "step", answer)
        with limiter.acquire("q", "s", slack=0.5) as slot:
            assert slot.hit == clock.now_us()
        assert limiter.usage("q", "s")[0].used == 1


def test_an_id_that_has_no_room_for_a_number_is_hashed() -> None:
    assert [patience.numbered("a", number) for number in (0, 1, 12)] == ["a", "a:1", "a:12"]
    names = {patience.numbered("ä" * 256, number) for number in range(3)}
    assert len(names) == 3
    assert {len(name.encode()) for name in names} == {512, 32}
