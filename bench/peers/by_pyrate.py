"""pyrate-limiter: a bucket for each subject, made at its first attempt; an answer is yes or no."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyrate_limiter
import redis

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import Ask


def attempts(algorithm: str, quota: int, address: str) -> dict[str, Callable[[int], Ask]]:
    """A hit of a cost, on its log of hits."""
    if algorithm != "sliding_log":
        return {}
    rate = pyrate_limiter.Rate(quota, pyrate_limiter.Duration.DAY)
    if address:
        asking = on_server([rate], address)
        return {"pyrate-limiter": lambda cost: lambda subject: asking(subject, cost)}
    limiters = defaultdict[str, Any](lambda: pyrate_limiter.Limiter(pyrate_limiter.InMemoryBucket([rate])))
    return {"pyrate-limiter": lambda cost: lambda subject: limiters[subject].try_acquire(subject, cost, blocking=False)}


def on_server(rates: list[pyrate_limiter.Rate], address: str) -> Callable[[str, int], Any]:
    """An attempt of a cost by a subject under these rates."""
    client: Any = redis.Redis(port=int(address.rpartition(":")[2]))
    buckets: dict[str, Any] = {}

    class Buckets(pyrate_limiter.BucketFactory):
        """The bucket of each subject."""

        def wrap_item(self, name: str, weight: int = 1) -> pyrate_limiter.RateItem:
            if name not in buckets:
                buckets[name] = pyrate_limiter.RedisBucket.init(rates, client, f"pyrate:{name}")
            return pyrate_limiter.RateItem(name, buckets[name].now(), weight=weight)

        def get(self, item: pyrate_limiter.RateItem) -> Any:
            return buckets[item.name]

    limiter = pyrate_limiter.Limiter(Buckets())
    return lambda subject, cost: limiter.try_acquire(subject, cost, blocking=False)
