"""Waiters that are cancelled while others wait behind them, on every store: what is so until `move` (decision 16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.test_server_stores import redis, redis_cluster, valkey, valkey_cluster

from capline.testing.setting import SECOND, START_US, StoreSetting

if TYPE_CHECKING:
    from collections.abc import Callable


class Waiters(StoreSetting):
    """The check."""

    def test_their_slots_are_lost_until_the_last_one_that_waits_behind_them(self) -> None:
        """`move` will change this: E then goes at 0.5 s, and whoever comes next at 1.0 s."""
        limiter = self.one("1/500ms")
        slots = {name: limiter.schedule("p", "s") for name in "ABCDE"}
        assert [slot.wait for slot in slots.values()] == [0, 0.5, 1.0, 1.5, 2.0]
        assert all(limiter.refund("p", "s", slots[name].hit) for name in "BCD")
        self.at(0.5)
        assert limiter.decide("p", "s").retry_after == 2.0
        assert limiter.schedule("p", "s", max_wait=1.999999).allowed is False
        assert limiter.schedule("p", "s").wait == 2.0
        self.at(2.0)
        goes = [hit.stamp_us - START_US for hit in limiter.explain("p", "s").hits if hit.units]
        assert goes == [2 * SECOND, 2.5 * SECOND]


def on(store_url: Callable[[], str], **setting: Any) -> type[Waiters]:
    """The check on this store."""
    return type("Waiters", (Waiters,), {"store_url": staticmethod(store_url), **setting})


TestMemory = on(lambda: "memory://")
TestMemoryAsync = on(lambda: "memory://", asynchronous=True)
TestLmdb = on(lambda: "lmdb://{tmp}/store")
TestLmdbAsync = on(lambda: "lmdb://{tmp}/store", asynchronous=True)
TestRedis = on(redis)
TestRedisAsyncBucket = on(redis, asynchronous=True, layout="bucket")
TestRedisClusterBucket = on(redis_cluster, layout="bucket")
TestValkeyBucket = on(valkey, layout="bucket")
TestValkeyClusterAsync = on(valkey_cluster, asynchronous=True)
