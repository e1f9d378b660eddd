"""Transports for httpx: every request of a client waits for a slot of its own.

    client = httpx.Client(transport=LimitedTransport(limiter, "psp", max_wait=30))
    client = httpx.AsyncClient(transport=AsyncLimitedTransport(limiter, "psp", max_wait=30))

One round trip to the store takes the slot; then the request sleeps until it, and goes. What a redirect leads to is a
request too, and takes its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from capline.middleware.gate import Gate, is_safe_to_repeat
from capline.model.errors import CaplineError

try:
    import httpx
except ImportError as error:
    raise CaplineError('capline.middleware.httpx needs httpx: pip install "capline[http]"') from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.limiter import Limiter
    from capline.model.subject import Subject

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]


class LimitedTransport(httpx.BaseTransport):
    """Sends each request in a slot of `policy`.

    `subject`    who is limited: a subject, or a function of the request; default the request's host
    `max_wait`   the longest that a slot may be away, in seconds (None: no bound); past it `LimitExceeded` is raised and
                 nothing is consumed
    `slack`      how late for its slot a request may leave, in seconds (None: however late). One that wakes up later, on
                 a busy host, gives its slot back and takes another, ten times at most
    `retries`    how often a request is sent again, in a slot no earlier than an answer of 429 or 503 with `Retry-After`
                 says. Only where its body can be sent again, and where that is safe: after 503 an idempotent method, or
                 one with an `Idempotency-Key`. Else the answer is the caller's, as it came
    `transport`  what the requests go through, closed with this one; default httpx's own

    An answer of 429 or 503 with `Retry-After` (at most an hour of it) holds back every host on the same store, at the
    cost of one unit. An interrupted wait gives the slot back. The limiter stays open: whoever made it closes it.
    """

    def __init__(
        self,
        limiter: Limiter,
        policy: str,
        *,
        subject: Subject | Callable[[httpx.Request], Subject] | None = None,
        max_wait: float | None = None,
        slack: float | None = None,
        retries: int = 0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._limiter = limiter
        self._gate = Gate(policy, subject, _host, max_wait, slack, retries)
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for a slot, then send; see the class."""
        send = self._transport.handle_request
        return self._gate.sent(self._limiter, request, lambda: send(request), partial(_repeatable, request))

    def close(self) -> None:
        """Close the transport that the requests went through."""
        self._transport.close()


class AsyncLimitedTransport(httpx.AsyncBaseTransport):
    """See `LimitedTransport`; this one is for `httpx.AsyncClient`, over an `AsyncLimiter`.

    A cancelled request gives its slot back, unless it was sent already.
    """

    def __init__(
        self,
        limiter: AsyncLimiter,
        policy: str,
        *,
        subject: Subject | Callable[[httpx.Request], Subject] | None = None,
        max_wait: float | None = None,
        slack: float | None = None,
        retries: int = 0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._limiter = limiter
        self._gate = Gate(policy, subject, _host, max_wait, slack, retries)
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for a slot, then send; see the class."""
        send = self._transport.handle_async_request
        return await self._gate.awaited(self._limiter, request, lambda: send(request), partial(_repeatable, request))

    async def aclose(self) -> None:
        """Close the transport that the requests went through."""
        await self._transport.aclose()


def _host(request: httpx.Request) -> str:
    return request.url.host


def _repeatable(request: httpx.Request, status: int) -> bool:
    """Whether the request may be sent again: its body is at hand, and the work cannot be done twice."""
    whole = isinstance(request.stream, httpx.ByteStream)
    return whole and is_safe_to_repeat(request.method, status, request.headers)
