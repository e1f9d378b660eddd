"""How the synchronous store asks, for some of the hosts: one command first, the router only where that failed.

It is `RedisStore._ask` as a coroutine, since the simulated loop runs nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline import AsyncLimiter
from capline.store.redis import steps
from capline.store.redis.async_store import AsyncRedisStore
from capline.store.redis.io.url import parse_url
from capline.store.redis.io.wire import Exchange, NoReply, Request, ServerError

if TYPE_CHECKING:
    from capline.model.clock import Clock
    from capline.store.protocol import Operation
    from capline.store.redis.io.wire import Reply, Steps
    from capline.store.redis.scripting.scripts import Call

__all__ = ["ResumingLimiter"]


class _ResumingStore(AsyncRedisStore):
    async def _alone(self, operation: Operation) -> Any:
        call, replicas = steps.step_call(self.session, operation), steps.replicas_of(operation)
        return steps.step_answer(await self.drive(self._steps(call, replicas)), operation)

    def _steps(self, call: Call, replicas: int) -> Steps[Reply]:
        router = self.session.router
        node = router.topology.node(call.slot)
        if replicas or node is None or router.topology.stale or router.breaker(node).failures:
            return (yield from steps.alone(self.session, call, replicas))
        until = self.session.until()
        [[reply]] = yield Exchange([Request(node, call.payload, 1)], until)
        if isinstance(reply, (ServerError, NoReply)):
            return (yield from router.resume(call, reply, node, until))
        return reply


class ResumingLimiter(AsyncLimiter):
    """A limiter on such a store."""

    @staticmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> AsyncRedisStore:
        del create
        return _ResumingStore(parse_url(url), clock)
