"""`limited`: functions that are called in slots of their own."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from capline import AsyncLimiter, Limiter, ManualClock, Policy
from capline.middleware.decorator import limited
from capline.model.decision import LimitExceeded
from capline.model.errors import CaplineError
from capline.store.local.memory import MemoryStore
from capline.store.protocol import Operation

POLICY = Policy("psp", ["2/h"])


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    with Limiter("memory://", policies=[POLICY], clock=ManualClock(1_000_000)) as made:
        yield made


def used(limiter: Limiter, subject: str) -> int:
    return sum(hit.units for hit in limiter.explain("psp", subject).hits)


async def until(truth: Callable[[], bool]) -> None:
    for _ in range(60_000):
        if truth():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come true within 60 s")


def test_a_function_is_called_in_its_slot_and_not_at_all_past_the_timeout(limiter: Limiter) -> None:
    called: list[int] = []

    @limited(limiter, "psp", subject="adyen", timeout=5)
    def pay(amount: int, *, currency: str = "EUR") -> str:
        """Pay."""
        called.append(amount)
        return f"{amount} {currency}"

    assert (pay(5), pay(6, currency="USD")) == ("5 EUR", "6 USD")
    with pytest.raises(LimitExceeded, match="limit 2/hour is reached"):
        pay(7)
    assert called == [5, 6]
    assert used(limiter, "adyen") == 2
    assert (pay.__name__, inspect.getdoc(pay)) == ("pay", "Pay.")


def test_subject_and_cost_may_be_of_the_arguments(limiter: Limiter) -> None:
    def payer(who: str, n: int) -> str:
        return who

    def amount(who: str, n: int) -> int:
        return n

    @limited(limiter, "psp", subject=payer, cost=amount)
    def pay(who: str, n: int) -> int:
        return n

    pay("a", 2)
    pay("b", 1)
    assert [used(limiter, subject) for subject in "ab"] == [2, 1]


def test_it_sleeps_until_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = ManualClock(1_000_000), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance_us(round(seconds * 1e6))

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: clock.now_us() / 1e6)
    with Limiter("memory://", policies=[POLICY], clock=clock) as limiter:
        pay = limited(limiter, "psp", subject="s")(lambda: None)
        for _ in range(3):
            pay()
    # The first slot is now; half-way to the third it asks for an earlier one.
    assert [round(seconds) for seconds in slept] == [0, 1800, 1800]


def test_what_the_function_raises_is_the_callers_and_its_slot_is_used(limiter: Limiter) -> None:
    @limited(limiter, "psp", subject="s")
    def pay() -> None:
        raise KeyError("declined")

    with pytest.raises(KeyError, match="declined"):
        pay()
    assert used(limiter, "s") == 1


def test_an_async_function_that_is_cancelled_while_it_waits_gives_its_slot_back() -> None:
    async def main() -> tuple[list[int], int]:
        called: list[int] = []
        async with AsyncLimiter("memory://", policies=[POLICY]) as limiter:

            @limited(limiter, "psp", subject="s", cost=2)
            async def pay(amount: int) -> int:
                called.append(amount)
                return amount

            assert await pay(5) == 5
            assert inspect.iscoroutinefunction(pay)
            task = asyncio.create_task(pay(6))
            await asyncio.sleep(0.01)
            assert sum(hit.units for hit in (await limiter.explain("psp", "s")).hits) == 4
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return called, sum(hit.units for hit in (await limiter.explain("psp", "s")).hits)

    assert asyncio.run(main()) == ([5], 2)


def test_an_async_function_waits_under_a_plain_limiter_and_its_loop_goes_on(limiter: Limiter) -> None:
    @limited(limiter, "psp", subject="s", timeout=5)
    async def pay(amount: int) -> int:
        await asyncio.sleep(0)
        return amount

    async def main() -> None:
        assert inspect.iscoroutinefunction(pay)
        assert [await pay(5), await pay(6)] == [5, 6]
        with pytest.raises(LimitExceeded, match="limit 2/hour is reached"):
            await pay(7)

    asyncio.run(main())
    assert used(limiter, "s") == 2


def test_one_that_is_cancelled_under_a_plain_limiter_gives_its_slot_back(limiter: Limiter) -> None:
    @limited(limiter, "psp", subject="s", cost=2)
    async def pay() -> None: ...

    async def main() -> None:
        await pay()
        task = asyncio.create_task(pay())
        await until(lambda: used(limiter, "s") == 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())  # it ends when its threads have ended
    assert used(limiter, "s") == 2


async def test_a_slot_that_the_thread_takes_after_the_cancellation_is_given_back(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on, schedule = threading.Event(), threading.Event(), limiter.schedule

    def slow(*arguments: Any, **options: Any) -> Any:
        asked.set()
        assert go_on.wait(60)
        taken.append(schedule(*arguments, **options))
        return taken[0]

    taken: list[Any] = []
    monkeypatch.setattr(limiter, "schedule", slow)
    pay = limited(limiter, "psp", subject="s")(_nothing)

    task = asyncio.create_task(pay())
    assert await asyncio.to_thread(asked.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await until(lambda: bool(taken))
    await until(lambda: not used(limiter, "s"))


async def _nothing() -> None: ...


def test_a_plain_function_under_an_async_limiter_is_awaited() -> None:
    async def main() -> list[int]:
        async with AsyncLimiter("memory://", policies=[POLICY]) as limiter:

            @limited(limiter, "psp", subject="s", timeout=5)
            def pay(amount: int) -> int:
                return amount

            paid = [await pay(5), await pay(6)]
            with pytest.raises(LimitExceeded):
                await pay(7)
            return paid

    assert asyncio.run(main()) == [5, 6]


def test_a_generator_is_refused_at_once(limiter: Limiter) -> None:
    def pieces() -> Iterator[int]:
        yield 1

    with pytest.raises(CaplineError, match="pieces is a generator"):
        limited(limiter, "psp", subject="s")(pieces)


@pytest.mark.parametrize("wrong", [{"subject": ""}, {"cost": 0}, {"timeout": -1}])
def test_bad_settings_are_reported_when_it_is_made(limiter: Limiter, wrong: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"subject": "s", **wrong}
    with pytest.raises(CaplineError):
        limited(limiter, "psp", **settings)


@pytest.mark.parametrize("kind", ["called", "in a thread", "awaited"])
@pytest.mark.parametrize(("slack", "used_in_the_end", "asked"), [(0.5, 1, 2), (None, 1, 1)])
def test_a_call_that_wakes_up_later_than_the_slack_takes_another_slot(
    monkeypatch: pytest.MonkeyPatch, kind: str, slack: float | None, used_in_the_end: int, asked: int
) -> None:
    clock, late, step = ManualClock(10**15), [4.0], MemoryStore.step

    def answered(store: MemoryStore, operation: Operation) -> Any:
        answer = step(store, operation)
        slept(0)  # as its slot is now, it is late for it where the answer is
        return answer

    def slept(seconds: float) -> None:
        clock.advance_us(round((seconds + (late.pop() if late else 0)) * 1e6))

    async def awaited(seconds: float) -> None:
        slept(seconds)

    monkeypatch.setattr(MemoryStore, "step", answered)
    monkeypatch.setattr("time.monotonic", lambda: clock.now_us() / 1e6)
    monkeypatch.setattr("time.sleep", slept)
    monkeypatch.setattr("asyncio.sleep", awaited)

    async def main() -> list[int]:
        limiter = (AsyncLimiter if kind == "awaited" else Limiter)("memory://", [POLICY], clock=clock)
        if kind == "called":
            limited(limiter, "psp", subject="s", slack=slack)(lambda: None)()  # pyright: ignore[reportArgumentType]
        else:

            async def pay() -> None: ...

            await limited(limiter, "psp", subject="s", slack=slack)(pay)()  # pyright: ignore[reportArgumentType]
        why: Any = limiter.explain("psp", "s")
        hits: Any = (await why if kind == "awaited" else why).hits
        closed = limiter.close()
        if closed is not None:
            await closed
        return [hit.units for hit in hits]

    units = asyncio.run(main())
    assert (sum(units), len(units)) == (used_in_the_end, asked)


def test_a_wrong_slack_is_told_when_it_is_made(limiter: Limiter) -> None:
    with pytest.raises(CaplineError, match="slack is a number of seconds"):
        limited(limiter, "psp", subject="s", slack=-1)
