"""What the transports of httpx and httpx2 share: all but the package, as the two have the same interface."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, Unpack

from capline.middleware.slots.gate import Gate, Terms, is_safe_to_repeat

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.limiter import Limiter

L = TypeVar("L", "Limiter", "AsyncLimiter")


class _Transport(Generic[L]):
    """A transport of either package; a subclass names the transport below it and the type of a body in memory."""

    transport_type: ClassVar[Any]
    whole_body: ClassVar[type]

    def __init__(
        self,
        limiter: L,
        policy: str,
        *,
        transport: Any = None,
        **terms: Unpack[Terms[Any]],
    ) -> None:
        self._limiter = limiter
        self._gate = Gate(policy, attrgetter("url.host"), **terms)
        self._transport: Any = type(self).transport_type() if transport is None else transport

    def _repeatable(self, request: Any) -> Callable[[int], bool]:
        return partial(_repeatable, self.whole_body, request)


class Limited(_Transport["Limiter"]):
    """One that blocks."""

    def handle_request(self, request: Any) -> Any:
        """Wait for a slot, then send; see the class."""
        send = self._transport.handle_request
        return self._gate.sent(self._limiter, request, lambda: send(request), self._repeatable(request))

    def close(self) -> None:
        """Close the transport that the requests went through."""
        self._transport.close()


class AsyncLimited(_Transport["AsyncLimiter"]):
    """One that is awaited."""

    async def handle_async_request(self, request: Any) -> Any:
        """Wait for a slot, then send; see the class."""
        send = self._transport.handle_async_request
        return await self._gate.awaited(self._limiter, request, lambda: send(request), self._repeatable(request))

    async def aclose(self) -> None:
        """Close the transport that the requests went through."""
        await self._transport.aclose()


def _repeatable(whole_body: type, request: Any, status: int) -> bool:
    """Whether the request may be sent again: its body is at hand, and the work cannot be done twice."""
    return isinstance(request.stream, whole_body) and is_safe_to_repeat(request.method, status, request.headers)
