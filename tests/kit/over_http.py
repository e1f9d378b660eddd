"""Limiters at a real service of this process, over loopback; the service's own limiter has what HTTP has not."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import cache, partial
from itertools import count
from typing import Any

import uvicorn

from capline import AsyncLimiter, Limiter
from capline.service.http.app import App, Receive, Scope, Send
from capline.service.verbs.routes import routes
from capline.testing.conformance import Awaited

BY_HTTP = frozenset(
    [
        "decide",
        "peek",
        "charge",
        "reserve",
        "commit",
        "cancel",
        "settle",
        "schedule",
        "refund",
        "usage",
        "explain",
        "erase",
        "decide_all",
        "schedule_all",
        "refund_all",
        "decide_batch",
        "decide_many",
        "refund_many",
        "acquire",
        "acquire_all",
    ]
)
"""The verbs that HTTP has."""


class Port:
    """One server for the applications of all limiters, each below a path of its own."""

    def __init__(self) -> None:
        self.apps: dict[bytes, App] = {}
        self.loop = asyncio.new_event_loop()
        config = uvicorn.Config(
            self.answer, "127.0.0.1", 0, lifespan="off", log_config=None, loop="asyncio", interface="asgi3"
        )
        config.load()
        self.server = uvicorn.Server(config)
        self.server.lifespan = config.lifespan_class(config)
        # Not `serve`, whose loop sleeps by `asyncio.sleep`: other tests of this process have that advance a clock.
        self.loop.run_until_complete(self.server.startup())
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, _, path = scope["raw_path"].removeprefix(b"/").partition(b"/")
        await self.apps[name]({**scope, "raw_path": b"/" + path}, receive, send)

    def run(self, awaitable: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self.loop).result()


port = cache(Port)
_NAMES = count()


class AtService:
    """A limiter at a service whose own limiter has these arguments, synchronous or awaited."""

    def __init__(self, url: str, policies: Any, asynchronous: bool, **options: Any) -> None:
        self.name = str(next(_NAMES))
        self.own = port().run(_made(url, policies, options))
        port().apps[self.name.encode()] = App(routes(self.own))
        self.url = f"{port().url}/{self.name}?deadline=60s"
        kind: Any = Awaited if asynchronous else Limiter
        self.limiter = kind(self.url, long_subjects=options.get("long_subjects", "refuse"))
        if asynchronous:
            self.inner, self.run, self.runner = self.limiter.inner, self.limiter.run, self.limiter.runner

    def __getattr__(self, name: str) -> Any:
        if name in BY_HTTP:
            return getattr(self.limiter, name)
        verb = getattr(self.own, name)
        return partial(_awaited, verb) if callable(verb) else verb

    def close(self) -> None:
        self.limiter.close()
        port().run(self.own.close())


async def _made(url: str, policies: Any, options: Any) -> AsyncLimiter:
    return AsyncLimiter(url, policies, **options)


def _awaited(verb: Callable[..., Any], *args: Any, **named: Any) -> Any:
    async def asked() -> Any:
        answer = verb(*args, **named)
        if hasattr(answer, "__aiter__"):
            return iter([one async for one in answer])
        return await answer if asyncio.iscoroutine(answer) else answer

    return port().run(asked())
