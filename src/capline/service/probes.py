"""What asks after the service itself: is the process alive, can it decide, its metrics.

`/readyz` asks the store for its time at each call, so it says what a decision would meet.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from capline.model.errors import StoreUnavailableError
from capline.observe import PrometheusObserver, SegmentMetrics, StoreMetrics
from capline.service.http import Reply, Request, Route
from capline.service.segments import figures

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.segments import SegmentSource

__all__ = ["Metrics", "probes"]

READY_WITHIN_S = 5.0
"""Longer than any store's own deadline: who asks gives up before."""

OK = b'{"status":"ok"}'


class Metrics:
    """The registry of this process: hand `observer` to the limiter, then `add` it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def add(self, limiter: AsyncLimiter, segments: SegmentSource | None = None) -> None:
        """Tell of its store, too, and of its segments."""
        StoreMetrics(self.registry).add("main", limiter)
        if segments is not None:
            SegmentMetrics(self.registry).add("main", segments)

    def routes(self) -> dict[str, Route]:
        """Where they are read."""
        return {"/metrics": Route({"GET": self._answer})}

    async def _answer(self, _request: Request) -> Reply:
        return Reply(generate_latest(self.registry), type=CONTENT_TYPE_PLAIN_0_0_4)


def probes(limiter: AsyncLimiter, segments: SegmentSource | None = None) -> dict[str, Route]:
    """Alive and ready. Old segments are no reason not to be: the last good ones serve, and it says how old they are."""

    async def alive(_request: Request) -> Reply:
        return Reply(OK)

    async def ready(_request: Request) -> Reply:
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await limiter.now_us()
        except TimeoutError:
            raise StoreUnavailableError(f"the store did not answer within {READY_WITHIN_S:g} s") from None
        if segments is None:
            return Reply(OK)
        return Reply(msgspec.json.encode({"status": "ok", "segments": figures(segments)}))

    return {"/healthz": Route({"GET": alive}), "/readyz": Route({"GET": ready})}
