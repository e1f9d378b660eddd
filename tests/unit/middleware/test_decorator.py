"""`limited`: functions that are called in slots of their own."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from capline import AsyncLimiter, Limiter, ManualClock, Policy
from capline.middleware.decorator import limited
from capline.model.errors import CaplineError, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterator

POLICY = Policy("psp", ["2/h"])


@pytest.fixture
def limiter() -> Iterator[Limiter]:
    with Limiter("memory://", policies=[POLICY], clock=ManualClock(1_000_000)) as made:
        yield made


def used(limiter: Limiter, subject: str) -> int:
    return sum(hit.units for hit in limiter.explain("psp", subject).hits)


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


def test_it_sleeps_until_the_slot(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("capline.limiter.limiter.time.sleep", slept.append)
    pay = limited(limiter, "psp", subject="s")(lambda: None)
    for _ in range(3):
        pay()
    assert [round(seconds) for seconds in slept] == [0, 0, 3600]


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


def test_a_function_of_the_wrong_kind_is_refused_at_once(limiter: Limiter) -> None:
    async def later() -> None: ...

    def pieces() -> Iterator[int]:
        yield 1

    async def main() -> None:
        async with AsyncLimiter("memory://", policies=[POLICY]) as other:
            wrong: Any = limited(other, "psp", subject="s")
            with pytest.raises(CaplineError, match="is not async: limit it by a Limiter"):
                wrong(test_subject_and_cost_may_be_of_the_arguments)

    asyncio.run(main())
    with pytest.raises(CaplineError, match="is async: limit it by an AsyncLimiter"):
        limited(limiter, "psp", subject="s")(later)
    with pytest.raises(CaplineError, match="pieces is a generator"):
        limited(limiter, "psp", subject="s")(pieces)


@pytest.mark.parametrize("wrong", [{"subject": ""}, {"cost": 0}, {"timeout": -1}])
def test_bad_settings_are_reported_when_it_is_made(limiter: Limiter, wrong: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"subject": "s", **wrong}
    with pytest.raises(CaplineError):
        limited(limiter, "psp", **settings)
