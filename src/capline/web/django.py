"""Limits for Django, sync and async, and for Django REST framework.

    MIDDLEWARE = ["capline.web.django.CaplineMiddleware", ...]
    CAPLINE = {"limiter": "shop.limits.limiter", "rules": [Rule("ip", key.ip())]}

    @limited("login", key="post:username")
    def login(request): ...

    class Burst(CaplineThrottle):        # capline.web.drf; throttle_classes = [Burst]
        policy, key = "burst", "user"

The middleware decides when Django has found the view: all rules of the project and of the view are one decision.
Sessions and users are known then, wherever in `MIDDLEWARE` it stands. A request that reaches no view (404, a redirect
of other middleware) is decided when it is answered.

The rule: one `Limiter` for sync and async views, so that both count together. Async views call it in a thread.
"""

# Django comes without types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import functools
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from capline.limiter.limiter import Limiter
from capline.limiter.steps import run
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError, PolicyError, quoted
from capline.web import key as keys
from capline.web.gate import Gate, Visit
from capline.web.rule import Fields, Rule, is_async

try:
    from asgiref.sync import markcoroutinefunction, sync_to_async
    from django.conf import settings
    from django.core.signals import setting_changed
    from django.http import HttpResponse
    from django.utils.module_loading import import_string
except ImportError as error:
    raise CaplineError("capline.web.django needs Django: pip install django") from error

from capline.web.answer import Refusal

RULES = "_capline_rules"
EXEMPT = "_capline_exempt"
VISIT = "_capline_visit"
OPTIONS = ("headers", "on_error", "shadow", "exempt", "on_outcome")
V = TypeVar("V", bound="Callable[..., Any]")


@functools.cache
def gate() -> Gate:
    """The settings `CAPLINE`, checked: `limiter` and `rules`, and the options of `capline.web.gate.Gate`.

    `limiter` is a `Limiter`, the dotted path of one, or of a function that makes it.
    """
    said = getattr(settings, "CAPLINE", None)
    if not isinstance(said, dict):
        raise PolicyError(
            "settings have no CAPLINE; write CAPLINE = {'limiter': 'shop.limits.limiter', 'rules': [...]}"
        )
    given: dict[str, Any] = {**said}
    limiter: Any = given.pop("limiter", None)
    rules = given.pop("rules", ())
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise InvalidValueError(f"CAPLINE has no {quoted(unknown[0])}; it has limiter, rules, {', '.join(OPTIONS)}")
    limiter = import_string(limiter) if isinstance(limiter, str) else limiter
    if callable(limiter):
        limiter = limiter()
    made = Gate(limiter, Limiter, rules, **given)
    for rule in made.rules:
        if isinstance(rule.key, str) and (rule.key in _WORDS or rule.key.startswith(("header:", "get:", "post:"))):
            raise InvalidValueError(
                f"{rule} is one subject for all requests: words are for limited(); give a Rule key.ip() or a function"
            )
    return made


def _changed(*, setting: str, **_: Any) -> None:
    if setting == "CAPLINE":
        gate.cache_clear()


setting_changed.connect(_changed)


class CaplineMiddleware:
    """Decides each request under the rules of `settings.CAPLINE` and of its view."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        self._is_async = is_async(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        gate()  # bad settings are told at the start

    def __call__(self, request: Any) -> Any:
        """Answer a request; in an async stack, what is to be awaited."""
        if self._is_async:
            return self._awaited(request)
        self._begin(request)
        return self._end(request, self._get_response(request))

    async def _awaited(self, request: Any) -> Any:
        self._begin(request)
        response = await self._get_response(request)
        visit: Visit | None = getattr(request, VISIT)
        if visit is None or not (visit.may_refund or visit.rules is None):
            return self._end(request, response)  # calls no store
        return await sync_to_async(self._end, thread_sensitive=False)(request, response)

    def _begin(self, request: Any) -> None:
        setattr(request, VISIT, None if gate().is_exempt(request.path) else gate().visit())

    def process_view(self, request: Any, view: Any, _arguments: Any, _options: Any) -> Any:
        """Decide, now that the view is known; Django calls it, in a thread in an async stack."""
        if getattr(view, EXEMPT, False):
            setattr(request, VISIT, None)
        if getattr(request, VISIT) is None:
            return None
        refusal = _enter(request, (*gate().rules, *getattr(view, RULES, ())))
        return None if refusal is None else _response(refusal)

    def _end(self, request: Any, response: Any) -> Any:
        visit: Visit | None = getattr(request, VISIT)
        if visit is None:
            return response
        if visit.rules is None:
            refusal = _enter(request, gate().rules)
            if refusal is not None:
                response = _response(refusal)
        return _leave(visit, response)


def limited(policy: str, key: Any, **fields: Unpack[Fields[Any]]) -> Callable[[V], V]:
    """One more rule for a view, sync or async; the arguments are those of `Rule`, and `key` may be one of these words:

    `ip`, `user` (none for who is not logged in), `user_or_ip`, `header:X-Api-Key`, `get:name`, `post:name`.

    It works without the middleware as well, and then has headers of its own rule alone. On a class of views:
    `@method_decorator(limited(...), name="dispatch")`.
    """
    rule = Rule(policy, key_of(key), **fields)

    def around(view: V) -> V:
        rules = (rule, *getattr(view, RULES, ()))

        def decide(request: Any) -> tuple[bool, Any]:
            """Whether there is no middleware, and the refusal."""
            alone = not hasattr(request, VISIT)
            if alone:
                setattr(request, VISIT, gate().visit())
            refusal = _enter(request, (rule,)) if getattr(request, VISIT) is not None else None
            return alone, None if refusal is None else _response(refusal)

        @functools.wraps(view)
        def sync_view(request: Any, *arguments: Any, **options: Any) -> Any:
            alone, refusal = decide(request)
            response = view(request, *arguments, **options) if refusal is None else refusal
            return _leave(getattr(request, VISIT), response) if alone else response

        @functools.wraps(view)
        async def async_view(request: Any, *arguments: Any, **options: Any) -> Any:
            alone, refusal = await sync_to_async(decide, thread_sensitive=False)(request)
            response = await view(request, *arguments, **options) if refusal is None else refusal
            if not alone:
                return response
            return await sync_to_async(_leave, thread_sensitive=False)(getattr(request, VISIT), response)

        made = async_view if is_async(view) else sync_view
        setattr(made, RULES, rules)
        return made  # pyright: ignore[reportReturnType] - it takes what the view takes

    return around


def exempt(view: V) -> V:
    """A view under no rule of the middleware."""
    setattr(view, EXEMPT, True)
    return view


def key_of(key: Any) -> Any:
    """The key that a word names, as `limited` takes it; anything else as it is. Raises for an unknown word."""
    if not isinstance(key, str):
        return key
    kind, _, name = key.partition(":")
    if kind == "header" and name:
        return keys.header(name)
    if kind in ("get", "post") and name:
        return functools.partial(_field, kind.upper(), name)
    if key in _WORDS:
        return _WORDS[key]
    raise InvalidValueError(
        f"key is a function of the request, or one of ip, user, user_or_ip, header:NAME, get:NAME, post:NAME, "
        f"not {quoted(key)}"
    )


def _field(where: str, name: str, request: Any) -> str | None:
    return getattr(request, where).get(name)


def _user(request: Any) -> str | None:
    user = getattr(request, "user", None)
    if user is None:
        raise InvalidTypeError("key 'user' needs django.contrib.auth's middleware: it sets request.user")
    return f"user:{user.pk}" if user.is_authenticated else None


def _user_or_ip(request: Any) -> str:
    return _user(request) or _IP(request)


_IP = keys.ip()
_WORDS: dict[str, Any] = {"ip": _IP, "user": _user, "user_or_ip": _user_or_ip}


def visit_of(request: Any) -> Visit | None:
    """What this request has asked for so far; None where the middleware has not seen it, or it is exempt."""
    return getattr(request, VISIT, None)


def _enter(request: Any, rules: tuple[Rule, ...]) -> Refusal | None:
    """Decide under the rules that this request was not under before."""
    gate().check(*(rule for rule in rules if rule not in gate().rules))
    visit: Visit = getattr(request, VISIT)
    return run(visit.enter(request, rules))


def _leave(visit: Visit, response: Any) -> Any:
    run(visit.leave(response))
    for name, value in visit.headers().items():
        response.headers[name] = value
    return response


def _response(refusal: Refusal) -> Any:
    return HttpResponse(refusal.body, status=refusal.status, headers=refusal.fields)
