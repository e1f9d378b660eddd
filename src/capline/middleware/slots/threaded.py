"""`acquire` of a `Limiter` for a coroutine: the store is asked in a thread, the wait is the loop's.

The rule: a cancelled coroutine gives its slot back, also one that the thread takes only after the cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from capline.limiter.arguments.checks import refusal_text
from capline.limiter.patience import WaitBudget
from capline.model.decision import LimitExceeded
from capline.model.errors import StoreError

if TYPE_CHECKING:
    from capline.limiter.limiter import Limiter
    from capline.model.decision import Decision
    from capline.model.subject import Subject


@asynccontextmanager
async def acquired(
    limiter: Limiter,
    policy: str,
    subject: Subject,
    cost: int = 1,
    *,
    timeout: float | None = None,  # noqa: ASYNC109 - how far a slot may be, as in `acquire`
    slack: float | None = None,
) -> AsyncGenerator[Decision]:
    """`Limiter.acquire`, awaited, without blocking the loop."""
    loop = asyncio.get_running_loop()
    patience = WaitBudget(timeout, may_lose_answers=True, slack=slack)

    def given_back(slot: Decision) -> Awaitable[bool]:
        return loop.run_in_executor(None, partial(limiter.refund, policy, subject, slot.hit, cost))

    def given_back_late(slot: Decision) -> None:
        if not slot.allowed:
            return
        try:
            given_back(slot)
        except RuntimeError:  # the loop ends, and takes no more work for threads
            limiter.refund(policy, subject, slot.hit, cost)

    while True:
        slot = await _taken(patience, partial(limiter.schedule, policy, subject, cost), given_back_late)
        if not slot.allowed:
            raise LimitExceeded(refusal_text(policy, subject, slot), slot)
        try:
            await asyncio.sleep(slot.wait)
        except BaseException:
            given_back(slot)
            raise
        if not patience.is_late(slot):
            break
        await given_back(slot)
    yield slot


async def _taken(
    patience: WaitBudget, schedule: Callable[..., Decision], give_back: Callable[[Decision], object]
) -> Decision:
    """The slot that a thread takes, once the store answers."""
    loop = asyncio.get_running_loop()
    while True:
        patience.asks()
        pending = loop.run_in_executor(None, partial(schedule, patience.id(None), max_wait=patience.left()))
        try:
            return await asyncio.shield(pending)
        except StoreError as error:
            await asyncio.sleep(patience.pause(error))
        except asyncio.CancelledError:
            pending.add_done_callback(lambda done: None if done.exception() else give_back(done.result()))
            raise
