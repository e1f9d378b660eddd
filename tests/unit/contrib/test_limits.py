"""The storage for `limits`: by its own strategy, and below flask-limiter and slowapi by URL."""

import asyncio
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import flask_limiter
import httpx
import pytest
import slowapi
from fastapi import FastAPI, Request
from flask import Flask
from limits import aio, parse
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from slowapi.errors import RateLimitExceeded

from capline.contrib.limits import CaplineStorage
from capline.model.errors import InvalidValueError, StoreError


@pytest.fixture(params=["memory", "lmdb"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CaplineStorage]:
    url = "capline+memory://" if request.param == "memory" else f"capline+lmdb://{tmp_path}/store"
    made: Any = storage_from_string(url)
    assert isinstance(made, CaplineStorage)
    yield made
    made.close()


def test_hit_test_and_stats_answer_as_those_of_limits(storage: CaplineStorage) -> None:
    moving, item = MovingWindowRateLimiter(storage), parse("3/hour")
    before = time.time()
    assert moving.get_window_stats(item, "user", "42").remaining == 3
    assert [moving.hit(item, "user", "42") for _ in range(2)] == [True, True]
    assert moving.test(item, "user", "42")
    assert not moving.test(item, "user", "42", cost=2)
    assert not moving.hit(item, "user", "42", cost=2)
    stats = moving.get_window_stats(item, "user", "42")
    assert stats.remaining == 1
    assert before + 3600 - 1 <= stats.reset_time <= time.time() + 3600 + 1
    assert moving.hit(item, "user", "42")
    assert not moving.hit(item, "user", "42")
    assert moving.get_window_stats(item, "user", "42").remaining == 0
    assert moving.hit(item, "user", "43")
    assert not moving.hit(item, "user", "44", cost=4)


def test_a_key_is_cleared_under_its_limit(storage: CaplineStorage) -> None:
    moving, hour, day = MovingWindowRateLimiter(storage), parse("1/2 hours"), parse("1/day")
    assert moving.hit(hour, "a")
    assert moving.hit(day, "a")
    moving.clear(hour, "a")
    assert moving.hit(hour, "a")
    assert not moving.hit(day, "a")
    with pytest.raises(InvalidValueError, match="is not a key of limits"):
        storage.clear("a")


def test_a_long_key_is_one_subject(storage: CaplineStorage) -> None:
    moving, item = MovingWindowRateLimiter(storage), parse("1/day")
    assert moving.hit(item, "k" * 600)
    assert not moving.hit(item, "k" * 600)
    assert moving.hit(item, "k" * 601)


def test_a_fixed_window_moves_too(storage: CaplineStorage) -> None:
    fixed, moving, item = FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage), parse("3/hour")
    before = time.time()
    assert [fixed.hit(item, "a", cost=cost) for cost in (2, 2, 0, 1, 1)] == [True, False, True, True, False]
    assert not moving.test(item, "a"), "they count together"
    assert not fixed.test(item, "a")
    stats = fixed.get_window_stats(item, "a")
    assert (stats.remaining, before + 3599 <= stats.reset_time <= time.time() + 3601) == (0, True)
    fixed.clear(item, "a")
    assert fixed.get_window_stats(item, "a").remaining == 3


def test_a_sliding_window_counter_is_exact_here(storage: CaplineStorage) -> None:
    sliding, item = SlidingWindowCounterRateLimiter(storage), parse("3/hour")
    before = time.time()
    assert [sliding.hit(item, "a", cost=cost) for cost in (2, 2, 1)] == [True, False, True]
    assert not sliding.test(item, "a")
    stats = sliding.get_window_stats(item, "a")
    assert (stats.remaining, before + 3599 <= stats.reset_time <= time.time() + 3601) == (0, True)
    sliding.clear(item, "a")
    assert sliding.get_window_stats(item, "a").remaining == 3


@pytest.mark.parametrize("kind", [FixedWindowRateLimiter, MovingWindowRateLimiter])
def test_a_part_of_a_unit_is_a_whole_one(storage: CaplineStorage, kind: Any) -> None:
    limiter, item = kind(storage), parse("2/hour")
    assert [limiter.hit(item, "a", cost=cost) for cost in (0, 0.5, 0.5, 0.5)] == [True, True, True, False]
    assert limiter.hit(item, "b", cost=1.5)
    assert not limiter.hit(item, "b")


def test_reset_forgets_every_key(storage: CaplineStorage) -> None:
    moving, hour, day = MovingWindowRateLimiter(storage), parse("1/hour"), parse("1/day")
    assert moving.hit(hour, "a")
    assert FixedWindowRateLimiter(storage).hit(day, "b")
    assert storage.reset() == 2
    assert moving.hit(hour, "a")
    assert moving.hit(day, "b")


@pytest.mark.parametrize("kind", ["FixedWindow", "MovingWindow", "SlidingWindowCounter"])
async def test_limits_aio_runs_on_it_by_url(kind: str, tmp_path: Path) -> None:
    storage: Any = storage_from_string(f"async+capline+lmdb://{tmp_path}/store")
    limiter, item = getattr(aio.strategies, f"{kind}RateLimiter")(storage), parse("2/hour")
    assert await storage.check()
    assert [await limiter.hit(item, "a") for _ in range(3)] == [True, True, False]
    assert not await limiter.test(item, "a")
    assert (await limiter.get_window_stats(item, "a")).remaining == 0
    await limiter.clear(item, "a")
    assert await limiter.hit(item, "a", cost=2)
    assert await storage.reset() == 1
    assert await limiter.hit(item, "a", cost=2)
    await storage.aclose()


def test_an_outage_is_no_refusal() -> None:
    down: Any = storage_from_string("capline+redis://127.0.0.1:1?deadline=1ms")
    assert not down.check()
    with pytest.raises(StoreError):
        MovingWindowRateLimiter(down).hit(parse("1/day"), "a")
    allowing: Any = storage_from_string("capline+redis://127.0.0.1:1?deadline=1ms", on_store_error="allow")
    assert MovingWindowRateLimiter(allowing).hit(parse("1/day"), "a")


def test_flask_limiter_runs_on_it_by_url(tmp_path: Path) -> None:
    app = Flask(__name__)
    limiter = flask_limiter.Limiter(
        lambda: "somebody", app=app, storage_uri=f"capline+lmdb://{tmp_path}/store", headers_enabled=True
    )

    @app.get("/")
    @limiter.limit("2/hour")
    def page() -> str:  # pyright: ignore[reportUnusedFunction] - called by its route
        return "ok"

    client = app.test_client()
    answers = [client.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert 3590 <= int(answers[2].headers["Retry-After"]) <= 3601
    (command,) = entry_points(group="flask.commands", name="limiter")
    shown = app.test_cli_runner().invoke(command.load(), ["config"])
    assert (shown.exit_code, "CaplineStorage" in shown.output) == (0, True), shown.output
    limiter.reset()
    assert client.get("/").status_code == 200


# slowapi asks asyncio what Python 3.14 would have it ask inspect.
@pytest.mark.filterwarnings("ignore:.*asyncio.iscoroutinefunction:DeprecationWarning")
def test_slowapi_runs_on_it_by_url() -> None:
    limiter: Any = slowapi.Limiter(
        key_func=lambda: "somebody", storage_uri="capline+memory://", strategy="moving-window"
    )
    app = FastAPI()
    app.state.limiter = limiter
    handler: Any = vars(slowapi)["_rate_limit_exceeded_handler"]
    app.add_exception_handler(RateLimitExceeded, handler)

    async def page(request: Request) -> str:
        return "ok"

    app.get("/")(limiter.limit("2/hour")(page))

    async def ask() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return [(await client.get("/")).status_code for _ in range(3)]

    assert asyncio.run(ask()) == [200, 200, 429]
