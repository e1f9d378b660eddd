"""What changed is taken over whole or not at all, and both are told."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from capline.model.errors import PolicyError
from capline.service.metrics import Metrics
from capline.service.run import reload
from capline.service.run.last_good import LastGood
from capline.service.run.reload import Followed, follow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from capline import AsyncLimiter


def test_a_broken_change_leaves_the_last_good_one_and_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload, "EVERY_S", 0.005)
    caplog.set_level(logging.INFO, "capline.service")
    file = tmp_path / "policies.yaml"
    metrics = Metrics()

    def limits(limiter: AsyncLimiter) -> list[str]:
        return [str(limit) for limit in limiter.policies["promo"].limits]

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"what": "policies"})

    async def until(truth: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not truth():  # noqa: ASYNC110 - what is looked at sets no event
                await asyncio.sleep(0.005)

    def put(text: str) -> None:
        """Whole: it may be looked at in between."""
        aside = tmp_path / "aside"
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)

    async def run() -> None:
        put("policies: {promo: {limits: [3/day]}}")
        last_good = LastGood(str(file), local=True)
        async with last_good.limiter("memory://") as limiter:
            now = asyncio.Event()
            followed = Followed("policies", partial(last_good.reload, limiter))
            following = asyncio.create_task(follow([followed], metrics, now))
            await until(lambda: value("capline_reload_refused") == 0)
            put("policies: {promo: {limits: [5/day, x]}}")
            now.set()
            await until(lambda: value("capline_reload_refused") == 1)
            assert limits(limiter) == ["3/day"]
            await asyncio.sleep(0.05)  # it is looked at again and again, and said once
            put("policies: {promo: {limits: [7/day]}}")
            await until(lambda: value("capline_reload_refused") == 0)
            assert limits(limiter) == ["7/day"]
            put("policies: {promo: {limits: [9/day], wait_replicas: 1}}")
            await until(lambda: value("capline_reload_refused") == 1)
            assert limits(limiter) == ["7/day"]
            file.unlink()
            await until(lambda: value("capline_reload_failures_total") == 3)
            assert limits(limiter) == ["7/day"]
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    asyncio.run(run())
    assert (value("capline_reload_failures_total"), value("capline_reloads_total")) == (3, 1)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert "policies.yaml:1: " in said[0]
    assert said[1] == "policies reloaded"
    assert "policies.yaml: policy 'promo': wait_replicas needs a redis store" in said[2]
    assert "cannot be read" in said[3]


def test_what_is_not_followed_any_more_raises_nothing() -> None:
    def refuse() -> bool:
        raise PolicyError("no")

    async def run() -> None:
        now = asyncio.Event()
        metrics = Metrics()
        now.set()
        following = asyncio.create_task(follow([Followed("policies", refuse)], metrics, now))
        async with asyncio.timeout(60):
            while not metrics.registry.get_sample_value("capline_reload_refused", {"what": "policies"}):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)
        following.cancel()
        assert isinstance((await asyncio.gather(following, return_exceptions=True))[0], asyncio.CancelledError)

    asyncio.run(run())
