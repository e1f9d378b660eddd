"""What a limit costs a web app: the time of a request of the bare app, and of the same app with one limit.

Each app answers `GET /` with a few bytes, and is called as its server would call it, without a socket: an ASGI app by
its scope, a WSGI app by its environ. All count in memory, none refuses, and each sends headers of its limits where it
can. What that is of the requests a second behind a server, whose own time is `--server-us` microseconds a request
(uvicorn with httptools: about 40), is reckoned from both.
"""

# Django and the limiters that are compared come without types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import asyncio
import io
import warnings
from typing import TYPE_CHECKING, Any

from _harness import Report, arguments, best_interleaved, check
from django.conf import settings

from capline import AsyncLimiter, Limiter, Policy
from capline.web import Rule, key

QUOTA = 100_000_000
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
from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from slowapi import Limiter as SlowLimiter
from slowapi.middleware import SlowAPIASGIMiddleware
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from capline.web.asgi import CaplineMiddleware
from capline.web.fastapi import Limited
from capline.web.flask import Capline

if TYPE_CHECKING:
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


urlpatterns = [
    path("", _django_home),
    path("theirs", ratelimit(key="ip", rate=f"{QUOTA}/h", block=True)(_django_home)),
]


async def _empty() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def _asgi(app: Any, loop: asyncio.AbstractEventLoop) -> Callable[[int], int]:
    """So many requests; how many were answered 200."""

    async def ask(requests: int) -> int:
        good = 0

        async def send(message: dict[str, Any]) -> None:
            nonlocal good
            good += message.get("status") == 200

        for _ in range(requests):
            await app(dict(SCOPE), _empty, send)
        return good

    return lambda requests: loop.run_until_complete(ask(requests))


def _wsgi(app: Any, where: str = "/") -> Callable[[int], int]:
    def ask(requests: int) -> int:
        good = 0

        def start(status: str, *_: object) -> None:
            nonlocal good
            good += status.startswith("200")

        for _ in range(requests):
            answer = app({**ENVIRON, "PATH_INFO": where}, start)
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


def _fastapi(limited: str = "") -> Any:
    app = FastAPI()
    depends = [Depends(Limited("ip", key.ip()))] if limited == "capline" else []
    if limited == "capline":
        app.add_middleware(CaplineMiddleware, limiter=AsyncLimiter("memory://", POLICIES))

    async def home(request: Request) -> PlainTextResponse:
        return await _home(request)

    if limited == "slowapi":
        app.state.limiter = SlowLimiter(key_func=_address, headers_enabled=True)
        home = app.state.limiter.limit(THEIRS)(home)
    app.get("/", dependencies=depends)(home)
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


def main() -> None:
    """Print the table."""
    options = arguments(__doc__, requests=3000, rounds=5, server_us=40)
    django.setup()
    loop = asyncio.new_event_loop()
    ours = "capline.web.django.CaplineMiddleware"
    asks: dict[str, Callable[[int], int]] = {
        "Starlette, bare": _asgi(_starlette(), loop),
        "Starlette, capline": _asgi(_starlette("capline"), loop),
        "Starlette, slowapi": _asgi(_starlette("slowapi"), loop),
        "FastAPI, bare": _asgi(_fastapi(), loop),
        "FastAPI, capline": _asgi(_fastapi("capline"), loop),
        "FastAPI, slowapi": _asgi(_fastapi("slowapi"), loop),
        "Flask, bare": _wsgi(_flask()),
        "Flask, capline": _wsgi(_flask("capline")),
        "Flask, flask-limiter, fixed window": _wsgi(_flask("flask-limiter")),
        "Django, bare": _wsgi(_django()),
        "Django, capline": _wsgi(_django(ours)),
        "Django, django-ratelimit, fixed window": _wsgi(_django(), "/theirs"),
    }
    for name, ask in asks.items():
        check(ask(3) == 3, f"{name}: not every request was answered 200")
    seconds = best_interleaved({name: _of(ask, options.requests) for name, ask in asks.items()}, options.rounds)
    report = Report("A limit on every request: the app and its limiter, without a server")
    bare = 0.0
    for name, taken in seconds.items():
        us = taken / options.requests * 1e6
        if name.endswith("bare"):
            bare = us
            report.add(name, us, "us a request")
            continue
        share = (1 - (bare + options.server_us) / (us + options.server_us)) * 100
        report.add(name, us, "us a request")
        promised = 15 if name == "Starlette, capline" else None
        report.add(f"{name}: fewer requests/s behind a server", share, "%", at_most=promised)
    report.show(as_json=options.json)
    loop.close()


def _of(ask: Callable[[int], int], requests: int) -> Callable[[], object]:
    return lambda: ask(requests)


if __name__ == "__main__":
    main()
