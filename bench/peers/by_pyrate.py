"""pyrate-limiter: a bucket for each subject, made at its first attempt; an answer is yes or no."""

from __future__ import annotations

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
    ask = attempt([pyrate_limiter.Rate(quota, pyrate_limiter.Duration.DAY)], address)
    return {"pyrate-limiter": lambda cost: lambda subject: ask(subject, cost)}


def attempt(rates: list[pyrate_limiter.Rate], address: str) -> Callable[[str, int], Any]:
    """An attempt of a cost by a subject under these rates, in memory where no server has this address."""
    client: Any = redis.Redis(port=int(address.rpartition(":")[2])) if address else None
    buckets: dict[str, Any] = {}

    class Buckets(pyrate_limiter.BucketFactory):
        """The bucket of each subject, under one limiter: each limiter has a thread that trims its buckets."""

        def wrap_item(self, name: str, weight: int = 1) -> pyrate_limiter.RateItem:
            if name not in buckets:
                buckets[name] = (
                    pyrate_limiter.RedisBucket.init(rates, client, f"pyrate:{name}")
                    if client
                    else pyrate_limiter.InMemoryBucket(rates)
                )
            return pyrate_limiter.RateItem(name, buckets[name].now(), weight=weight)

        def get(self, item: pyrate_limiter.RateItem) -> Any:
            return buckets[item.name]

    limiter = pyrate_limiter.Limiter(Buckets())
    return lambda subject, cost: limiter.try_acquire(subject, cost, blocking=False)
