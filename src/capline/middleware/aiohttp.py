"""A client middleware for aiohttp: every request of a session waits for a slot of its own.

    session = aiohttp.ClientSession(middlewares=[LimitedMiddleware(limiter, "psp", max_wait=30)])

It is to aiohttp what `capline.middleware.httpx.AsyncLimitedTransport` is to httpx.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Unpack

from capline.middleware.slots.gate import Gate, Terms, is_safe_to_repeat
from capline.model.errors import CaplineError

try:
    from aiohttp import client_middlewares as _since_3_12  # noqa: F401 # pyright: ignore[reportUnusedImport]
    from aiohttp import payload
except ImportError as error:
    raise CaplineError('capline.middleware.aiohttp needs aiohttp: pip install "aiohttp>=3.12"') from error

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientResponse
    from aiohttp.client_middlewares import ClientHandlerType

    from capline.limiter.aio import AsyncLimiter


class LimitedMiddleware:
    """Sends each request in a slot of `policy`; see `LimitedTransport` for what the arguments do.

    Put it last of a session's `middlewares`, so that it sees each sending.
    """

    def __init__(
        self,
        limiter: AsyncLimiter,
        policy: str,
        **terms: Unpack[Terms[ClientRequest]],
    ) -> None:
        self._limiter = limiter
        self._gate: Gate[ClientRequest] = Gate(policy, lambda request: request.url.host or "", **terms)

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Wait for a slot, then send."""
        send, repeatable = partial(handler, request), partial(_repeatable, request)
        return await self._gate.awaited(self._limiter, request, send, repeatable, "status", _close)


async def _close(response: ClientResponse) -> None:
    response.close()


def _repeatable(request: ClientRequest, status: int) -> bool:
    """Whether the request may be sent again: its body is at hand, and the work cannot be done twice."""
    whole = not request.body or isinstance(request.body, (bytes, payload.BytesPayload))
    return whole and is_safe_to_repeat(request.method, status, request.headers)
