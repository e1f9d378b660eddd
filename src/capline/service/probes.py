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
from capline.observe import PrometheusObserver, StoreMetrics
from capline.service.configuration import ConfigurationMetrics, configuration_state
from capline.service.http import Reply, Request, Route

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter

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

    def add(self, limiter: AsyncLimiter) -> None:
        """Tell of its store, too."""
        StoreMetrics(self.registry).add("main", limiter)
        if limiter.configuration is not None:
            ConfigurationMetrics(self.registry, limiter.configuration)

    def routes(self) -> dict[str, Route]:
        """Where they are read."""
        return {"/metrics": Route({"GET": self._answer})}

    async def _answer(self, _request: Request) -> Reply:
        return Reply(generate_latest(self.registry), type=CONTENT_TYPE_PLAIN_0_0_4)


def probes(limiter: AsyncLimiter) -> dict[str, Route]:
    """Alive and ready."""

    async def alive(_request: Request) -> Reply:
        return Reply(OK)

    async def ready(_request: Request) -> Reply:
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await limiter.now_us()
        except TimeoutError:
            raise StoreUnavailableError(f"the store did not answer within {READY_WITHIN_S:g} s") from None
        state = configuration_state(limiter)
        return Reply(msgspec.json.encode({"status": "ok", **state}) if state else OK)

    return {"/healthz": Route({"GET": alive}), "/readyz": Route({"GET": ready})}
