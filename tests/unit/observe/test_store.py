"""The figures of an embedded store, as Prometheus reads them."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from capline import AsyncLimiter, InvalidValueError, Limiter, Policy
from capline.observe import StoreMetrics, on_demand

POLICY = Policy("p", ["3/day"])


def test_the_figures_are_those_of_the_moment(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    metrics = StoreMetrics(registry)
    with Limiter(f"lmdb://{tmp_path}", [POLICY]) as limiter:
        metrics.add("main", limiter)
        for subject in range(3):
            assert limiter.decide("p", subject)
            assert registry.get_sample_value("capline_store_logs", {"store": "main"}) == subject + 1
        stats = limiter.stats()
        for name in ("readers", "oldest_reader", "used_pages", "free_pages", "page_bytes", "file_bytes"):
            assert registry.get_sample_value(f"capline_store_{name}", {"store": "main"}) == stats[name]
    assert b'store="main"' not in generate_latest(registry), "a store that cannot answer has no sample"


def test_a_store_without_figures_has_no_sample() -> None:
    registry = CollectorRegistry()
    with Limiter("memory://", [POLICY]) as limiter:
        StoreMetrics(registry).add("memory", limiter)
        assert b'store="memory"' not in generate_latest(registry)


def test_of_an_asynchronous_limiter(tmp_path: Path) -> None:
    async def read() -> float | None:
        registry = CollectorRegistry()
        async with AsyncLimiter(f"lmdb://{tmp_path}", [POLICY]) as limiter:
            StoreMetrics(registry).add("main", limiter)
            return registry.get_sample_value("capline_store_readers", {"store": "main"})

    assert asyncio.run(read()) == 0


def test_a_second_one_in_a_registry_and_too_many_stores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    metrics = StoreMetrics(registry)
    with pytest.raises(InvalidValueError, match="already"):
        StoreMetrics(registry)
    monkeypatch.setattr(on_demand, "MOST_SOURCES", 1)
    with Limiter("memory://", [POLICY]) as limiter:
        metrics.add("one", limiter)
        metrics.add("one", limiter)
        with pytest.raises(InvalidValueError, match="more than 1 sources of store metrics"):
            metrics.add("two", limiter)
