"""`acquire` of a `Limiter` for a coroutine: what the end of its loop does to a slot."""

import asyncio
import threading
from typing import Any

import pytest

from capline import Limiter, ManualClock, Policy
from capline.middleware.slots.threaded import acquired
from capline.model.decision import Decision


def test_a_slot_that_comes_after_the_end_of_the_loop_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter("memory://", [Policy("psp", ["1/day"])], clock=ManualClock(1_763_700_000_000_000))
    asked, answered = threading.Event(), threading.Event()
    schedule = limiter.schedule

    def late(*words: Any, **named: Any) -> Decision:
        asked.set()
        assert answered.wait(60)
        return schedule(*words, **named)

    async def call() -> None:
        async with acquired(limiter, "psp", "adyen"):
            pass

    monkeypatch.setattr(limiter, "schedule", late)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        end = loop.shutdown_default_executor

        async def ended(*words: Any) -> None:  # Python 3.12 and later name a timeout
            answered.set()  # once the loop runs again, it takes no more work for threads
            await end(*words)

        monkeypatch.setattr(loop, "shutdown_default_executor", ended)

        async def leave_it() -> asyncio.Task[None]:
            task = asyncio.create_task(call())
            await asyncio.to_thread(asked.wait, 60)
            return task

        task = runner.run(leave_it())
    assert task.cancelled()
    assert limiter.peek("psp", "adyen").allowed
