"""The verbs of the service, called in this process as somebody: the console can do nothing that they cannot."""

from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from capline.service.access.guard import check_role, may
from capline.service.access.tokens import Token
from capline.service.http.app import Reply, Request, Route
from capline.service.http.problems import Problem


class Verbs:
    """Of these routes."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = routes

    def has(self, path: str) -> bool:
        """Whether the service answers at this path."""
        return path in self._routes

    def may(self, token: Token, method: str, path: str) -> bool:
        """Whether there is such a verb, and the token may use it."""
        route = self._routes.get(path)
        known = route is not None and method in route.handlers and may(token, route.roles_of(method))
        return known and (token.scope.is_all or method in self._routes[path].scoped)

    def check(self, token: Token, method: str, path: str) -> None:
        """Raise the `Problem` where the token may not use the verb."""
        check_role(token, self._routes[path].roles_of(method))
        self._routes[path].check_scope(method, token.scope)

    async def __call__(
        self,
        token: Token,
        method: str,
        path: str,
        *names: str,
        form: object = None,
        key: str | None = None,
        pieces: Callable[[], AsyncGenerator[bytes]] | None = None,
        **query: str | int | None,
    ) -> Any:
        """What the verb at this template answers, as plain values; raises the `Problem` or error that it does.

        The `key` is for a verb that does the same request once, `pieces` are a body that says where it ends.
        """
        self.check(token, method, path)
        route = self._routes[path]
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        body = b"" if form is None else msgspec.json.encode(form)
        headers = [] if key is None else [(b"idempotency-key", key.encode())]
        request = Request(method, path.encode(), asked.encode(), headers, "console", lambda: False, body)
        request.route, request.who, request.scope = path, token.name, token.scope
        if pieces is not None:
            request.pieces, request.is_framed = pieces, True
        request.names = tuple(quote(name, safe="").encode() for name in names)
        answer = await route.handlers[method](request)
        return msgspec.to_builtins(answer.body if isinstance(answer, Reply) else answer)

    async def or_why(self, *asked: Any, **query: Any) -> tuple[Any, str]:
        """The same, and ""; or None, and why this service cannot answer, as it lacks something."""
        try:
            return await self(*asked, **query), ""
        except Problem as problem:
            if problem.status != HTTPStatus.CONFLICT:
                raise
            return None, str(problem)
