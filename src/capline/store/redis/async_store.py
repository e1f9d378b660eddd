"""`redis://` and its kin, awaited: `Verbs` and `Maintenance` driven by the asynchronous transport.

Decisions of one turn of the event loop are sent as one batch. The first one schedules the send for the end of the turn,
which costs no latency: an idle loop gets there at once. A decision that is alone in its turn is sent alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from capline.model.errors import CaplineError, StoreClosedError
from capline.store.protocol import StoreAttempt
from capline.store.redis.io.aio import AsyncTransport
from capline.store.redis.maintenance import Maintenance
from capline.store.redis.scripting.requests import DECIDE, PEEK, PLACE
from capline.store.redis.session import Session
from capline.store.redis.verbs import Verbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.policy import BoundPolicy
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.protocol import Batch, Merge, Page, Recorded
    from capline.store.redis.io.url import Settings
    from capline.store.redis.io.wire import Reply, Steps
    from capline.store.redis.scripting.compiled_rule import RedisRule
    from capline.store.redis.scripting.scripts import Call
    from capline.window.merge import Merged

__all__ = ["AsyncRedisStore"]

_T = TypeVar("_T")
_Waiting = list[tuple[StoreAttempt, "asyncio.Future[Decision]"]]


class AsyncRedisStore:
    """See `AsyncStore`. Of one event loop at a time."""

    may_lose_answers = True

    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self._session = Session(settings, clock)
        self._verbs = Verbs(self._session)
        self._maintenance = Maintenance(self._session)
        self._transport = AsyncTransport(settings)
        self._waiting: _Waiting = []
        self._tasks: set[asyncio.Task[None]] = set()

    def compiled(self, rule: BoundPolicy) -> RedisRule:
        """See `AsyncStore`."""
        return self._session.compiled(rule)

    async def _drive(self, steps: Steps[_T]) -> _T:
        if self._transport.closed:
            raise StoreClosedError("this store is closed; make a new limiter")
        return await self._transport.drive(steps)

    async def decide(self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """See `AsyncStore`; those of one turn of the loop are one batch."""
        attempt = StoreAttempt(compiled, subject, cost, fingerprint)
        mine: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._waiting.append((attempt, mine))
        if len(self._waiting) > 1:
            return await mine
        try:
            await asyncio.sleep(0)
        except BaseException:
            mine.cancel()
            self._send_turn()
            raise
        if len(self._waiting) > 1:
            self._send_turn()
            return await mine
        self._waiting = []
        return await self._one(compiled, subject, DECIDE, cost, fingerprint)

    def _send_turn(self) -> None:
        """Decide all that wait and were not cancelled.

        In a task of its own, so that a caller cancelled later cancels nobody else.
        """
        turn = [(attempt, waiter) for attempt, waiter in self._waiting if not waiter.cancelled()]
        self._waiting = []
        if turn:
            task = asyncio.create_task(self._answer(turn))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(
        self,
        compiled: RedisRule,
        subject: Subject,
        mode: int,
        cost: int,
        fingerprint: int,
        slot: tuple[int, int] = (-1, 0),
    ) -> Decision:
        outcome = await self._ask(*self._verbs.one(compiled, subject, mode, cost, fingerprint, slot))
        return self._verbs.one_answer(outcome, compiled, cost, mode)

    async def _ask(self, call: Call, replicas: int = 0) -> Reply | CaplineError:
        return await self._drive(self._verbs.alone(call, replicas))

    async def _answer(self, turn: _Waiting) -> None:
        """Decide all attempts of one turn, and wake those that still wait."""
        try:
            answers: Sequence[Decision | CaplineError | BaseException] = await self._drive(
                self._verbs.decide_batch([attempt for attempt, _ in turn])
            )
        except BaseException as error:  # noqa: BLE001 - every waiter gets it, whatever it is
            answers = [error] * len(turn)
        for (_, waiter), answer in zip(turn, answers, strict=True):
            if waiter.done():
                continue
            if isinstance(answer, BaseException):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)

    async def peek(self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """See `AsyncStore`."""
        return await self._one(compiled, subject, PEEK, cost, fingerprint)

    async def place(
        self,
        compiled: RedisRule,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        """See `AsyncStore`."""
        slot = (-1 if max_wait_us is None else max_wait_us, not_before_us)
        return await self._one(compiled, subject, PLACE, cost, fingerprint, slot)

    async def refund(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        """See `AsyncStore`."""
        outcome = await self._ask(self._verbs.refund_call(compiled, subject, stamp_us, cost))
        return self._verbs.given_back(outcome, compiled)

    async def decide_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """See `AsyncStore`; across slots of a cluster one slot after the other."""
        return await self._drive(self._verbs.decide_all(attempts))

    async def peek_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """See `AsyncStore`; across slots of a cluster each in its own moment."""
        return await self._drive(self._verbs.peek_all(attempts))

    async def decide_batch(self, attempts: Sequence[StoreAttempt], /) -> list[Decision | CaplineError]:
        """See `AsyncStore`."""
        return await self._drive(self._verbs.decide_batch(attempts))

    async def decide_many(self, batch: Batch) -> Decisions:
        """See `AsyncStore`."""
        return await self._drive(self._verbs.many(batch, DECIDE))

    async def peek_many(self, batch: Batch) -> Decisions:
        """See `AsyncStore`."""
        return await self._drive(self._verbs.many(batch, PEEK))

    async def refund_many(
        self, compiled: RedisRule, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        """See `AsyncStore`."""
        return await self._drive(self._verbs.refund_many(compiled, subjects, stamps_us, cost))

    async def recorded(self, compiled: RedisRule, subject: Subject) -> list[list[Recorded]]:
        """See `AsyncStore`."""
        return await self._drive(self._maintenance.recorded(compiled, subject))

    async def merge(self, merges: Sequence[Merge], /) -> list[Merged | CaplineError]:
        """See `AsyncStore`."""
        return await self._drive(self._maintenance.merge(merges))

    async def scan(self, compiled: Sequence[RedisRule], after: Any = None) -> Page:
        """See `AsyncStore`; some 200 keys a page."""
        return await self._drive(self._maintenance.scan(compiled, after))

    async def erase(self, compiled: Sequence[RedisRule], subject: Subject) -> int:
        """See `AsyncStore`."""
        return await self._drive(self._maintenance.erase(compiled, subject))

    async def sweep(self) -> int:
        """See `AsyncStore`."""
        return await self._drive(self._maintenance.sweep())

    def stats(self) -> dict[str, int]:
        """See `Store`; a server has its own."""
        return {}

    async def now_us(self) -> int:
        """See `AsyncStore`."""
        return await self._drive(self._maintenance.now_us())

    async def close(self) -> None:
        """See `AsyncStore`."""
        await self._transport.close()
