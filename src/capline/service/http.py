"""Plain ASGI: routes, bodies within bounds, replies; every error a problem document.

The rule: nothing is decided for a request whose body has not come whole. One that is too large, too slow or cut off
ends before its handler; a client that leaves after that changes nothing, its decision counts once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from capline.model.errors import CaplineError
from capline.service.paths import Paths
from capline.service.problems import RETRY_AFTER_S, Problem, document, problem_of
from capline.service.run.settings import Bounds

if TYPE_CHECKING:
    from capline.service.access.guard import Guard

__all__ = ["BATCH_BYTES", "ONE_BODY_BYTES", "App", "Observer", "Reply", "Request", "Route"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ONE_BODY_BYTES = Bounds().body_bytes
"""The largest body of one attempt, unless `bounds` say another: a hundred times what the longest names take."""

BATCH_BYTES = Bounds().batch_bytes
"""The same of many attempts."""

JSON, MSGPACK = "application/json", "application/msgpack"
WITH_BODY = ("POST", "PUT")
_PACKED = (MSGPACK.encode(), b"application/x-msgpack")

log = logging.getLogger("capline.service")


class Request:
    """One request: its body, what stands for the names of its path, as it was sent, and its query.

    `route` is the path with its names as the routes have it, "" before one is found.
    `packed` says that the body is msgpack; `who` is the name of its token, "" where there are none; `client` is the
    address that it came from, by as many X-Forwarded-For as proxies are trusted.
    """

    __slots__ = ("body", "client", "headers", "names", "packed", "query", "route", "who")

    def __init__(
        self,
        body: bytes,
        query: bytes,
        *,
        packed: bool = False,
        who: str = "",
        client: str = "",
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self.body = body
        self.names: tuple[bytes, ...] = ()
        self.route = ""
        self.query = query
        self.packed = packed
        self.who = who
        self.client = client
        self.headers = headers or []


class Reply:
    """A body and its status; `headers` beside type and length. What is not bytes is encoded as the request was."""

    __slots__ = ("body", "headers", "status", "type")

    def __init__(
        self, body: object, headers: Mapping[str, str] | None = None, *, status: int = 200, type: str = JSON
    ) -> None:
        self.body = body
        self.headers = headers or {}
        self.status = status
        self.type = type


Handler = Callable[[Request], Awaitable[Reply]]

_ROLES = {"GET": ("read",), "POST": ("decide",)}


class Route:
    """Who answers at a path, by method; bodies of at most `body_bytes`. `{name}` in a path is any one part.

    `any_type` where the body's Content-Type does not matter
    `roles`   whose tokens may: by default read for GET, decide for POST; an admin may all. () is anybody
    `takes`   the form of the body, `gives` that of the answer, `query` the parameters by method, `also` what
              other statuses mean: for OpenAPI
    """

    __slots__ = ("also", "any_type", "body_bytes", "gives", "handlers", "query", "roles", "takes")

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        body_bytes: int = 0,
        *,
        any_type: bool = False,
        roles: tuple[str, ...] | None = None,
        takes: Any = None,
        gives: Any = None,
        query: Mapping[str, tuple[str, ...]] | None = None,
        also: Mapping[int, str] | None = None,
    ) -> None:
        self.handlers = handlers
        self.body_bytes = body_bytes
        self.any_type = any_type
        self.roles = roles
        self.takes, self.gives, self.query = takes, gives, query or {}
        self.also = also or {}

    def roles_of(self, method: str) -> tuple[str, ...]:
        """Whose tokens may use the method here, beside an admin's; () is anybody."""
        return _ROLES.get(method, ("admin",)) if self.roles is None else self.roles


class Answered(NamedTuple):
    """A request that was answered: the path of its route, not what stands behind it, which may be a subject."""

    method: str
    route: str
    path: bytes
    status: int
    seconds: float
    size_bytes: int
    who: str
    client: str
    headers: list[tuple[bytes, bytes]]


class Observer(Protocol):
    """Told of every request that was answered."""

    def answered(self, request: Answered) -> None:
        """This was."""
        ...


class App:
    """The ASGI application over these routes."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        bounds: Bounds | None = None,
        observers: tuple[Observer, ...] = (),
        guard: Guard | None = None,
        trusted_proxies: int = 0,
    ) -> None:
        self._paths = Paths(routes)
        self._bounds = Bounds() if bounds is None else bounds
        self._body_bytes = {ONE_BODY_BYTES: self._bounds.body_bytes, BATCH_BYTES: self._bounds.batch_bytes}
        self._observers, self._guard, self._trusted = observers, guard, trusted_proxies
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise TypeError(f"this application speaks http, not {scope['type']}")
        began = perf_counter()
        path: bytes = scope["raw_path"]
        request = Request(b"", scope["query_string"], client=self._client(scope), headers=scope["headers"])
        self._under_way += 1
        try:
            reply = await self._answer(path, request, scope["method"], receive)
        except Problem as problem:
            reply = _told(problem)
        except CaplineError as error:
            reply = _told(problem_of(error))
        except Exception:
            log.exception("a fault of the service")
            reply = _told(Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of the service; its log says more"))
        finally:
            self._under_way -= 1
        if reply is None:
            return
        body, kind = reply.body, reply.type
        if not isinstance(body, bytes):
            kind = MSGPACK if request.packed else JSON
            body = (msgspec.msgpack.encode if request.packed else msgspec.json.encode)(body)
        headers: list[tuple[bytes, bytes]] = []
        if reply.status != HTTPStatus.NO_CONTENT:
            headers += [(b"content-type", _header_name(kind)), (b"content-length", b"%d" % len(body))]
        headers += [(_header_name(name), value.encode("latin-1")) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
        if self._observers:
            seconds = perf_counter() - began
            told = Answered(
                scope["method"],
                request.route,
                path,
                reply.status,
                seconds,
                len(body),
                request.who,
                request.client,
                request.headers,
            )
            for observer in self._observers:
                observer.answered(told)

    async def _answer(self, path: bytes, request: Request, method: str, receive: Receive) -> Reply | None:
        found = self._paths.find(path)
        if found is None:
            raise Problem(HTTPStatus.NOT_FOUND, "there is nothing at this path; docs/service.md lists those there are")
        route, request.route, request.names = found
        if self._under_way > self._bounds.requests and route.roles != ():  # a probe says that it lives
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._bounds.requests} requests are under way, and no more are taken",
                {"Retry-After": str(RETRY_AFTER_S)},
            )
        method = "GET" if method == "HEAD" else method
        handler = route.handlers.get(method)
        if handler is None:
            allowed = ", ".join(sorted(route.handlers))
            raise Problem(HTTPStatus.METHOD_NOT_ALLOWED, f"this path takes {allowed}", {"Allow": allowed})
        if self._guard is not None:
            request.who = await self._guard.who(request.headers, route.roles_of(method))
        if route.body_bytes and method in WITH_BODY:
            most_bytes = self._body_bytes.get(route.body_bytes, route.body_bytes)
            request.packed = _check_head(request.headers, most_bytes, any_type=route.any_type)
            body = await _body(receive, most_bytes, self._bounds.body_within)
            if body is None:
                return None
            request.body = body
        return await handler(request)

    def _client(self, scope: Scope) -> str:
        """The address that the request came from: the last that was written by a proxy that is trusted."""
        peer = scope.get("client")
        near = peer[0] if peer else ""
        if not self._trusted:
            return near
        told = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
        hops = [hop.strip().decode("latin-1") for hop in told.split(b",") if hop.strip()]
        return hops[-min(self._trusted, len(hops))] if hops else near


@lru_cache(256)
def _header_name(name: str) -> bytes:
    """Small letters, as ASGI has them; there are few names, and they come again."""
    return name.lower().encode()


def _told(problem: Problem) -> Reply:
    return Reply(document(problem), problem.headers, status=problem.status.value, type="application/problem+json")


async def _body(receive: Receive, most_bytes: int, within_s: float) -> bytes | None:
    """The whole body; None where the client went away before its end."""
    # uvicorn's cycle knows whether the body has come whole, as it nearly always has: then nothing is waited for.
    whole = getattr(getattr(receive, "__self__", None), "more_body", True) is False
    message = await receive() if whole else await _piece(receive, within_s)
    if message["type"] == "http.disconnect":
        return None
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        pieces = [body]
        size_bytes = len(body)
        deadline = asyncio.get_running_loop().time() + within_s
        while message.get("more_body"):
            message = await _piece(receive, deadline - asyncio.get_running_loop().time(), within_s)
            if message["type"] == "http.disconnect":
                return None
            pieces.append(message.get("body", b""))
            size_bytes += len(pieces[-1])
            if size_bytes > most_bytes:
                raise _too_large(most_bytes)
        body = b"".join(pieces)
    if len(body) > most_bytes:
        raise _too_large(most_bytes)
    return body


async def _piece(receive: Receive, left_s: float, within_s: float | None = None) -> MutableMapping[str, Any]:
    try:
        async with asyncio.timeout(left_s):
            return await receive()
    except TimeoutError:
        said_s = left_s if within_s is None else within_s
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {said_s:g} s", {"Connection": "close"}
        ) from None


def _check_head(headers: list[tuple[bytes, bytes]], most_bytes: int, *, any_type: bool) -> bool:
    """Refuse what needs no reading to be refused; whether the body is msgpack."""
    kind = b""
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"content-length" and int(value) > most_bytes:
            raise _too_large(most_bytes)
    kind = kind.partition(b";")[0].strip().lower()
    if kind in _PACKED:
        return True
    # A page in a browser may send forms and text to any address without asking; JSON it may not.
    if not any_type and kind != JSON.encode():
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "send JSON, with the header Content-Type: application/json, or msgpack, with application/msgpack",
        )
    return False


def _too_large(most_bytes: int) -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {most_bytes} bytes, which this path takes; send several",
        {"Connection": "close"},
    )
