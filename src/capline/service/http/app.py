"""Plain ASGI: routes, bodies within bounds, replies; every error a problem document.

The rule: a handler runs only when the whole body has arrived. A body that is too large, too slow or cut off is refused
before it; a client that disconnects after it changes nothing: its decision counts once. An answer before the end of the
request ends its connection.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from functools import lru_cache, partial
from http import HTTPStatus
from time import perf_counter
from typing import Any, Protocol, cast

import msgspec

from capline.model.errors import CaplineError
from capline.service.http.body import (
    JSON,
    MSGPACK,
    ClientLeftError,
    Receive,
    body_of,
    check_head,
    check_size,
    has_left,
    is_packed,
    is_unread,
    pieces_of,
    rest_of,
)
from capline.service.http.pages import Pages
from capline.service.http.paths import Paths
from capline.service.http.problems import PROBLEM, Problem, busy, document, problem_of
from capline.service.http.scope import EVERYTHING
from capline.service.http.scope import Scope as PolicyScope
from capline.service.settings.values import Bounds

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ONE_BODY_BYTES = Bounds().body_bytes
"""The default bound of a body with one attempt: a hundred times what the longest names take."""

BATCH_BYTES = Bounds().batch_bytes
"""The same for a batch."""

AUDIENCE_BYTES = Bounds().audience_bytes
"""The same for an audience, which is never whole in memory."""

LIMIT_HEADERS = ("RateLimit-Policy", "RateLimit")
"""The headers of an answer that says what is left of its limits."""

WITH_BODY = ("POST", "PUT", "PATCH")

ASKER: ContextVar[str] = ContextVar("asker", default="")
"""Who asks, for what records it: the name of the request's token, without tokens its route."""

log = logging.getLogger("capline.service")


class Request(msgspec.Struct, eq=False):
    """One request: method, headers, path and query as they were sent; the body, b"" until it is read, or its pieces.

    `route` is the path's template, like /v1/policies/{name}, "" before one is found; `names` is what stands for its
    names. `parameters` are those of the query, where the verb reads them. `packed` says that the body is msgpack. `who`
    is the name of its token, "" without tokens, and `scope` for which policies that is. `client` is the client's
    address, by X-Forwarded-For where proxies are trusted; `has_left` says whether the client has closed its connection.
    `is_framed`: pieces that were cut raise.
    """

    method: str
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    client: str
    has_left: Callable[[], bool]
    body: bytes = b""
    pieces: Callable[[], AsyncGenerator[bytes]] = cast("Any", None)  # set where the route is streamed
    names: tuple[bytes, ...] = ()
    parameters: dict[str, str] = {}
    route: str = ""
    who: str = ""
    scope: PolicyScope = EVERYTHING
    packed: bool = False
    is_framed: bool = False


class Reply:
    """What a handler returns: a body and its status; `headers` besides type and length.

    A body that is not bytes is encoded as the request was, in JSON or msgpack.
    """

    __slots__ = ("body", "headers", "status", "type")

    def __init__(
        self, body: object, headers: Mapping[str, str] | None = None, *, status: int = 200, type: str = JSON
    ) -> None:
        self.body = body
        self.headers = headers or {}
        self.status = status
        self.type = type

    def sent(self, packed: bool) -> bytes:
        """The body as it is sent."""
        body = self.body
        if not isinstance(body, bytes):
            self.type = MSGPACK if packed else JSON
            body = self.body = (msgspec.msgpack.encode if packed else msgspec.json.encode)(body)
        return body


Handler = Callable[[Request], Awaitable[object]]
"""Returns a `Reply`, or an answer that has no headers."""

_ROLES = {"GET": ("read",), "POST": ("decide",)}


class Route(msgspec.Struct):
    """The handlers of a path, by method; bodies of at most `body_bytes`. `{name}` in a path matches any one part.

    `types`   of a body, beside JSON and msgpack; None where its Content-Type does not matter
    `roles`   that may call it, or those by method: by default read for GET, decide for POST, else admin, who may call
              all; () is anybody
    `streamed`  whether the handler reads the body by `request.pieces`, as it comes
    `direct`  whether its POST may be answered without ASGI: `run.connection` says when
    `scoped`  the methods whose handlers keep to the scope of the caller's token; others are for a token without one
    `takes`   the form of the body, `gives` that of the answer by method, several in a tuple; a text is a page's type
    `query`   the parameters by method, `needs` those that must be there; `headers` those that are read
    `sends`   the headers of an answer; `also` what other statuses mean, 2xx in place of 200: all for OpenAPI
    `examples`  by method a body that is taken, or where there is none an answer; `others` are types of an answer
              besides JSON and msgpack, by Accept: for OpenAPI too
    """

    handlers: dict[str, Handler]
    body_bytes: int = 0
    types: tuple[str, ...] | None = ()
    streamed: bool = False
    direct: bool = False
    roles: tuple[str, ...] | dict[str, tuple[str, ...]] | None = None
    scoped: tuple[str, ...] = ()
    takes: Any = None
    gives: dict[str, Any] = {}
    query: dict[str, tuple[str, ...]] = {}
    needs: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    also: dict[int, str] = {}
    examples: dict[str, Any] = {}
    others: tuple[str, ...] = ()

    def check_scope(self, method: str, scope: PolicyScope) -> None:
        """Raise the `Problem` where the method keeps to no scope, and there is one."""
        if method not in self.scoped:
            scope.check_all()

    def roles_of(self, method: str) -> tuple[str, ...]:
        """The roles that may use the method, besides admin; () is anybody."""
        roles = self.roles.get(method) if isinstance(self.roles, dict) else self.roles
        return _ROLES.get(method, ("admin",)) if roles is None else roles


class Observer(Protocol):
    """Told of every request that was answered. Its `route` is the path's template; its `path` may name a subject."""

    def answered(self, request: Request, status: int, size_bytes: int, seconds: float, /) -> None:
        """Called after each answer."""
        ...


class Caller(Protocol):
    """The token of who calls."""

    @property
    def name(self) -> str:
        """Whose it is."""
        ...

    @property
    def scope(self) -> PolicyScope:
        """For which policies it may ask."""
        ...


class Guard(Protocol):
    """Knows who calls; `service.access.guard` is the only one."""

    async def who(
        self, headers: list[tuple[bytes, bytes]], roles: tuple[str, ...], client: str, has_left: Callable[[], bool]
    ) -> Caller:
        """The caller; raises the `Problem` that says why it may not."""
        ...


class App:
    """The application over these routes: by ASGI, and for connections that ask it directly.

    `count` is called with the status and the seconds of every request; `page` shows a problem to who asked for a page,
    and gives None to others. Without a `guard`, web pages of other sites are
    refused; `hosts` are the names by which it may then be asked, besides loopback.
    Once `draining` is set, each answer ends its connection, so that the client makes the next one elsewhere.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        bounds: Bounds | None = None,
        observers: tuple[Observer, ...] = (),
        guard: Guard | None = None,
        trusted_proxies: int = 0,
        count: Callable[[int, float], None] | None = None,
        hosts: Iterable[str] = (),
        draining: asyncio.Event | None = None,
        page: Callable[[Request, Problem], Reply | None] | None = None,
    ) -> None:
        self._page = page
        self._paths = Paths(routes)
        self._bounds = Bounds() if bounds is None else bounds
        self._body_bytes = {
            ONE_BODY_BYTES: self._bounds.body_bytes,
            BATCH_BYTES: self._bounds.batch_bytes,
            AUDIENCE_BYTES: self._bounds.audience_bytes,
        }
        self._observers, self._guard, self._trusted, self._count = observers, guard, trusted_proxies, count
        self._pages = Pages(hosts) if guard is None else None
        self.draining = asyncio.Event() if draining is None else draining
        self._under_way = 0
        tops = [path for path in routes if path != "/" and path.rfind("/") == 0]
        self._listed = "/docs lists those there are" if "/docs" in routes else f"there are {', '.join(tops)}"
        self.direct = frozenset(path.encode() for path, route in routes.items() if route.direct)
        """Paths whose POST may be answered without ASGI."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise TypeError(f"this application speaks http, not {scope['type']}")
        began = perf_counter()
        headers = scope["headers"]
        client = self.client(scope.get("client"), headers)
        head = scope["method"], scope["raw_path"], scope["query_string"], headers
        request = Request(*head, client, partial(has_left, receive))
        answer = await self.answer(request, receive)
        if answer is None:
            return
        reply, body = answer
        sent: list[tuple[bytes, bytes]] = []
        if reply.status != HTTPStatus.NO_CONTENT:
            sent += [(b"content-type", _header_name(reply.type)), (b"content-length", b"%d" % len(body))]
        sent += [(_header_name(name), value.encode("latin-1")) for name, value in reply.headers.items()]
        early = is_unread(receive)
        if early or self.draining.is_set():
            sent.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": reply.status, "headers": sent})
        said = {"type": "http.response.body", "body": b"" if request.method == "HEAD" else body}
        if early:
            await send(said | {"more_body": True})
            await rest_of(receive)
            said["body"] = b""
        await send(said)
        self.answered(request, reply.status, len(body), perf_counter() - began)

    async def answer(self, request: Request, receive: Receive | None = None) -> tuple[Reply, bytes] | None:
        """The reply and its body, for an error too; None if the client left before its request was complete.

        Without `receive` the request has its body already, and the result is never None.
        """
        self._under_way += 1
        try:
            reply = await self._answer(request, receive)
            return reply, reply.sent(request.packed)
        except ClientLeftError:
            return None
        except Problem as problem:
            return self._told(problem, request)
        except CaplineError as error:
            return self._told(problem_of(error), request)
        except Exception:
            log.exception("a fault of the service")
            fault = Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault of the service; its log says more")
            return self._told(fault, request)
        finally:
            self._under_way -= 1

    async def _answer(self, request: Request, receive: Receive | None) -> Reply:
        if self._pages is not None:
            self._pages.check(request.headers)
        found = self._paths.find(request.path)
        if found is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is nothing at this path; {self._listed}")
        route, request.route, request.names = found
        if self._under_way > self._bounds.requests and route.roles != ():  # probes are always answered
            raise busy(f"{self._bounds.requests} requests are under way, and no more are taken")
        method = "GET" if request.method == "HEAD" else request.method
        handler = route.handlers.get(method)
        if handler is None:
            allowed = ", ".join(sorted(route.handlers))
            raise Problem(HTTPStatus.METHOD_NOT_ALLOWED, f"this path takes {allowed}", {"Allow": allowed})
        if self._guard is not None:
            roles = route.roles_of(method)
            caller = await self._guard.who(request.headers, roles, request.client, request.has_left)
            request.who, request.scope = caller.name, caller.scope
            route.check_scope(method, request.scope)
        if route.body_bytes and method in WITH_BODY:
            most_bytes = self._body_bytes.get(route.body_bytes, route.body_bytes)
            request.packed = check_head(request.headers, most_bytes, route.types)
            if route.streamed and receive is not None:
                request.pieces = partial(pieces_of, receive, most_bytes, self._bounds.body_within)
            elif receive is None:
                check_size(len(request.body), most_bytes)
            else:
                request.body = await body_of(receive, most_bytes, self._bounds.body_within)
        ASKER.set(request.who or request.route)
        answer = await handler(request)
        return answer if isinstance(answer, Reply) else Reply(answer)

    def _told(self, problem: Problem, request: Request) -> tuple[Reply, bytes]:
        """The problem in what the request was asked in: msgpack has no type of its own for problems."""
        if self._page is not None and (page := self._page(request, problem)) is not None:
            return page, page.sent(packed=False)
        reply = Reply(document(problem), problem.headers, status=problem.status.value)
        body = reply.sent(is_packed(request.headers))
        if reply.type == JSON:
            reply.type = PROBLEM
        return reply, body

    def answered(self, request: Request, status: int, size_bytes: int, seconds: float) -> None:
        """Count the request, and tell the observers."""
        if self._count is not None:
            self._count(status, seconds)
        for observer in self._observers:
            observer.answered(request, status, size_bytes, seconds)

    def client(self, peer: tuple[str, int] | None, headers: list[tuple[bytes, bytes]]) -> str:
        """The client's address: the peer's, or by X-Forwarded-For as many from the right as proxies are trusted."""
        near = peer[0] if peer else ""
        if not self._trusted:
            return near
        told = b",".join(value for name, value in headers if name == b"x-forwarded-for")
        hops = [hop.strip().decode("latin-1") for hop in told.split(b",") if hop.strip()]
        return hops[-min(self._trusted, len(hops))] if hops else near


@lru_cache(256)
def _header_name(name: str) -> bytes:
    """In lower case, as ASGI requires; cached, since the same few names recur."""
    return name.lower().encode()
