"""Asks the store's servers how they are, for the metrics: now and then, never because somebody reads the metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from capline.model.errors import StoreError

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.observe import ServerMetrics

__all__ = ["EVERY_S", "watch_servers"]

EVERY_S = 10.0
"""Each process asks each server so often; one INFO costs a server some 0.1 ms."""


async def watch_servers(limiter: AsyncLimiter, metrics: ServerMetrics) -> None:
    """Show the servers of the limiter's store in these metrics, until this is cancelled."""
    while True:
        try:
            metrics.show(await limiter.servers())
        except StoreError:
            metrics.show([])
        await asyncio.sleep(EVERY_S)
