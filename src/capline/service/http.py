"""Plain ASGI: routes, bodies within bounds, replies; every error a problem document.

The rule: nothing is decided for a request whose body has not come whole. One that is too large, too slow or cut off
ends before its handler; a client that leaves after that changes nothing, its decision counts once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

from capline.model.errors import CaplineError
from capline.service.problems import Problem, document, problem_of

__all__ = ["ONE_BODY_BYTES", "App", "Reply", "Request", "Route"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ONE_BODY_BYTES = 1 << 20
"""The largest body of one attempt: a hundred times what the longest names take."""

BODY_WITHIN_S = 30.0
"""A body that takes longer to come keeps a connection for nothing."""

JSON = "application/json"

log = logging.getLogger("capline.service")


class Request:
    """One request: its body, the rest of its path behind the route's, as it was sent, its query and its headers."""

    __slots__ = ("body", "headers", "query", "rest")

    def __init__(self, body: bytes, rest: bytes, query: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.body = body
        self.rest = rest
        self.query = query
        self.headers = headers


class Reply:
    """A body and its status; `headers` beside type and length."""

    __slots__ = ("body", "headers", "status", "type")

    def __init__(
        self, body: bytes, headers: Mapping[str, str] | None = None, *, status: int = 200, type: str = JSON
    ) -> None:
        self.body = body
        self.headers = headers or {}
        self.status = status
        self.type = type


Handler = Callable[[Request], Awaitable[Reply]]


class Route:
    """Who answers at a path, by method; bodies of at most `body_bytes`, JSON. A path that ends in / takes a rest.

    With `any_type` the body's Content-Type does not matter.
    """

    __slots__ = ("any_type", "body_bytes", "handlers")

    def __init__(self, handlers: Mapping[str, Handler], body_bytes: int = 0, *, any_type: bool = False) -> None:
        self.handlers = handlers
        self.body_bytes = body_bytes
        self.any_type = any_type


class App:
    """The ASGI application over these routes."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._exact = {path.encode(): route for path, route in routes.items() if not path.endswith("/")}
        self._below = {path.encode(): route for path, route in routes.items() if path.endswith("/")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise TypeError(f"this application speaks http, not {scope['type']}")
        try:
            reply = await self._answer(scope, receive)
        except Problem as problem:
            reply = _told(problem)
        except CaplineError as error:
            reply = _told(problem_of(error))
        except Exception:
            log.exception("a fault of the service")
            reply = _told(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of the service; its log says more"))
        if reply is None:
            return
        headers: list[tuple[bytes, bytes]] = []
        if reply.status != HTTPStatus.NO_CONTENT:
            headers = [(b"content-type", reply.type.encode()), (b"content-length", str(len(reply.body)).encode())]
        headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else reply.body})

    async def _answer(self, scope: Scope, receive: Receive) -> Reply | None:
        path: bytes = scope["raw_path"]
        route, rest = self._exact.get(path), b""
        if route is None:
            route, rest = self._route_below(path)
        handler = route.handlers.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if handler is None:
            allowed = ", ".join(sorted(route.handlers))
            raise Problem(HTTPStatus.METHOD_NOT_ALLOWED, f"this path takes {allowed}", {"Allow": allowed})
        body: bytes | None = b""
        if route.body_bytes:
            body = await _body(scope, receive, route)
        return None if body is None else await handler(Request(body, rest, scope["query_string"], scope["headers"]))

    def _route_below(self, path: bytes) -> tuple[Route, bytes]:
        for prefix, route in self._below.items():
            rest = path[len(prefix) :]
            if path.startswith(prefix) and rest and b"/" not in rest:
                return route, rest
        raise Problem(HTTPStatus.NOT_FOUND, "there is nothing at this path; docs/service.md lists those there are")


def _told(problem: Problem) -> Reply:
    return Reply(document(problem), problem.headers, status=problem.status.value, type="application/problem+json")


async def _body(scope: Scope, receive: Receive, route: Route) -> bytes | None:
    """The whole body; None where the client went away before its end."""
    most_bytes = route.body_bytes
    _check_head(scope["headers"], most_bytes, any_type=route.any_type)
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body: bytes = message.get("body", b"")
            if message.get("more_body"):
                pieces = [body]
                size_bytes = len(body)
                while message.get("more_body"):
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    pieces.append(message.get("body", b""))
                    size_bytes += len(pieces[-1])
                    if size_bytes > most_bytes:
                        raise _too_large(most_bytes)
                body = b"".join(pieces)
    except TimeoutError:
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {BODY_WITHIN_S:g} s", {"Connection": "close"}
        ) from None
    if len(body) > most_bytes:
        raise _too_large(most_bytes)
    return body


def _check_head(headers: list[tuple[bytes, bytes]], most_bytes: int, *, any_type: bool) -> None:
    """Refuse what needs no reading to be refused."""
    kind = b""
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"content-length" and int(value) > most_bytes:
            raise _too_large(most_bytes)
    # A page in a browser may send forms and text to any address without asking; JSON it may not.
    if not any_type and kind.partition(b";")[0].strip().lower() != JSON.encode():
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, with the header Content-Type: application/json")


def _too_large(most_bytes: int) -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {most_bytes} bytes, which this path takes; send several",
        {"Connection": "close"},
    )
