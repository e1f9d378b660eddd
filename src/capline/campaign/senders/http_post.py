"""One HTTP POST with a time limit for all of it, and what is known afterwards.

    not accepted   no connection, or it ended before the whole request was written; 408, 425, 429, 503 (try again), any
                   other 3xx and 4xx, 501, 505 (for good)
    accepted       a 2xx with complete headers, whatever became of its body
    not known      everything else: no answer, half of one, not HTTP; 303, which may follow acceptance; 409, the key is
                   in work; 500, the receiver failed midway; 502, 504 and other 5xx, a gateway lost the receiver

The rule: "not accepted" only if the receiver cannot have the whole request, or says itself that it did nothing.

The time limit covers everything from the name look-up to the last byte of the answer. Cookies are not kept, redirects
not followed.
"""

from __future__ import annotations

import asyncio
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

import httpx

from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, UNKNOWN, Answer
from capline.model.retry_after import retry_after

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

_NOT_NOW = frozenset({408, 425, 429, 503})
_IN_DOUBT = frozenset({303, 409})
_REFUSED_5XX = frozenset({501, 505})
_OK, _REDIRECT, _SERVER_ERROR = 200, 300, 500


class _Body:
    """A request's body. While `is_given` is false, the receiver cannot have the whole request."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.is_given = False

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        self.is_given = True
        yield self._data


def clients(count: int, timeout_s: float, headers: Mapping[str, str]) -> list[httpx.AsyncClient]:
    """Clients with one connection each.

    A pool of httpx searches all its connections at each request, which for 32 takes longer than the request itself. The
    TLS context is expensive and shared.
    """
    context = httpx.create_ssl_context()
    return [
        httpx.AsyncClient(
            headers={"Accept-Encoding": "identity", **headers},
            timeout=httpx.Timeout(timeout_s, pool=None),
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
            verify=context,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )
        for _ in range(count)
    ]


async def post(
    client: httpx.AsyncClient, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, longest_bytes: int
) -> Answer:
    """Post the body; read at most `longest_bytes` of the answer. Faults of the network are answers, never raised."""
    given = _Body(body)
    response: httpx.Response | None = None
    received: bytes | None = None
    reason = ""
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.stream(
                "POST", url, content=given, headers={**headers, "Content-Length": str(len(body))}
            ) as response,
        ):
            received = await _read(response, longest_bytes)
    except TimeoutError:
        reason = "no answer (timeout)"
    except httpx.RequestError as error:
        reason = f"no answer ({type(error).__name__})"
    if response is None:
        return Answer(UNKNOWN if given.is_given else TRANSIENT, reason)
    code = outcome_of(response.status_code)
    wait_s = retry_after(response.headers) or 0.0
    return Answer(code, "" if code == DELIVERED else f"HTTP {response.status_code}", wait_s, received)


def outcome_of(status: int) -> int:
    """The code of `protocol` for an HTTP status."""
    if _OK <= status < _REDIRECT:
        return DELIVERED
    if status in _NOT_NOW:
        return TRANSIENT
    refused = _REDIRECT <= status < _SERVER_ERROR or status in _REFUSED_5XX
    return PERMANENT if refused and status not in _IN_DOUBT else UNKNOWN


async def _read(response: httpx.Response, longest_bytes: int) -> bytes | None:
    """Read a short body, so that the connection can be reused; a long one is left unread, which closes it."""
    received = bytearray()
    async for piece in response.aiter_raw():
        received += piece
        if len(received) > longest_bytes:
            return None
    return bytes(received)
