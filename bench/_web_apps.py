"""The apps of bench/web.py: one answer of a few bytes for `GET /`, bare and under one limit of each package.

All count in memory by the client's address, none refuses, and each sends headers of its limits where it can
(django-ratelimit and fastapi-limiter send none). Called as their servers would call them, without a socket: an ASGI app
by its scope, a WSGI app by its environ. As a program it serves one of the ASGI apps, until its input is closed.
"""

# Django and the limiters that are compared come without types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import io
import sys
import warnings
from typing import TYPE_CHECKING, Any

from _serve import serve
from django.conf import settings

from capline import AsyncLimiter, Limiter, Policy
from capline.web import Rule, key

__all__ = ["ADDRESSES", "ASGI_APPS", "WSGI_APPS", "address", "asgi", "wsgi"]

QUOTA = 100_000_000
ADDRESSES = 1000
"""Clients that take turns, as an app has many of them with short logs each."""

POLICIES = [Policy("ip", [f"{QUOTA}/hour"])]
THEIRS = f"{QUOTA}/hour"
RULES = [Rule("ip", key.ip())]

warnings.simplefilter("ignore")
settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    SILENCED_SYSTEM_CHECKS=["django_ratelimit.E003", "django_ratelimit.W001"],
    LOGGING_CONFIG=None,
    CAPLINE={"limiter": lambda: Limiter("memory://", POLICIES), "rules": RULES},
)

import django
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from django_ratelimit.decorators import ratelimit
from fastapi import Depends, FastAPI, Request
from fastapi_limiter.depends import RateLimiter  # pyright: ignore[reportMissingImports] - in build/guests
from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from pyrate_limiter import Duration, InMemoryBucket, Rate
from pyrate_limiter import Limiter as PyrateLimiter
from slowapi import Limiter as SlowLimiter
from slowapi.middleware import SlowAPIASGIMiddleware
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from capline.web.asgi import CaplineMiddleware
from capline.web.fastapi import Limited
from capline.web.flask import Capline

django.setup()

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

SCOPE: dict[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "GET",
    "path": "/",
    "raw_path": b"/",
    "root_path": "",
    "scheme": "http",
    "query_string": b"",
    "headers": [(b"host", b"localhost"), (b"accept", b"*/*"), (b"user-agent", b"bench")],
    "client": ("127.0.0.1", 50000),
    "server": ("127.0.0.1", 8000),
}
ENVIRON: dict[str, Any] = {
    "REQUEST_METHOD": "GET",
    "SCRIPT_NAME": "",
    "PATH_INFO": "/",
    "QUERY_STRING": "",
    "SERVER_NAME": "localhost",
    "SERVER_PORT": "8000",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "REMOTE_ADDR": "127.0.0.1",
    "HTTP_HOST": "localhost",
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "http",
    "wsgi.input": io.BytesIO(),
    "wsgi.errors": None,
    "wsgi.multithread": False,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
}


async def _home(_: object) -> PlainTextResponse:
    return PlainTextResponse("home")


def _django_home(_: object) -> HttpResponse:
    return HttpResponse(b"home")


urlpatterns = [path("", _django_home), path("theirs", ratelimit(key="ip", rate=f"{QUOTA}/h", block=True)(_django_home))]


def address(number: int) -> str:
    """Of this many requests, the client of that one."""
    return f"10.0.{number % ADDRESSES >> 8}.{number % ADDRESSES & 255}"


async def _empty() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def asgi(app: Any, loop: asyncio.AbstractEventLoop) -> Callable[[int], int]:
    """So many requests; how many were answered 200."""
    scopes = [{**SCOPE, "client": (address(number), 50_000)} for number in range(ADDRESSES)]

    async def ask(requests: int) -> int:
        good = 0

        async def send(message: dict[str, Any]) -> None:
            nonlocal good
            good += message.get("status") == 200

        for number in range(requests):
            await app(dict(scopes[number % ADDRESSES]), _empty, send)
        return good

    return lambda requests: loop.run_until_complete(ask(requests))


def wsgi(app: Any, where: str = "/") -> Callable[[int], int]:
    """So many requests; how many were answered 200."""
    environs = [{**ENVIRON, "PATH_INFO": where, "REMOTE_ADDR": address(number)} for number in range(ADDRESSES)]

    def ask(requests: int) -> int:
        good = 0

        def start(status: str, *_: object) -> None:
            nonlocal good
            good += status.startswith("200")

        for number in range(requests):
            answer = app(dict(environs[number % ADDRESSES]), start)
            b"".join(answer)
            if hasattr(answer, "close"):
                answer.close()
        return good

    return ask


def _starlette(limited: str = "") -> Any:
    app = Starlette(routes=[Route("/", _home)])
    if limited == "capline":
        app.add_middleware(CaplineMiddleware, limiter=AsyncLimiter("memory://", POLICIES), rules=RULES)
    elif limited:
        app.state.limiter = SlowLimiter(key_func=_address, default_limits=[THEIRS], headers_enabled=True)
        app.add_middleware(SlowAPIASGIMiddleware)
    return app


def _address(request: Request) -> str:
    return request.client.host if request.client else "127.0.0.1"


async def _its_address(request: Request) -> str:
    return _address(request)


def _fastapi(limited: str = "") -> Any:
    app = FastAPI()
    depends: list[Any] = []
    if limited == "capline":
        depends = [Depends(Limited("ip", key.ip()))]
        app.add_middleware(CaplineMiddleware, limiter=AsyncLimiter("memory://", POLICIES))

    if limited == "fastapi-limiter":
        theirs = PyrateLimiter(InMemoryBucket([Rate(QUOTA, Duration.HOUR)]))
        depends = [Depends(RateLimiter(limiter=theirs, identifier=_its_address))]

    async def home(request: Request) -> PlainTextResponse:
        return await _home(request)

    if limited == "slowapi":
        app.state.limiter = SlowLimiter(key_func=_address, headers_enabled=True)
        home = app.state.limiter.limit(THEIRS)(home)
    app.get("/", dependencies=depends)(home)
    return app


def _fastapi_json(*, limited: bool = False) -> Any:
    """An app as people have them: a value by its type, as JSON; the limit is the middleware's."""
    app = FastAPI()
    if limited:
        app.add_middleware(CaplineMiddleware, limiter=AsyncLimiter("memory://", POLICIES), rules=RULES)

    async def home(request: Request) -> dict[str, str]:
        return {"name": "home", "from": _address(request)}

    app.get("/")(home)
    return app


def _flask(limited: str = "") -> Any:
    app = Flask("bench")
    app.get("/")(lambda: "home")
    if limited == "capline":
        Capline(Limiter("memory://", POLICIES), rules=RULES).init_app(app)
    elif limited:
        FlaskLimiter(
            _flask_address,
            app=app,
            default_limits=[THEIRS],
            storage_uri="memory://",
            headers_enabled=True,
            strategy="moving-window" if limited == "flask-limiter-moving" else "fixed-window",
        )
    return app


def _flask_address() -> str:
    from flask import request  # noqa: PLC0415 - a name of that call alone

    return request.remote_addr or "127.0.0.1"


def _django(*middleware: str) -> Any:
    with override_settings(MIDDLEWARE=list(middleware)):
        return WSGIHandler()


ASGI_APPS: dict[str, Callable[[], Any]] = {
    "Starlette, bare": _starlette,
    "Starlette, capline": lambda: _starlette("capline"),
    "Starlette, slowapi": lambda: _starlette("slowapi"),
    "FastAPI, bare": _fastapi,
    "FastAPI, capline": lambda: _fastapi("capline"),
    "FastAPI, slowapi": lambda: _fastapi("slowapi"),
    "FastAPI, fastapi-limiter": lambda: _fastapi("fastapi-limiter"),
    "FastAPI with JSON, bare": _fastapi_json,
    "FastAPI with JSON, capline": lambda: _fastapi_json(limited=True),
}
"""By name; "bare" is what those after it are compared with."""

WSGI_APPS: dict[str, tuple[Callable[[], Any], str]] = {
    "Flask, bare": (_flask, "/"),
    "Flask, capline": (lambda: _flask("capline"), "/"),
    "Flask, flask-limiter, fixed window": (lambda: _flask("flask-limiter"), "/"),
    "Flask, flask-limiter, moving window": (lambda: _flask("flask-limiter-moving"), "/"),
    "Django, bare": (_django, "/"),
    "Django, capline": (lambda: _django("capline.web.django.CaplineMiddleware"), "/"),
    "Django, django-ratelimit, fixed window": (_django, "/theirs"),
}
"""By name: the app, and the path that is under its limit."""


if __name__ == "__main__":
    serve(ASGI_APPS[sys.argv[1]]())
