"""What only an `AsyncLimiter` has: waits that are cancelled, and a loop that goes on meanwhile."""

import asyncio
import inspect
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.limiter import Door, gone

from capline import AsyncLimiter, Attempt, Limiter, LimitExceeded, ManualClock, Policy
from capline.limiter.aio import SLOTS_A_TURN
from capline.limiter.base import Options
from capline.model.errors import StoreClosedError, StoreUnavailableError
from capline.store.local import memory_units
from capline.store.local.aio import AsyncLocalStore
from capline.store.local.memory import MemoryStore
from capline.store.open import open_async_store, open_store
from capline.store.protocol import Operation

POLICY = Policy("p", ["1/h"])


class SlowStore(AsyncLocalStore):
    """Takes a slot at once, and answers when it is let; gives back when it is let."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.let = asyncio.Event()
        self.taken = asyncio.Event()

    async def step(self, operation: Operation, /) -> Any:
        if operation.kind == "refund":
            await self.let.wait()
        answer = await super().step(operation)
        if operation.kind == "schedule":
            self.taken.set()
            await self.let.wait()
        return answer


def with_a_door(store: Any) -> Any:
    """An asynchronous store that can be shut."""
    door: Any = Door(store)
    return AsyncLocalStore(door)


def with_store(kind: Any) -> tuple[AsyncLimiter, Any]:
    limiter: Any = AsyncLimiter("memory://", [POLICY])
    store = kind(limiter._store.store)
    limiter._store = store
    return limiter, store


async def acquire(limiter: AsyncLimiter) -> None:
    async with limiter.acquire("p", "s"):
        pass


async def hits(limiter: AsyncLimiter) -> list[int]:
    return [hit.units for hit in (await limiter.explain("p", "s")).hits]


async def test_a_cancelled_wait_gives_its_slot_back() -> None:
    async with AsyncLimiter("memory://", [POLICY]) as limiter:
        await limiter.decide("p", "s")
        task = asyncio.create_task(acquire(limiter))
        await asyncio.sleep(0.001)
        assert await hits(limiter) == [1, 1]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await hits(limiter) == [1, 0]


async def test_a_timeout_around_the_wait_gives_its_slot_back() -> None:
    async with AsyncLimiter("memory://", [POLICY]) as limiter:
        await limiter.decide("p", "s")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await acquire(limiter)
        assert await hits(limiter) == [1, 0]


async def test_a_slot_whose_answer_is_still_on_its_way_is_given_back_too() -> None:
    limiter, store = with_store(SlowStore)
    task = asyncio.create_task(acquire(limiter))
    await store.taken.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    store.let.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await hits(limiter) == [0]


async def test_a_store_of_this_machine_that_is_away_while_it_is_awaited_is_asked_again() -> None:
    class Away(AsyncLocalStore):
        errors = 1

        async def step(self, operation: Operation, /) -> Any:
            if self.errors:
                self.errors -= 1
                answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_soon(answer.set_exception, StoreUnavailableError("away"))
                return await answer
            return await super().step(operation)

    limiter, _ = with_store(Away)
    await acquire(limiter)
    assert await hits(limiter) == [1]


def test_slots_that_are_free_at_once_give_the_loop_its_turn_now_and_then() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with AsyncLimiter("memory://", [Policy("p", ["100000/h"])]) as limiter:
            await acquire(limiter)
            counting = asyncio.create_task(others())
            for _ in range(4 * SLOTS_A_TURN):
                await acquire(limiter)
            counting.cancel()

    asyncio.run(main())
    assert 4 <= turns <= 5


async def test_cancelling_again_while_the_slot_is_given_back_changes_nothing() -> None:
    limiter, store = with_store(SlowStore)
    store.let.set()
    await limiter.decide("p", "s")
    task = asyncio.create_task(acquire(limiter))
    await store.taken.wait()
    await asyncio.sleep(0.001)
    store.let.clear()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.001)
    assert not task.done()
    store.let.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await hits(limiter) == [1, 0]


async def test_a_slot_that_cannot_be_given_back_does_not_hide_the_cancelling() -> None:
    limiter, store = with_store(with_a_door)
    await limiter.decide("p", "s")
    task = asyncio.create_task(acquire(limiter))
    await asyncio.sleep(0.01)
    store.store.down = gone()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert any("the slot was not given back: nobody is there" in note for note in caught.value.__notes__)


def test_an_interrupted_sleep_is_not_hidden_by_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter: Any = Limiter("memory://", [POLICY])
    door = limiter._store = Door(limiter._store)
    limiter.decide("p", "s")

    def interrupted(_seconds: float) -> None:
        door.down = gone()
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught, limiter.acquire("p", "s"):
        pass
    assert "the slot was not given back: nobody is there" in caught.value.__notes__


async def test_a_wait_past_the_timeout_takes_nothing_and_what_happens_inside_is_kept() -> None:
    async with AsyncLimiter("memory://", [POLICY]) as limiter:
        with pytest.raises(ZeroDivisionError):
            async with limiter.acquire("p", "s"):
                raise ZeroDivisionError
        with pytest.raises(LimitExceeded, match="1/hour"):
            async with limiter.acquire("p", "s", timeout=1):
                pass
        assert await hits(limiter) == [1]


async def test_an_outage_while_a_slot_is_taken_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capline.limiter.patience.OUTAGE_S", 0.1)

    limiter, store = with_store(with_a_door)
    store.store.down = gone()
    with pytest.raises(StoreUnavailableError):
        await acquire(limiter)


async def test_the_loop_goes_on_during_a_large_batch(tmp_path: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async with AsyncLimiter(f"lmdb://{tmp_path}", [Policy("p", ["3/day"])], clock=ManualClock(10**15)) as limiter:
        counting = asyncio.create_task(count())
        many = await limiter.decide_many("p", [str(i) for i in range(50_000)])
        counting.cancel()
        assert many.allowed.all()
        assert turns > 10
        few = await limiter.decide_many("p", np.arange(10))
        assert few.allowed.all()


class HeldStore:
    """Stops the store's batches inside of their transaction, where it holds its lock, until they are let."""

    BOUND_S = 60  # reached only where the loop stands still

    def __init__(self, limiter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        store = limiter._store.store
        self.inside, self.let = threading.Event(), threading.Event()
        self.was_let = False
        place, step = (memory_units, "unit_step") if isinstance(store, MemoryStore) else (store, "_batch_answers")
        self._rows = getattr(place, step)
        monkeypatch.setattr(place, step, self.rows)

    def rows(self, *args: Any, **named: Any) -> Any:
        self.inside.set()
        self.was_let = self.let.wait(self.BOUND_S)
        return self._rows(*args, **named)

    async def batch(self, limiter: AsyncLimiter) -> asyncio.Task[Any]:
        """A batch that has the lock now."""
        task = asyncio.create_task(limiter.decide_many("p", ["a", "b"], receipt="r"))
        assert await asyncio.to_thread(self.inside.wait, self.BOUND_S)
        return task


LOCAL_STORES = pytest.mark.parametrize("url", ["memory://", "lmdb://{}"])


@LOCAL_STORES
async def test_the_loop_goes_on_while_single_verbs_wait_for_a_batch(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = AsyncLimiter(url.format(tmp_path), [Policy("p", ["9/h"]), Policy("q", ["1/h"])])
    await limiter.peek_all([Attempt("p", "a"), Attempt("q", "a")])  # the file knows the names of the logs
    held = HeldStore(limiter, monkeypatch)
    batch = await held.batch(limiter)
    verbs: list[Any] = [
        limiter.decide("p", "a"),
        limiter.decide("p", "a", cost=2),
        limiter.decide("p", "a", id="i"),
        limiter.decide("p", "a", zone="Europe/Berlin"),
        limiter.peek("p", "a"),
        limiter.schedule("p", "a"),
        limiter.refund("p", "a", 1),
        limiter.decide_all([Attempt("p", "a"), Attempt("q", "a")]),
        limiter.peek_all([Attempt("p", "a"), Attempt("q", "a")]),
        limiter.explain("p", "a"),
        limiter.erase("z"),
    ]
    waiting = [asyncio.create_task(verb) for verb in verbs]
    for _ in range(100):
        await asyncio.sleep(0)
    assert not batch.done()
    assert not any(task.done() for task in waiting)
    held.let.set()
    await asyncio.gather(batch, *waiting)
    assert held.was_let
    await limiter.close()


@LOCAL_STORES
async def test_the_loop_goes_on_beside_a_batch_whose_caller_was_cancelled(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = AsyncLimiter(url.format(tmp_path), [Policy("p", ["2/h"])])
    held = HeldStore(limiter, monkeypatch)
    batch = await held.batch(limiter)
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    waiting = [asyncio.create_task(limiter.decide("p", "a")) for _ in range(2)]
    closing = asyncio.create_task(limiter.close())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    held.let.set()
    assert [(await task).allowed for task in waiting] == [True, False]  # the batch took one
    await closing
    assert held.was_let


class Watched(list[Any]):
    """A list that notes in which thread it is read."""

    def __iter__(self) -> Any:
        self.thread = threading.get_ident()
        return super().__iter__()


async def test_many_rows_are_checked_in_a_thread_and_few_where_they_are_awaited() -> None:
    async with AsyncLimiter("memory://", [POLICY]) as limiter:
        for ask in (limiter.decide_many, limiter.peek_many):
            few, many = Watched(range(10)), Watched(range(5000))
            await ask("p", few)
            await ask("p", many)
            assert few.thread == threading.get_ident() != many.thread
        attempts = Watched([Attempt("p", i) for i in range(5000)])
        assert len(await limiter.decide_batch(attempts)) == 5000
        assert attempts.thread != threading.get_ident()


@LOCAL_STORES
async def test_aclosing_closes_it(url: str, tmp_path: Path) -> None:
    async with aclosing(AsyncLimiter(url.format(tmp_path), [POLICY])) as limiter:
        assert await limiter.decide("p", "a")
    with pytest.raises(StoreClosedError, match="was closed"):
        await limiter.decide("p", "a")
    await limiter.aclose()


def test_it_has_every_verb_and_option_of_the_other() -> None:
    public = [name for name in dir(Limiter) if not name.startswith("_") or name == "__init__"]
    awaited = [name for name in dir(AsyncLimiter) if not name.startswith("_") or name == "__init__"]
    assert sorted([*public, "aclose"]) == awaited
    for name in public:
        mine, other = getattr(Limiter, name), getattr(AsyncLimiter, name)
        if callable(mine):
            assert list(inspect.signature(mine).parameters) == list(inspect.signature(other).parameters), name
    named_apart = {"url", "policies", "namespace", "token", "config"}
    assert set(inspect.signature(Limiter).parameters) - named_apart == set(Options.__annotations__)


def test_its_clock_is_awaited_and_the_stores_own_unless_given(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncLimiter("memory://", clock=ManualClock(7)) as limiter:
            assert await limiter.now_us() == 7
        for url in ("memory://", f"lmdb://{tmp_path}"):
            async with aclosing(open_async_store(url)) as store:
                assert await store.now_us() > 10**15

    asyncio.run(main())
    for url in ("memory://", f"lmdb://{tmp_path}"):
        store = open_store(url)
        assert store.now_us() > 10**15
        store.close()


def test_from_file_takes_the_same_options(tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text("namespace: marketing\npolicies: {p: {limits: [1/day]}}\n", encoding="utf-8")

    async def main() -> None:
        async with AsyncLimiter.from_file(path, "memory://", on_store_error="deny", deny_cache=5) as limiter:
            assert [bool(await limiter.decide("p", "s")) for _ in range(2)] == [True, False]
            assert (await limiter.decide("p", "s")).origin == "deny-cache"
            assert limiter.namespace == "marketing"
            path.write_text("namespace: marketing\npolicies: {p: {limits: [2/day]}}\n", encoding="utf-8")
            assert limiter.reload()
            assert await limiter.decide("p", "s")

    asyncio.run(main())
    with Limiter.from_file(path, "memory://", subject_key=b"x" * 16) as limiter:
        limiter.decide("p", "s")
        assert str(limiter.policies["p"].limits[0]) == "2/day"
