"""An event loop whose clock jumps to its next timer: a run of minutes takes milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from capline.store.redis import session
from capline.store.redis.cluster import breaker, router
from capline.store.redis.io import aio, client

if TYPE_CHECKING:
    import random
    from collections.abc import Generator

__all__ = ["START_US", "SimulatedLoop", "in_simulated_time"]

START_US = 1_700_000_000_000_000
"""The wall clock's microseconds when the loop's clock shows 0."""


class _Jumps(selectors.SelectSelector):
    """Never waits: the clock advances by the timeout instead."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the simulation stands still: everybody waits, and nothing is to happen")
        self.passed_s += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """`time()` is the simulated seconds since the start."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.passed_s

    def now_us(self) -> int:
        """The simulated wall clock, which servers and records share."""
        return START_US + round(self._jumps.passed_s * 1e6)


@contextmanager
def in_simulated_time(loop: SimulatedLoop, draw: random.Random) -> Generator[None]:
    """The store's modules read the loop's clock, and draw their pauses from the seed."""
    clock: Any = SimpleNamespace(monotonic=loop.time)
    with ExitStack() as patched:
        for module in (session, router, aio, client):
            patched.enter_context(patch.object(module, "time", clock))
        for module in (breaker, router):
            patched.enter_context(patch.object(module, "random", draw))
        yield
