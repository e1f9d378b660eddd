"""`acquire` asks for instants that others gave back: on a clock that jumps from one instant to the next."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest
from proof.simulator.clock import SimulatedLoop

from capline import AsyncLimiter, Policy

INTERVAL_S = 0.5
CALLS = 300


class Queue:
    """So many callers who wait at once under 1/500ms; with this chance one may be cancelled before its slot was due.

    The slot may have moved by then, so fewer are.
    """

    def __init__(self, waiting: int, chance: float) -> None:
        self.loop = SimulatedLoop()
        self.draw = random.Random(waiting)
        self.limiter = AsyncLimiter("memory://", [Policy("p", ["1/500ms"])], clock=self.loop)
        self.waiting, self.chance, self.waited, self.cancelled = waiting, chance, 0, 0
        self.went: list[tuple[float, float]] = []

    async def _wait(self) -> None:
        asked_s = self.loop.time()
        async with self.limiter.acquire("p", "s"):
            self.went.append((self.loop.time(), asked_s))

    async def _caller(self) -> None:
        while len(self.went) < CALLS:
            self.waited += 1
            wait_s = (await self.limiter.peek("p", "s")).retry_after or 0.0
            waiter = asyncio.create_task(self._wait())
            if self.draw.random() < self.chance:
                await asyncio.wait([waiter], timeout=self.draw.random() * wait_s)
                self.cancelled += waiter.cancel()
            await asyncio.wait([waiter])

    async def _run(self) -> None:
        await asyncio.gather(*(self._caller() for _ in range(self.waiting)))
        await self.limiter.close()

    def run(self) -> None:
        """Until so many calls were made."""
        try:
            asyncio.set_event_loop(self.loop)
            self.loop.run_until_complete(self._run())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()


DEEP = pytest.mark.deep


@pytest.mark.parametrize(
    ("waiting", "chance"), [(4, 0.5), pytest.param(20, 0.9, marks=DEEP), pytest.param(100, 0.8, marks=DEEP)]
)
def test_who_waits_uses_what_others_give_back(waiting: int, chance: float) -> None:
    queue = Queue(waiting, chance)
    queue.run()
    at = [at_s for at_s, _ in queue.went[:CALLS]]
    used = (CALLS - 1) * INTERVAL_S / (at[-1] - at[0])
    assert queue.cancelled / queue.waited > 0.25
    assert used >= 0.98
    # No window is over, by when callers really went, and nobody was passed.
    assert min(later - earlier for earlier, later in pairwise(at)) >= INTERVAL_S - 1.5e-6
    asked = [asked_s for _, asked_s in queue.went]
    assert asked == sorted(asked)
