"""A verb over HTTP is one function: its decorator says the path, the form it takes and what it answers.

    @post("/v1/settle", SettleRequest, Settled, direct=True)
    async def settle(self, request: Request, body: SettleRequest) -> Settled: ...

`routes_of` makes the routes from these, and the OpenAPI document is made from the routes. What stands for the names in
the path comes between `request` and `body`, decoded; `{subject}` is a subject. The parameters of a GET's or DELETE's
query are in `request.parameters`; one that is not named in `query` is refused. The function returns its answer, or a
`Reply` where that has headers; the first line of its docstring is its summary.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from capline.service.http.app import ONE_BODY_BYTES, Handler, Request, Route
from capline.service.http.forms import Reader, query_of, subject_of, word_of
from capline.service.http.paths import names_of

_Function = TypeVar("_Function", bound="Callable[..., Awaitable[object]]")
_SPEC = "http_spec"


class _Spec(NamedTuple):
    method: str
    path: str
    takes: Any
    gives: Any
    query: tuple[str, ...]
    has_maps: bool
    reads: bool
    scoped: bool
    route: dict[str, Any]


def _verb(method: str, takes_body: bool) -> Callable[..., Callable[[_Function], _Function]]:
    def verb(
        path: str,
        *forms: Any,
        query: tuple[str, ...] = (),
        has_maps: bool = False,
        reads: bool = False,
        scoped: bool = False,
        **route: Any,
    ) -> Callable[[_Function], _Function]:
        def declare(function: _Function) -> _Function:
            takes, gives = forms if takes_body else (None, *forms)
            setattr(function, _SPEC, _Spec(method, path, takes, gives, query, has_maps, reads, scoped, route))
            return function

        return declare

    return verb


get, delete = _verb("GET", False), _verb("DELETE", False)
"""`get(path, gives, query=…)`, and what else a `Route` has."""
post, put, patch = (_verb(method, True) for method in ("POST", "PUT", "PATCH"))
"""`post(path, takes, gives)`, and what else a `Route` has.

`has_maps` is of the form's `Reader`; a verb that `reads` its body itself gets the request and the names. One that is
`scoped` keeps to `request.scope` itself; of others the policies are known by `_policies`, or they are refused to a
token that has a scope.
"""
_OF_A_POLICY = "/v1/policies/{", "/v1/overrides/{"
"""Paths whose first name is a policy's."""


def routes_of(*tables: object) -> dict[str, Route]:
    """The routes of the verbs of these objects, in the order of their classes."""
    routes: dict[str, Route] = {}
    for table in tables:
        for name in vars(type(table)):
            spec: _Spec | None = getattr(getattr(table, name), _SPEC, None)
            if spec is None:
                continue
            route = routes.setdefault(spec.path, Route({}, **spec.route))
            route.handlers[spec.method], is_scoped = _handler(getattr(table, name), spec)
            route.gives[spec.method] = spec.gives
            if is_scoped:
                route.scoped += (spec.method,)
            if spec.query:
                route.query[spec.method] = spec.query
            if spec.takes is not None:
                route.takes, route.body_bytes = spec.takes, route.body_bytes or ONE_BODY_BYTES
    return routes


def _policies(spec: _Spec) -> Callable[[Any], Iterable[str]] | None:
    """What names the policies of an attempt in its body; None where the verb has another form, or reads it itself."""
    named = () if spec.reads else getattr(spec.takes, "__struct_fields__", ())
    if "policy" in named:
        return lambda body: (body.policy,) if isinstance(body.policy, str) else body.policy
    if "attempts" in named:
        return lambda body: (attempt.policy for attempt in body.attempts)
    return None


def _reader(spec: _Spec, policies: Callable[[Any], Iterable[str]] | None) -> Callable[[Request], Any]:
    """What reads the body, all of whose policies the caller may ask for."""
    reader = Reader(spec.takes, has_maps=spec.has_maps)

    def read(request: Request) -> Any:
        body = reader(request.body, request.packed)
        if policies is not None and not request.scope.is_all:
            request.scope.check(*policies(body))
        return body

    return read


def _handler(function: Callable[..., Awaitable[object]], spec: _Spec) -> tuple[Handler, bool]:
    """What answers, and whether it keeps to a scope."""
    decoders = [subject_of if name == "subject" else word_of for name in names_of(spec.path)]
    of_one, policies = spec.path.startswith(_OF_A_POLICY), _policies(spec)
    scoped = spec.scoped or of_one or policies is not None
    read = None if spec.takes is None else _reader(spec, policies)

    def named(request: Request) -> list[Any]:
        words = [decode(word) for decode, word in zip(decoders, request.names, strict=True)]
        if of_one:
            request.scope.check(str(words[0]))
        return words

    if spec.reads and not decoders:
        return function, scoped
    if read is None or spec.reads:

        def handle(request: Request) -> Awaitable[object]:
            request.parameters = query_of(request.query, spec.query)
            return function(request, *named(request))

    elif decoders:

        def handle(request: Request) -> Awaitable[object]:
            return function(request, *named(request), read(request))

    else:

        def handle(request: Request) -> Awaitable[object]:
            return function(request, read(request))

    return wraps(function)(handle), scoped
