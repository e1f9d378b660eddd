"""The service's metrics: one process has its own registry, several use prometheus-client's multiprocess mode.

The metrics that every request adds to are in `figures`. Memory and processor time are by process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

from capline.model.errors import StoreError
from capline.observe import SegmentMetrics, ServerMetrics, StoreMetrics
from capline.observe.bounded import LABEL_SETS
from capline.observe.metrics import BUCKETS_SECONDS
from capline.observe.metrics import Metrics as DecisionMetrics
from capline.service.http.app import Reply, Request, Route
from capline.service.metrics.figures import Figures

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from capline.config.configuration import Configuration
    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.policies.segments import SegmentSource
    from capline.observe.bounded import Figure

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that turns the multiprocess mode on; prometheus-client reads it when it is imported."""


STORE_EVERY_S, STORE_WITHIN_S = 2.0, 5.0
SERVERS_EVERY_S = 10.0
"""How often a process asks each server; one INFO costs a server some 0.1 ms."""


class StoreSeen(NamedTuple):
    """When the store last recorded for this process, in seconds since 1970; whether it does now, and why not."""

    at: float | None = None
    up: bool = False
    why: str = ""


class Metrics:
    """What this process counts: hand `observer` to the limiter, then `add` it."""

    def __init__(self, role: str = "service") -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        folder = self._folder = os.environ.get(FOLDER)
        self.figures = figures = Figures(folder)
        registry.register(figures)
        self.observer = DecisionMetrics(
            LABEL_SETS,
            figures.counter,
            lambda name, text, labels: figures.histogram(name, text, BUCKETS_SECONDS, labels),
        )

        def gauge(name: str, text: str, mode: Any, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry, multiprocess_mode=mode)

        refused = "1 while what changed is refused and the last good one goes on"
        self._refused = gauge("capline_reload_refused", refused, "livemax", "what")
        self._store_up = gauge("capline_store_up", "1 while the store records for this process", "livemin")
        heard = "The version of the configuration that each process has heard of"
        self._known_version = gauge("capline_config_known_version", heard, "liveall")
        self._failures = Counter(
            "capline_reload_failures_total", "Changes that were refused", ["what"], registry=registry
        )
        self._reloads = Counter("capline_reloads_total", "Changes that were taken over", ["what"], registry=registry)
        self._requests = figures.counter("capline_http_requests_total", "Requests, by status", ("status",))
        self._seconds = figures.histogram(
            "capline_http_seconds", "Seconds from a request's head to its answer", BUCKETS_SECONDS
        )(())
        self._by_status: dict[int, Figure] = {}
        gauge("capline_process_up", "1 for each process", "liveall", "role").labels(role).set(1)
        self.asked = self.registry if folder is None else CollectorRegistry()
        if folder is None:
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=self.asked)
        else:
            self.asked.register(Collected(partial(process_files, Path(folder))))
            self.asked.register(Collected(partial(_processes, Path(folder))))
        self._stores, self._segments = StoreMetrics(self.asked), SegmentMetrics(self.asked)
        self.servers = ServerMetrics(self.asked, registry)
        self.store = StoreSeen()
        self.refused: set[str] = set()
        """What changed and was refused, so that the last good one goes on."""

    def add(self, limiter: AsyncLimiter, segments: SegmentSource | None = None) -> None:
        """Export its store, too, its segments and its configuration."""
        self._stores.add("main", limiter)
        if segments is not None:
            self._segments.add("main", segments)
            self.asked.register(Collected(partial(_missing_segments, limiter)))
        if limiter.configuration is not None:
            self.asked.register(Collected(partial(configuration_figures, limiter.configuration)))

    def reloaded(self, what: str, *, refused: bool, changed: bool) -> None:
        """Record that a change was taken over or refused."""
        self._refused.labels(what).set(refused)
        (self.refused.add if refused else self.refused.discard)(what)
        if changed:
            (self._failures if refused else self._reloads).labels(what).inc()

    def counted(self) -> Iterable[Metric]:
        """What every request and decision adds to, of all workers; takes some milliseconds."""
        return self.figures.collect() if self._folder is None else process_files(Path(self._folder))

    async def watch(self, limiter: AsyncLimiter) -> None:
        """Try every two seconds whether the store would record, until this is cancelled."""
        while True:
            if limiter.configuration is not None:
                self._known_version.set(limiter.configuration.version)
            try:
                async with asyncio.timeout(STORE_WITHIN_S):
                    await limiter.try_write()
                self.store = StoreSeen(time.time(), True)
            except (StoreError, TimeoutError) as error:
                why = str(error) or f"it did not answer within {STORE_WITHIN_S:g} s"
                self.store = StoreSeen(self.store.at, False, why)
            self._store_up.set(self.store.up)
            await asyncio.sleep(STORE_EVERY_S)

    def answered(self, status: int, seconds: float) -> None:
        """Count a request that was answered with this status."""
        count = self._by_status.get(status)
        if count is None:
            count = self._by_status[status] = self._requests((str(status),))
        count(1)
        self._seconds(seconds)

    def routes(self) -> dict[str, Route]:
        """The route where they are read."""
        return {"/metrics": Route({"GET": self._answer})}

    async def _answer(self, _request: Request) -> Reply:
        # In a thread: with thousands of series it takes a tenth of a second, and decisions go on meanwhile.
        return Reply(await asyncio.to_thread(generate_latest, self.asked), type=CONTENT_TYPE_PLAIN_0_0_4)


class Collected:
    """A collector: what a function tells at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect


def configuration_figures(configuration: Configuration) -> Iterable[Metric]:
    """Gauges of the configuration that this process serves."""
    figures = configuration.stats()
    for name, what in (
        ("up", "Whether the configuration store answered when it was last asked."),
        ("version", "The version of the configuration in force."),
        ("stale_seconds", "Seconds since the configuration store last answered; 0 while it answers."),
        ("policies", "Policies in the configuration."),
        ("overrides", "Overrides in the configuration."),
    ):
        yield GaugeMetricFamily(f"capline_config_{name}", what, value=figures[name])


def _missing_segments(limiter: AsyncLimiter) -> Iterable[Metric]:
    missing = sum(map(len, limiter.missing_segments.values()))
    what = "Segments that policies list and the served version lacks."
    yield GaugeMetricFamily("capline_missing_segments", what, value=missing)


def process_files(folder: Path) -> Iterable[Metric]:
    """What all processes of a folder have counted. A file without a byte is of one that begins, or was killed then."""
    paths: list[str] = []
    for path in folder.glob("*.db"):
        with suppress(FileNotFoundError):  # a dead worker's gauges go
            if path.stat().st_size:
                paths.append(str(path))
    return MultiProcessCollector.merge(paths)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - it has no types


def _processes(folder: Path) -> Iterable[Metric]:
    """Memory and processor time of every process that has figures in the folder, by its id."""
    families: dict[str, Metric] = {}
    for path in sorted(folder.glob("gauge_liveall_*.db")):
        pid = path.stem.rpartition("_")[2]
        for metric in ProcessCollector(pid=lambda pid=int(pid): pid, registry=None).collect():
            family = families.setdefault(metric.name, metric)
            samples = [sample._replace(labels={**sample.labels, "pid": pid}) for sample in metric.samples]
            family.samples = samples if family is metric else [*family.samples, *samples]
    return families.values()


async def watch_servers(limiter: AsyncLimiter, metrics: ServerMetrics) -> None:
    """Show the servers of the limiter's stores in these metrics, until this is cancelled."""
    async with asyncio.TaskGroup() as group:  # apart: a slow store delays its own figures only
        group.create_task(_watch_logs(limiter, metrics))
        if limiter.configuration is not None:
            group.create_task(_watch_configuration(limiter.configuration, metrics))


async def _watch_logs(limiter: AsyncLimiter, metrics: ServerMetrics) -> None:
    while True:
        try:
            metrics.show(await limiter.servers())
        except StoreError:
            metrics.show([])
        await asyncio.sleep(SERVERS_EVERY_S)


async def _watch_configuration(configuration: Configuration, metrics: ServerMetrics) -> None:
    while True:
        metrics.show(await asyncio.to_thread(configuration.servers), "config")
        await asyncio.sleep(SERVERS_EVERY_S)
