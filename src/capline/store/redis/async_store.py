"""`redis://` and the other server URLs, driven by the asynchronous transport.

Decisions of one turn of the event loop are sent as one batch. The first one schedules the send for the end of the turn,
which costs no latency: an idle loop gets there at once. A decision that is alone in its turn is sent alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from capline.model.clock import Clock
from capline.model.decision import Decision, Joint
from capline.model.errors import CaplineError, StoreClosedError
from capline.model.policy import BoundPolicy
from capline.store.protocol import AsyncStore, Operation
from capline.store.redis import batches, maintenance, steps
from capline.store.redis.io.aio import AsyncTransport
from capline.store.redis.io.url import Settings
from capline.store.redis.io.wire import NoReply, Reply, ServerError, Steps
from capline.store.redis.joint import at_once, joint, joint_answer
from capline.store.redis.scripting.compiled_rule import RedisRule
from capline.store.redis.scripting.scripts import Call
from capline.store.redis.servers import servers
from capline.store.redis.session import Session
from capline.support.override import override

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Waiting = list[tuple[Operation, "asyncio.Future[Decision]"]]


def _driven(
    instruction: Callable[Concatenate[Session, _P], Steps[_T]],
) -> Callable[Concatenate[AsyncRedisStore, _P], Coroutine[Any, Any, _T]]:
    """The instruction, driven by the store's transport."""

    @wraps(instruction)
    async def driven(store: AsyncRedisStore, /, *args: _P.args, **named: _P.kwargs) -> _T:
        return await store.drive(instruction(store.session, *args, **named))

    return driven


class AsyncRedisStore(AsyncStore):
    """Logs on Redis or Valkey, awaited. Of one event loop at a time."""

    may_lose_answers = True

    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self.session = Session(settings, clock)
        self.transport = AsyncTransport(settings)
        self._waiting: _Waiting = []
        self._tasks: set[asyncio.Task[None]] = set()

    @override
    def compiled(self, rule: BoundPolicy, /) -> RedisRule:
        return self.session.compiled(rule)

    async def drive(self, steps: Steps[_T]) -> _T:
        """What these steps come to."""
        if self.transport.closed:
            raise StoreClosedError("this store is closed; make a new limiter")
        return await self.transport.drive(steps)

    async def step(self, operation: Operation, /) -> Any:
        """The decisions of one turn of the loop are one batch."""
        if operation.kind != "decide":
            return await self._alone(operation)
        mine: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, mine))
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
        return await self._alone(operation)

    async def _alone(self, operation: Operation) -> Any:
        outcome = await self._ask(steps.step_call(self.session, operation), steps.replicas_of(operation))
        return steps.step_answer(outcome, operation)

    async def _ask(self, call: Call, replicas: int = 0) -> Reply | CaplineError:
        """The outcome of a single call; all but a first answer goes to the router."""
        router = self.session.router
        node = router.straight(call, replicas)
        if node is None or self.transport.closed:
            return await self.drive(steps.alone(self.session, call, replicas))
        until = self.session.until()
        reply = await self.transport.ask(node, call.payload)
        if isinstance(reply, (ServerError, NoReply)):
            return await self.drive(router.resume(call, reply, node, until))
        return reply

    def _send_turn(self) -> None:
        """Decide all that wait and were not cancelled.

        In a task of its own, so that a caller cancelled later cancels nobody else.
        """
        turn = [(operation, waiter) for operation, waiter in self._waiting if not waiter.cancelled()]
        self._waiting = []
        if turn:
            task = asyncio.create_task(self._answer(turn))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, turn: _Waiting) -> None:
        """Decide all of one turn, and wake those that still wait."""
        try:
            answers: list[Any] = await self.rows([operation for operation, _ in turn])
        except BaseException as error:  # noqa: BLE001 - every waiter gets it, whatever it is
            answers = [error] * len(turn)
        for (_, waiter), answer in zip(turn, answers, strict=True):
            if waiter.done():
                continue
            if isinstance(answer, BaseException):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)

    async def joint(self, operations: Sequence[Operation], /) -> Joint:
        """As `RedisStore.joint`."""
        call = at_once(self.session, operations)
        if call is None:
            return await self.drive(joint(self.session, operations))
        return joint_answer(await self._ask(call), operations)

    rows = _driven(batches.rows)
    columns = _driven(batches.columns)
    recorded = _driven(maintenance.recorded)
    merge = _driven(maintenance.merge)
    scan = _driven(maintenance.scan)
    erase = _driven(maintenance.erase)
    sweep = _driven(maintenance.sweep)
    servers = _driven(servers)
    try_write = _driven(maintenance.try_write)
    now_us = _driven(maintenance.now_us)

    async def close(self) -> None:
        """Let go of the connections."""
        await self.transport.close()
