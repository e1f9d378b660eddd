"""Polls the servers of the stores for the metrics, by a timer: a scrape asks no server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from capline.model.errors import StoreError

if TYPE_CHECKING:
    from capline.config.configuration import Configuration
    from capline.limiter.aio import AsyncLimiter
    from capline.observe import ServerMetrics

EVERY_S = 10.0
"""How often a process asks each server; one INFO costs a server some 0.1 ms."""


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
        await asyncio.sleep(EVERY_S)


async def _watch_configuration(configuration: Configuration, metrics: ServerMetrics) -> None:
    while True:
        metrics.show(await asyncio.to_thread(configuration.servers), "config")
        await asyncio.sleep(EVERY_S)
