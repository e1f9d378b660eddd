"""A task's slot: kept by its id, slept for when near, given back or left when missed."""

from collections.abc import Iterator
from typing import Any

import pytest

from capline import Limiter, ManualClock, Policy
from capline.middleware.slots import tasks
from capline.middleware.slots.tasks import MOST_MISSED, TaskSlots
from capline.model.decision import LimitExceeded
from capline.model.errors import CaplineError

SECOND_US = 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100 * SECOND_US)


@pytest.fixture
def limiter(clock: ManualClock) -> Iterator[Limiter]:
    with Limiter("memory://", policies=[Policy("psp", ["1/s"])], clock=clock) as made:
        yield made


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> list[float]:
    seconds: list[float] = []

    def sleep(wait: float) -> None:
        seconds.append(wait)
        clock.advance_us(round(wait * SECOND_US))

    monkeypatch.setattr(tasks.time, "sleep", sleep)
    monkeypatch.setattr(tasks.time, "monotonic", lambda: clock.now_us() / SECOND_US)
    return seconds


def slots(limiter: Any, **options: Any) -> TaskSlots:
    settings: dict[str, Any] = {"subject": "adyen", "cost": 1, "early": 0.5, "late": 0.1, "max_wait": None, **options}
    return TaskSlots(limiter, "psp", **settings)


def wait(of: TaskSlots, key: str, *, may_have_run: bool = False) -> float:
    return of.wait(key, (), {}, may_have_run=may_have_run)


def used(limiter: Limiter) -> int:
    return sum(hit.units for hit in limiter.explain("psp", "adyen").hits)


def test_a_task_comes_back_early_and_sleeps_the_rest(limiter: Limiter, clock: ManualClock, slept: list[float]) -> None:
    one = slots(limiter)
    assert wait(one, "a") == 0
    assert wait(one, "b") == 0.5
    assert wait(one, "b") == 0.5  # the same task, the same slot
    clock.advance_us(SECOND_US // 2)
    assert wait(one, "b") == 0
    assert slept == [0, 0.5]


def test_a_missed_slot_is_given_back_and_another_taken(limiter: Limiter, clock: ManualClock) -> None:
    one = slots(limiter)
    assert [wait(one, key) for key in "abc"] == [0, 0.5, 1.5]
    clock.advance_us(1_200_000)  # b is 200 ms late, beside c's slot in 800 ms
    assert wait(one, "b") == pytest.approx(1.3)
    assert used(limiter) == 3 - 1  # a has left the window, and b's first slot was given back


def test_a_slot_in_which_the_task_may_have_run_stays_used(limiter: Limiter, clock: ManualClock) -> None:
    one = slots(limiter)
    assert wait(one, "a") == 0
    clock.advance_us(200_000)
    assert wait(one, "a", may_have_run=True) == pytest.approx(0.3)
    assert used(limiter) == 2
    clock.advance_us(300_000)
    assert wait(one, "a", may_have_run=True) == 0
    assert not limiter.peek("psp", "adyen")  # in the slot at 101 s; the first, at 100 s, is over


@pytest.mark.parametrize("ahead_us", [-3_600 * SECOND_US, 3_600 * SECOND_US])
def test_how_late_a_task_is_is_told_by_the_stores_clock(
    limiter: Limiter, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, ahead_us: int
) -> None:
    monkeypatch.setattr(limiter, "now_us", lambda: clock.now_us() + ahead_us)  # as a host's that is an hour wrong
    one = slots(limiter)
    assert [wait(one, key) for key in "abc"] == [0, 0.5, 1.5]
    assert wait(one, "a") == 0
    clock.advance_us(1_050_000)
    assert wait(one, "b") == 0  # 50 ms late
    clock.advance_us(1_150_000)
    assert wait(one, "c") == 0  # 200 ms late: it goes in a slot of now, not in that of 102 s
    assert limiter.explain("psp", "adyen").hits[-1].stamp_us == 102_200_000


def test_a_task_that_wakes_up_late_gives_its_slot_back(
    limiter: Limiter, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, late = slots(limiter), [4.0]
    wait(one, "a")

    def slept(seconds: float) -> None:
        clock.advance_us(round((seconds + (late.pop(0) if late and seconds else 0)) * SECOND_US))

    monkeypatch.setattr(tasks.time, "sleep", slept)
    clock.advance_us(SECOND_US // 2)
    assert wait(one, "b") == 0
    assert (clock.now_us(), used(limiter)) == (105 * SECOND_US, 1)  # it went in a slot of then, not in that of 101 s


def test_within_late_it_goes_all_the_same(limiter: Limiter, clock: ManualClock) -> None:
    one = slots(limiter)
    assert [wait(one, key) for key in "ab"] == [0, 0.5]
    clock.advance_us(1_100_000)
    assert wait(one, "b") == 0


def test_after_so_many_missed_slots_it_goes_late(
    limiter: Limiter, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    schedule = limiter.schedule

    def slow(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments[3])
        slot = schedule(*arguments, **options)
        clock.advance_us(SECOND_US)
        return slot

    monkeypatch.setattr(limiter, "schedule", slow)
    assert wait(slots(limiter), "a") == 0
    assert asked == ["a"] * (MOST_MISSED + 1)


def test_an_interrupted_sleep_gives_the_slot_back(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    one = slots(limiter, early=5)
    wait(one, "a")

    def stopped(seconds: float) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(tasks.time, "sleep", stopped)
    with pytest.raises(SystemExit):
        wait(one, "b")
    assert used(limiter) == 1


def test_a_slot_past_max_wait_is_not_taken(limiter: Limiter) -> None:
    one = slots(limiter, max_wait=0.5)
    wait(one, "a")
    with pytest.raises(LimitExceeded, match="limit 1/second is reached"):
        wait(one, "b")
    assert used(limiter) == 1


def test_the_limiter_may_be_made_when_the_task_runs(limiter: Limiter) -> None:
    made: list[Limiter] = []

    def make() -> Limiter:
        made.append(limiter)
        return limiter

    def provider(order: str) -> str:
        return order

    one = slots(make, subject=provider, cost=len)
    assert made == []
    assert one.wait("a", ("s",), {}, may_have_run=False) == 0
    assert made == [limiter]
    assert limiter.peek("psp", "s").remaining == 0


@pytest.mark.parametrize("wrong", [{"early": -1}, {"late": "x"}, {"max_wait": -1}, {"subject": ""}, {"cost": 0}])
def test_bad_settings_are_told_when_it_is_made(limiter: Limiter, wrong: dict[str, Any]) -> None:
    with pytest.raises(CaplineError):
        slots(limiter, **wrong)
    with pytest.raises(CaplineError, match="limiter is a Limiter"):
        slots("redis://")
