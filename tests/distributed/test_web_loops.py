"""`capline.web` on a server: event loops that come and go, threads, an outage in flight; no socket is left behind."""

import gc
import warnings
from contextlib import asynccontextmanager
from typing import Any

import flask
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from tests.kit.server import soon
from tests.kit.servers import single
from tests.kit.web import left, policies

from capline import AsyncLimiter, Limiter
from capline.web import Rule, key
from capline.web.asgi import CaplineMiddleware
from capline.web.flask import Capline

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette asks for another client than httpx
    from starlette.testclient import TestClient

from collections.abc import AsyncGenerator

RULES = [Rule("ip", key.ip(trusted=1)), Rule("user", key.header("X-Api-Key"))]


async def home(_: object) -> PlainTextResponse:
    return PlainTextResponse("home")


@pytest.mark.deep
def test_event_loops_come_and_go_and_so_does_the_server() -> None:
    with single("redis") as server:
        limiter = AsyncLimiter(f"{server.url}?deadline=10s", policies())

        @asynccontextmanager
        async def lifespan(_: object) -> AsyncGenerator[None]:
            yield
            await limiter.close()

        def app(**options: Any) -> Starlette:
            made = Starlette(routes=[Route("/", home)], **options)
            made.add_middleware(CaplineMiddleware, limiter=limiter, rules=RULES, on_error="deny")
            return made

        ask: Any = TestClient
        for remaining in (2, 1):
            with ask(app()) as asked:
                assert left(asked.get("/", headers={"X-Api-Key": "ann"}).headers)["user-minute"] == remaining
        assert left(ask(app()).get("/", headers={"X-Api-Key": "ann"}).headers)["user-minute"] == 0
        assert ask(app()).get("/", headers={"X-Api-Key": "ann"}).status_code == 429
        with ask(app(lifespan=lifespan)) as asked:
            assert asked.get("/", headers={"X-Api-Key": "bob"}).status_code == 200
        gc.collect()


@pytest.mark.deep
def test_a_server_that_goes_away_is_503_or_nothing() -> None:
    choices: dict[Any, int] = {"allow": 200, "deny": 503}
    for choice, code in choices.items():
        with single("redis") as server, Limiter(f"{server.url}?deadline=500ms", policies()) as limiter:
            app = flask.Flask("shop")
            app.get("/")(lambda: "home")
            Capline(limiter, RULES, app, on_error=choice)
            asked = app.test_client()
            assert asked.get("/").status_code == 200
            server.kill()
            answer = asked.get("/")
            assert (answer.status_code, "RateLimit" in answer.headers) == (code, False)
    gc.collect()


def test_an_app_starts_without_its_server_and_limits_when_it_is_there() -> None:
    with single("redis") as server:
        server.kill()
        limiter = AsyncLimiter(f"{server.url}?deadline=10s", policies())

        @asynccontextmanager
        async def lifespan(_: object) -> AsyncGenerator[None]:
            yield
            await limiter.close()

        app = Starlette(routes=[Route("/", home)], lifespan=lifespan)
        app.add_middleware(CaplineMiddleware, limiter=limiter, rules=RULES, on_error="deny")
        ask: Any = TestClient
        with ask(app) as asked:
            answer = asked.get("/", headers={"X-Api-Key": "ann"})
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            server.restart()
            assert soon(lambda: asked.get("/").status_code == 200), "it is left alone for a moment"
            answers = [asked.get("/", headers={"X-Api-Key": "ann"}) for _ in range(4)]
            assert [one.status_code for one in answers] == [200, 200, 200, 429]
    gc.collect()
