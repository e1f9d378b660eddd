"""`redis://` and the other server URLs, awaited: the verbs, driven by the asynchronous transport.

Decisions of one turn of the event loop are sent as one batch. The first one schedules the send for the end of the turn,
which costs no latency: an idle loop gets there at once. A decision that is alone in its turn is sent alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from capline.model.errors import CaplineError, StoreClosedError
from capline.store.protocol import AsyncStore, StoreAttempt
from capline.store.redis.batch_verbs import BatchVerbs
from capline.store.redis.io.aio import AsyncTransport
from capline.store.redis.joint_verbs import JointVerbs
from capline.store.redis.maintenance import Maintenance
from capline.store.redis.scripting.requests import CHARGE, DECIDE, PEEK, RESERVE, SCHEDULE
from capline.store.redis.servers import ask_servers
from capline.store.redis.session import Session
from capline.store.redis.verbs import Verbs
from capline.support.override import override

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.policy import BoundPolicy
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.protocol import Batch, Merge, Page
    from capline.store.redis.io.url import Settings
    from capline.store.redis.io.wire import Reply, Steps
    from capline.store.redis.scripting.compiled_rule import RedisRule
    from capline.store.redis.scripting.scripts import Call
    from capline.window.log import Hit
    from capline.window.merge import Merged

__all__ = ["AsyncRedisStore"]

_T = TypeVar("_T")
_Waiting = list[tuple[StoreAttempt, "asyncio.Future[Decision]"]]


class AsyncRedisStore(AsyncStore):
    """Logs on Redis or Valkey, awaited. Of one event loop at a time."""

    may_lose_answers = True

    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self._session = Session(settings, clock)
        self._verbs = Verbs(self._session)
        self._joint = JointVerbs(self._session)
        self._batches = BatchVerbs(self._session)
        self._maintenance = Maintenance(self._session)
        self._transport = AsyncTransport(settings)
        self._waiting: _Waiting = []
        self._tasks: set[asyncio.Task[None]] = set()

    @override
    def compiled(self, rule: BoundPolicy) -> RedisRule:
        return self._session.compiled(rule)

    async def _drive(self, steps: Steps[_T]) -> _T:
        if self._transport.closed:
            raise StoreClosedError("this store is closed; make a new limiter")
        return await self._transport.drive(steps)

    @override
    async def decide(self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """Those of one turn of the loop are one batch."""
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
                self._batches.decide_batch([attempt for attempt, _ in turn])
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

    @override
    async def peek(self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return await self._one(compiled, subject, PEEK, cost, fingerprint)

    @override
    async def charge(self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return await self._one(compiled, subject, CHARGE, cost, fingerprint)

    @override
    async def settle(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int) -> bool:
        outcome = await self._ask(*self._verbs.settle_call(compiled, subject, stamp_us, cost))
        return self._verbs.settled(outcome, compiled, cost)

    @override
    async def reserve(
        self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int, ttl_us: int
    ) -> Decision:
        outcome = await self._ask(*self._verbs.reserve_call(compiled, subject, cost, fingerprint, ttl_us))
        return self._verbs.one_answer(outcome, compiled, cost, RESERVE)

    @override
    async def commit(self, compiled: RedisRule, subject: Subject, stamp_us: int) -> bool:
        outcome = await self._ask(*self._verbs.commit_call(compiled, subject, stamp_us))
        return self._verbs.committed(outcome, compiled)

    @override
    async def schedule(
        self,
        compiled: RedisRule,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        slot = (-1 if max_wait_us is None else max_wait_us, not_before_us)
        return await self._one(compiled, subject, SCHEDULE, cost, fingerprint, slot)

    @override
    async def refund(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        outcome = await self._ask(self._verbs.refund_call(compiled, subject, stamp_us, cost))
        return self._verbs.given_back(outcome, compiled)

    @override
    async def decide_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """Across slots of a cluster one slot after the other."""
        return await self._drive(self._joint.decide_all(attempts))

    @override
    async def peek_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """Across slots of a cluster each in its own moment."""
        return await self._drive(self._joint.peek_all(attempts))

    @override
    async def schedule_all(
        self, attempts: Sequence[StoreAttempt], max_wait_us: int | None, not_before_us: int = 0, /
    ) -> Joint:
        """In one slot of a cluster only."""
        return await self._drive(self._joint.schedule_all(attempts, max_wait_us, not_before_us))

    @override
    async def decide_batch(self, attempts: Sequence[StoreAttempt], /) -> list[Decision | CaplineError]:
        return await self._drive(self._batches.decide_batch(attempts))

    @override
    async def decide_many(self, batch: Batch) -> Decisions:
        return await self._drive(self._batches.many(batch, DECIDE))

    @override
    async def peek_many(self, batch: Batch) -> Decisions:
        return await self._drive(self._batches.many(batch, PEEK))

    @override
    async def refund_many(
        self, compiled: RedisRule, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        return await self._drive(self._verbs.refund_many(compiled, subjects, stamps_us, cost))

    @override
    async def recorded(self, compiled: RedisRule, subject: Subject) -> list[list[Hit]]:
        return await self._drive(self._maintenance.recorded(compiled, subject))

    @override
    async def merge(self, merges: Sequence[Merge], /) -> list[Merged | CaplineError]:
        return await self._drive(self._maintenance.merge(merges))

    @override
    async def scan(self, compiled: Sequence[RedisRule], after: Any = None) -> Page:
        """Some 200 keys a page."""
        return await self._drive(self._maintenance.scan(compiled, after))

    @override
    async def erase(self, compiled: Sequence[RedisRule], subject: Subject) -> int:
        return await self._drive(self._maintenance.erase(compiled, subject))

    @override
    async def sweep(self, compiled: Sequence[RedisRule], /) -> int:
        return await self._drive(self._maintenance.sweep(compiled))

    @override
    def stats(self) -> dict[str, int]:
        """Empty: a server has its own figures."""
        return {}

    @override
    async def servers(self) -> list[ServerState]:
        return await self._drive(ask_servers(self._session))

    @override
    async def try_write(self) -> None:
        await self._drive(self._maintenance.try_write())

    @override
    async def now_us(self) -> int:
        return await self._drive(self._maintenance.now_us())

    @override
    async def close(self) -> None:
        await self._transport.close()
