"""Reads the bodies of requests, within bounds of size and time; what the head rules out is refused unread."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from capline.service.http.problems import Problem

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

JSON, MSGPACK = "application/json", "application/msgpack"
CSV, LINES = "text/csv", "application/x-ndjson"
_JSON = JSON.encode()
_LINGER_S = 5.0
"""How long the rest of a refused request is read: a close while it comes is a reset, and the answer is lost."""
_CURL = b"application/x-www-form-urlencoded"
_PACKED = (MSGPACK.encode(), b"application/x-msgpack")


class ClientLeftError(Exception):
    """The client went away before the end of its body: nobody waits for an answer."""


def check_head(headers: list[tuple[bytes, bytes]], most_bytes: int, types: tuple[str, ...] | None) -> bool:
    """Raise for a body that the head alone rules out, by size or type; returns whether it is msgpack.

    `types` are those that may be beside JSON and msgpack, None for any.
    """
    kind, by_page = b"", False
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"origin":
            by_page = True
        elif name == b"content-length" and int(value) > most_bytes:
            raise _too_large(most_bytes)
        elif name == b"content-encoding" and value != b"identity":
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body as it is, without Content-Encoding")
        elif name == b"transfer-encoding" and value.lower() != b"chunked":  # RFC 9112, 6.1
            raise Problem(HTTPStatus.NOT_IMPLEMENTED, "send the body whole or in chunks, in no other Transfer-Encoding")
    if kind == _JSON:
        return False
    kind = _plain(kind)
    if kind in _PACKED:
        return True
    # A web page may send forms and text to another site without a preflight, but not JSON; and it says its origin.
    if types is not None and kind.decode("latin-1") not in (JSON, *types) and (by_page or kind != _CURL):
        also = "".join(f", or {also}" for also in types)
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"send JSON, with the header Content-Type: application/json, or msgpack, with application/msgpack{also}",
        )
    return False


def has_type(headers: list[tuple[bytes, bytes]], kind: str) -> bool:
    """Whether the head says that the body is of this type."""
    return any(name == b"content-type" and _plain(value) == kind.encode() for name, value in headers)


def is_packed(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether the body is msgpack, by the head alone; an error is answered in the same."""
    return any(name == b"content-type" and _plain(value) in _PACKED for name, value in headers)


def _plain(kind: bytes) -> bytes:
    return kind.partition(b";")[0].strip().lower()


def check_size(size_bytes: int, most_bytes: int) -> None:
    """Refuse a body that is larger."""
    if size_bytes > most_bytes:
        raise _too_large(most_bytes)


async def body_of(receive: Receive, most_bytes: int, within_s: float) -> bytes:
    """The whole body in time; raises as `pieces_of`."""
    if is_unread(receive) is False:  # it is nearly always there: then no timeout is needed
        body = _data(await receive())
        check_size(len(body), most_bytes)
        return body
    try:
        async with asyncio.timeout(within_s):
            return b"".join([piece async for piece in pieces_of(receive, most_bytes, within_s)])
    except TimeoutError:
        raise _too_slow(within_s) from None


async def pieces_of(receive: Receive, most_bytes: int, within_s: float) -> AsyncGenerator[bytes]:
    """The body as it comes, each piece in time; raises `ClientLeftError` where the client went away before its end."""
    size_bytes, more = 0, True
    while more:
        try:
            async with asyncio.timeout(within_s):
                message = await receive()
        except TimeoutError:
            raise _too_slow(within_s) from None
        piece = _data(message)
        size_bytes += len(piece)
        check_size(size_bytes, most_bytes)
        yield piece
        more = message.get("more_body", False)


def _data(message: MutableMapping[str, Any]) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientLeftError
    return message.get("body", b"")


def is_unread(receive: Receive) -> bool | None:
    """Whether some of the request has still to come; None where the server does not say. uvicorn's cycle does."""
    return getattr(getattr(receive, "__self__", None), "more_body", None)


def has_left(receive: Receive) -> bool:
    """Whether the client has closed its connection, where the server says so."""
    return getattr(getattr(receive, "__self__", None), "disconnected", False)


async def rest_of(receive: Receive) -> None:
    """Read the rest of a request that was answered, and forget it, for some seconds at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while (message := await receive())["type"] != "http.disconnect" and message["more_body"]:
                pass


def _too_slow(within_s: float) -> Problem:
    return Problem(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {within_s:g} s")


def _too_large(most_bytes: int) -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {most_bytes} bytes, which this path takes; send several",
    )
