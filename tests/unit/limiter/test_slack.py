"""Who wakes up later than the slack after its slot gives it back and takes another; sync and async."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from capline import AsyncLimiter, Attempt, InvalidValueError, Limiter, LimitExceeded, ManualClock, Policy
from capline.limiter import patience
from capline.limiter.patience import MOST_MISSED

if TYPE_CHECKING:
    from collections.abc import Callable

POLICIES = (Policy("p", ["1/10s"]), Policy("q", ["5/10s"]))
PARTS = [Attempt("p", "s"), Attempt("q", "s", 2)]


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[ManualClock, list[float]], None]:
    """Sleeping advances the clock, by so many seconds too much the first times."""

    def fake(clock: ManualClock, late: list[float]) -> None:
        def slept(seconds: float) -> None:
            clock.advance_us(round((seconds + (late.pop(0) if late else 0)) * 1e6))

        async def awaited(seconds: float) -> None:
            slept(seconds)

        monkeypatch.setattr(patience.time, "monotonic", lambda: clock.now_us() / 1e6)
        monkeypatch.setattr("capline.limiter.slots.time.sleep", slept)
        monkeypatch.setattr("capline.limiter.aio_slots.asyncio.sleep", awaited)

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
