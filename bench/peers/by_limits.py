"""limits: its strategies; an answer is yes or no."""

from __future__ import annotations

from typing import TYPE_CHECKING

import limits
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Ask

STRATEGIES = {
    "sliding_log": MovingWindowRateLimiter,
    "fixed_window": FixedWindowRateLimiter,
    "sliding_counter": SlidingWindowCounterRateLimiter,
}


def attempts(algorithm: str, quota: int, address: str) -> dict[str, Callable[[int], Ask]]:
    """A hit of a cost, and a test."""
    if algorithm not in STRATEGIES:
        return {}
    storage = RedisStorage(f"redis://{address}", key_prefix=algorithm) if address else MemoryStorage()
    strategy, item = STRATEGIES[algorithm](storage), limits.parse(f"{quota}/day")
    return {
        "limits": lambda cost: lambda subject: strategy.hit(item, subject, cost=cost),
        "limits, peek": lambda cost: lambda subject: strategy.test(item, subject, cost=cost),
    }
