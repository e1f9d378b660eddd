"""Figures read as those of prometheus-client, from one process and from the files of several."""

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from capline.service.http.app import Request
from capline.service.metrics.figures import Figures
from capline.service.metrics.registry import Collected, Metrics, process_files

BOUNDS = (10e-6, 0.5, 1)
SECONDS = (1e-6, 10e-6, 11e-6, 0.5, 0.75, 1, 1.5)
LABELS = [("promo", "ja\n\"'\\"), ("psp", ""), ("promo", "é" * 40)]


def counted(figures: Figures) -> None:
    counter = figures.counter("decisions_total", "Decisions", ("policy", "limit"))
    for number, labels in enumerate([*LABELS, LABELS[0]]):
        counter(labels)(number + 1)
    observe = figures.histogram("seconds", "Seconds", BOUNDS)(())
    named = figures.histogram("store_seconds", "Seconds", BOUNDS, ("verb",))(("decide",))
    for seconds in SECONDS:
        observe(seconds)
        named(seconds)


def counted_by_prometheus() -> list[str]:
    registry = CollectorRegistry()
    counter = Counter("decisions_total", "Decisions", ("policy", "limit"), registry=registry)
    for number, labels in enumerate([*LABELS, LABELS[0]]):
        counter.labels(*labels).inc(number + 1)
    one = Histogram("seconds", "Seconds", buckets=BOUNDS, registry=registry)
    named = Histogram("store_seconds", "Seconds", ("verb",), buckets=BOUNDS, registry=registry)
    for seconds in SECONDS:
        one.observe(seconds)
        named.labels("decide").observe(seconds)
    return lines(registry)


def lines(registry: CollectorRegistry) -> list[str]:
    """As they are scraped, but for the times of their making, which several processes do not have either."""
    return sorted(line for line in generate_latest(registry).decode().split("\n") if "_created" not in line)


def test_one_process() -> None:
    figures, registry = Figures(), CollectorRegistry()
    registry.register(figures)
    counted(figures)
    assert lines(registry) == counted_by_prometheus()


def test_several_processes_are_added_up(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))
    counted(Figures(str(tmp_path)))
    told = [line for line in counted_by_prometheus() if not line.startswith("#")]  # files hold no help but the first
    assert [line for line in lines(registry) if not line.startswith("#")] == told
    counted(Figures(str(tmp_path)))
    assert registry.get_sample_value("seconds_count") == 2 * len(SECONDS)


def test_a_worker_that_was_killed_as_it_began_hides_no_other(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(Collected(lambda: process_files(tmp_path)))
    (tmp_path / "counter_begun.db").touch()
    counted(Figures(str(tmp_path)))
    assert registry.get_sample_value("seconds_count") == len(SECONDS)


def test_a_file_that_grows_keeps_what_is_counted(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))
    counter = Figures(str(tmp_path)).counter("requests_total", "Requests", ("who",))
    adds = [counter((str(number) * 100,)) for number in range(1000, 1300)]  # past the first size
    for add in [*adds, *adds]:
        add(1)
    counted = [sample for family in registry.collect() for sample in family.samples]
    assert {sample.labels["who"]: sample.value for sample in counted} == {str(n) * 100: 2.0 for n in range(1000, 1300)}


class _WaitsForTheLoop:
    """A collector that ends once the event loop has done something else."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def collect(self) -> Iterable[Metric]:
        self.begun.set()
        assert self.may_end.wait(30)
        return ()


def test_decisions_go_on_while_the_metrics_are_written() -> None:
    metrics, collector = Metrics(), _WaitsForTheLoop()

    async def scraped() -> Any:
        metrics.asked.register(collector)  # pyright: ignore[reportArgumentType] - it has what a collector needs
        collector.begun.clear()
        collector.may_end.clear()
        read = metrics.routes()["/metrics"].handlers["GET"]
        reply: Any = asyncio.ensure_future(read(Request("GET", b"/metrics", b"", [], "", lambda: False)))  # pyright: ignore[reportArgumentType] - a coroutine
        assert await asyncio.to_thread(collector.begun.wait, 30)
        metrics.answered(200, 0.001)
        collector.may_end.set()
        return (await reply).body

    collector.may_end.set()  # prometheus-client collects once when it is registered
    body = asyncio.run(scraped())
    assert isinstance(body, bytes)
    assert b"capline_http_requests_total" in body
