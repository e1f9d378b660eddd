"""Limits for any ASGI app: Starlette, FastAPI, Litestar, plain; HTTP and WebSockets.

    app.add_middleware(CaplineMiddleware, limiter=limiter, rules=[Rule("ip", key.ip())])

A request is decided before the app sees it; a WebSocket when it connects. A refused WebSocket is answered 429 where the
server can (the extension `websocket.http.response`), else closed with 1008, which servers answer 403.

Starlette makes its middleware after the server has started, which takes an exception there for an app without lifespan.
So the lifespan reports wrong settings, and the server ends with their one line.

The rule: the body is read only if a function of a rule asks for it, at most 1 MiB, and the app gets it all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Unpack
from urllib.parse import parse_qs

from capline.limiter.aio import AsyncLimiter
from capline.limiter.steps import run_awaited
from capline.model.errors import CaplineError, InvalidTypeError
from capline.web.answer import Answer, Refusal, answer_to, check_size, json_of, named
from capline.web.gate import Gate, Options, Refused, Visit
from capline.web.rule import Rule

# Each framework has types of its own for the same things, which are not assignable to each other.
Scope = Message = Receive = Send = App = Any

__all__ = ["Answer", "CaplineMiddleware", "Request", "visit_of"]

POLICY_VIOLATION = 1008
IN_SCOPE = "capline"


class Request:
    """A request as the functions of a rule see it: the scope, and its parts under their usual names."""

    __slots__ = ("_body", "_read", "_receive", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope: dict[str, Any] = scope
        self._receive = receive
        self._read: list[Message] | None = None
        self._body: bytes | None = None

    @property
    def method(self) -> str:
        """`GET` and its kin; of a WebSocket too, whose handshake is one."""
        return self.scope.get("method", "GET")

    @property
    def path(self) -> str:
        """The path, decoded."""
        return self.scope["path"]

    @property
    def headers(self) -> dict[str, str]:
        """Header fields by their names in lower case; lines of one name are joined by ", "."""
        return _fields(self.scope["headers"])

    @property
    def query(self) -> dict[str, list[str]]:
        """The query, by name."""
        return parse_qs(self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)

    async def body(self) -> bytes:
        """The whole body; the app gets it as well. Past 1 MiB the request is answered 413."""
        if self._body is not None:
            return self._body
        if self.scope["type"] != "http":
            raise InvalidTypeError("a WebSocket has no body; limit it by its headers, path or query")
        size, more = 0, True
        read = self._read = []
        while more:
            message = await self._receive()
            read.append(message)
            if message["type"] == "http.disconnect":
                raise _GoneError
            size += len(message.get("body", b""))
            check_size(size)
            more = message.get("more_body", False)
        self._body = b"".join(message.get("body", b"") for message in read)
        return self._body

    async def json(self) -> Any:
        """The body as JSON; a body that is not JSON is answered 400."""
        return json_of(await self.body())

    @property
    def receive(self) -> Receive:
        """What the app receives by: first what was read for a rule."""
        return self._receive if self._read is None else self._again

    async def _again(self) -> Message:
        return self._read.pop(0) if self._read else await self._receive()


class _GoneError(Exception):
    """The client went away while its body was read."""


class CaplineMiddleware:
    """Decides each request under `rules` before the app sees it; see `capline.web.gate.Gate` for the options.

    A function of a rule may raise the framework's own `HTTPException`, or anything with a `status_code` from 400 to 499
    and a `detail`: it is answered so, and nothing is consumed. Any other exception is raised.
    """

    def __init__(self, app: App, limiter: AsyncLimiter, rules: Sequence[Rule] = (), **options: Unpack[Options]) -> None:
        self._app = app
        self._wrong: CaplineError | None = None
        try:
            self._gate = Gate(limiter, AsyncLimiter, rules, may_await=True, **options)
        except CaplineError as error:
            if not _server_has_begun():
                raise
            self._wrong = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: C901 - one way, step by step
        """One connection."""
        if self._wrong is not None or scope["type"] not in ("http", "websocket"):
            await self._apart(scope, receive, send)
            return
        gate = self._gate
        exempt = gate.exempts and gate.is_exempt(scope["path"])
        visit = scope[IN_SCOPE] = Visit(gate, exempt=exempt)
        request = Request(scope, receive)
        if gate.rules and not exempt:
            try:
                refusal = await visit.entered(request, gate.rules)
            except _GoneError:
                return
            except Exception as error:
                refusal = answer_to(error)
                if refusal is None:
                    raise
            if refusal is not None:
                await _refuse(scope, send, refusal, visit)
                return
        began = False

        # Not a coroutine: awaiting one costs more than what is done here.
        def sending(message: Message) -> Awaitable[None]:
            nonlocal began
            if message["type"] not in _BEGINNINGS:
                return send(message)
            began = True
            if visit.may_refund and "status" in message:
                return _leave(message, send, visit)
            return send(_with_limits(message, visit))

        try:
            await self._app(scope, request.receive, sending)
        except Refused as refused:
            if began:
                raise
            await _refuse(scope, send, refused.refusal, visit)
        except Exception:
            if not began and visit.may_refund:
                await run_awaited(visit.leave(Answer(500, {})))
            raise

    def check_routes(self, app: App) -> None:
        """Raise for a rule of a route that cannot be decided; for faces whose routes have rules."""

    async def _apart(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The lifespan, and other scopes that are no request; any scope where the settings are wrong."""
        if scope["type"] == "lifespan":
            try:
                if self._wrong is None:
                    self.check_routes(scope.get("app"))
            except CaplineError as error:
                self._wrong = error
            if self._wrong is not None:
                await send({"type": "lifespan.startup.failed", "message": f"capline: {self._wrong}"})
        if self._wrong is not None:
            raise self._wrong
        await self._app(scope, receive, send)


_BEGINNINGS = frozenset(("http.response.start", "websocket.accept", "websocket.http.response.start"))


def visit_of(scope: Mapping[str, Any]) -> Visit:
    """What the middleware left for a route; raises if it left nothing."""
    visit = scope.get(IN_SCOPE)
    if not isinstance(visit, Visit):
        raise CaplineError(
            "a limited route needs the middleware: app.add_middleware(CaplineMiddleware, limiter=limiter)"
        )
    return visit


async def _leave(message: Message, send: Send, visit: Visit) -> None:
    await run_awaited(visit.leave(Answer(message["status"], _fields(message.get("headers", ())))))
    await send(_with_limits(message, visit))


def _with_limits(message: Message, visit: Visit) -> Message:
    """The beginning of an answer, with the headers of the limits; the app's own message stays as it is."""
    fields = visit.headers()
    if not fields:
        return message
    pairs = list(message.get("headers", ()))
    for name, value in fields.items():
        pairs.append((_name(name), value.encode("latin-1")))
    return {**message, "headers": pairs}


async def _refuse(scope: Scope, send: Send, refusal: Refusal, visit: Visit) -> None:
    prefix = "http"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        prefix = "websocket.http"
    fields = {**refusal.fields, **visit.headers()}
    headers = [(_name(name), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": f"{prefix}.response.start", "status": refusal.status, "headers": headers})
    body = b"" if scope.get("method") == "HEAD" else refusal.body
    await send({"type": f"{prefix}.response.body", "body": body})


def _server_has_begun() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _fields(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return named((name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs)


@lru_cache(64)
def _name(name: str) -> bytes:
    return name.lower().encode()
