"""Limits of single FastAPI routes, as dependencies.

    app.add_middleware(CaplineMiddleware, limiter=limiter, rules=rules)
    @app.get("/search", dependencies=[Depends(Limited("search", key=current_user))])

The middleware has decided already when a route is known. So a route's rule is decided after it, and where it refuses,
what the middleware consumed is given back. There is one answer and one set of headers for both. The middleware of this
module reports a route's rule that cannot be decided when the server starts.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Unpack

from capline.model.errors import CaplineError
from capline.web import asgi
from capline.web.asgi import visit_of
from capline.web.gate import Refused
from capline.web.rule import Fields, Rule, check_made

try:
    import fastapi.routing
    from fastapi import Depends
    from starlette.requests import HTTPConnection, Request
except ImportError as error:
    raise CaplineError("capline.web.fastapi needs FastAPI: pip install fastapi") from error

from capline.model.subject import Subject
from capline.web.gate import Gate


class CaplineMiddleware(asgi.CaplineMiddleware):
    """That of `capline.web.asgi`, which checks the rules of routes too before a server starts."""

    def check_routes(self, app: Any) -> None:
        """Raise for a `Limited` of this app's routes that cannot be decided; those of mounted apps raise when asked."""
        routes: Any = getattr(app, "routes", ())
        # Newer versions keep a router that was included as it is.
        listed = getattr(fastapi.routing, "iter_route_contexts", iter)(routes)
        for route in listed:
            for limited in _limited(getattr(route, "dependant", None)):
                self._gate.check(limited.rule)


class Limited:
    """A dependency that limits its route, or its router, by one more rule; the arguments are those of `Rule`.

    `key` is a function of the request, as everywhere, or any dependency of FastAPI: `current_user` with its own
    `Depends(...)` is called once a request, wherever else it is used. WebSocket routes may have it too.
    """

    def __init__(self, policy: str, key: Subject | Callable[..., Any], **fields: Unpack[Fields[Any]]) -> None:
        check_made(key)
        dependency = key if callable(key) and not _takes_request(key) else None
        own_key = key if dependency is None else _found
        self.rule = Rule(policy, own_key, **fields)
        self._rules = (self.rule,)
        self._checked_by: Gate | None = None
        asked = [inspect.Parameter("connection", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=HTTPConnection)]
        if dependency is not None:
            asked.append(
                inspect.Parameter(
                    "subject", inspect.Parameter.KEYWORD_ONLY, default=Depends(dependency), annotation=Any
                )
            )
        self.__signature__ = inspect.Signature(asked)

    async def __call__(self, connection: HTTPConnection, *, subject: Any = None) -> None:
        """Decide; FastAPI calls it before the route."""
        visit = visit_of(connection.scope)
        if visit.exempt:
            return
        if visit.gate is not self._checked_by:
            visit.gate.check(self.rule)
            self._checked_by = visit.gate
        visit.subject = subject
        refusal = await visit.entered(connection, self._rules)
        if refusal is not None:
            raise Refused(refusal)


def _limited(dependant: Any) -> Iterator[Limited]:
    """Those that a route depends on."""
    for below in getattr(dependant, "dependencies", ()):
        if isinstance(below.call, Limited):
            yield below.call
        yield from _limited(below)


def _found(connection: HTTPConnection) -> Any:
    """What the dependency returned for this route."""
    return visit_of(connection.scope).subject


def _takes_request(key: Any) -> bool:
    """Whether it is a function of the request, as all keys of capline.web are; else FastAPI has to call it."""
    try:
        parameters = list(inspect.signature(key).parameters.values())
    except (TypeError, ValueError):
        return False
    if len(parameters) != 1 or parameters[0].default is not inspect.Parameter.empty:
        return False
    kind = parameters[0].annotation
    return kind in (inspect.Parameter.empty, Any, "Any", Request, "Request", HTTPConnection, "HTTPConnection")
