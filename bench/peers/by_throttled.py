"""throttled-py: its answer says what is left and when more is, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import throttled

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Ask

USING = {"sliding_log": "sliding_window", "fixed_window": "fixed_window", "gcra": "gcra"}
"""Its sliding window is an estimate from two counters; its users take it for the log."""


def attempts(algorithm: str, quota: int, address: str) -> dict[str, Callable[[int], Ask]]:
    """A hit of a cost."""
    if algorithm not in USING:
        return {}
    store = throttled.RedisStore(server=f"redis://{address}/0") if address else throttled.MemoryStore()
    daily = throttled.per_day(quota, burst=quota)
    bucket = throttled.Throttled(using=USING[algorithm], quota=daily, store=store)
    return {"throttled-py": lambda cost: lambda subject: not bucket.limit(subject, cost).limited}
