"""Waiters that are cancelled while others wait behind them, on every store: those behind them move up (decision 16)."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.conformance.test_server_stores import redis, redis_cluster, valkey, valkey_cluster

from capline.model.errors import InvalidValueError
from capline.testing.setting import SECOND, START_US, StoreSetting


class Waiters(StoreSetting):
    """The checks."""

    def goes(self, limiter: Any) -> list[int]:
        """The instants of the hits with units, in microseconds from the start."""
        return [hit.stamp_us - START_US for hit in limiter.explain("p", "s").hits if hit.units]

    def test_nobody_passes_a_waiter_that_is_still_there(self) -> None:
        limiter = self.one("1/500ms")
        a, b, c, d, e = (limiter.schedule("p", "s") for _ in range(5))
        assert limiter.refund("p", "s", b.hit)
        assert limiter.refund("p", "s", d.hit)
        assert limiter.move("p", "s", e.hit).wait_us == 1_500_001
        assert limiter.move("p", "s", c.hit).wait_us == 500_001
        assert self.goes(limiter) == [0, 500_001, 1_500_001]
        self.at(0.6)
        assert limiter.move("p", "s", START_US + 500_001).late_us == 99_999
        assert not limiter.move("p", "s", a.hit)
        assert limiter.move("p", "s", START_US + 1_500_001, not_before=0.7).wait_us == 700_000
        assert limiter.move("p", "s", START_US + 1_300_000).wait_us == 400_001

    def test_a_slot_with_an_id_is_found_wherever_it_is(self) -> None:
        limiter = self.one("1/500ms")
        first, slot = limiter.schedule("p", "s"), limiter.schedule("p", "s", 1, "mine")
        assert limiter.refund("p", "s", first.hit)
        for _ in range(2):
            assert limiter.move("p", "s", slot.hit, "mine").wait_us == 1
        assert limiter.schedule("p", "s", 1, "mine").wait_us == 1
        assert not limiter.move("p", "s", slot.hit, "other")
        assert limiter.explain("p", "s", ids=["mine"]).hits[-2].id == "mine"

    def test_every_limit_holds_for_a_slot_that_moves_with_its_cost(self) -> None:
        limiter = self.one("4/second", "6/10s", channels={"push": ["3/2s"]})
        waits = [limiter.schedule("p", "s", 2, channel="push") for _ in range(4)]
        assert [round(slot.wait) for slot in waits] == [0, 2, 4, 10]
        assert limiter.refund("p", "s", waits[1].hit)
        assert not limiter.refund("p", "s", waits[1].hit)
        for channel in (None, "email"):
            with pytest.raises(InvalidValueError, match="name the channel"):
                limiter.move("p", "s", waits[3].hit, channel=channel)
        assert round(limiter.move("p", "s", waits[3].hit, channel="push").wait) == 6
        moved = limiter.move("p", "s", waits[2].hit, channel="push")
        assert (round(moved.wait), moved.remaining) == (2, 1)
        assert [round(at / SECOND) for at in self.goes(limiter)] == [0, 2, 6]
        assert limiter.settle("p", "s", moved.hit, 1)
        assert limiter.usage("p", "s", channel="push")[1].used == 5

    def test_only_where_single_hits_are_kept(self) -> None:
        for kind in ({"algorithm": "gcra"}, {"algorithm": "bucketed"}, {"count_denied": True}):
            with pytest.raises(InvalidValueError, match="only sliding_log without count_denied"):
                self.one("1/500ms", **kind).move("p", "s", START_US)

    def test_in_a_long_queue(self) -> None:
        limiter = self.one("1/500ms")
        slots = [limiter.schedule("p", "s", 1, f"{number}") for number in range(300)]
        for slot in slots[1:200]:
            assert limiter.refund("p", "s", slot.hit)
        for number, slot in enumerate(slots[200:]):
            assert limiter.move("p", "s", slot.hit).wait_us == 500_000 * (number + 1) + 1
        assert len(self.goes(limiter)) == 101
        assert limiter.schedule("p", "s", 1, "299").wait_us == 50_000_001


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
TestRedisNext = on(lambda: redis() + "&forms=next")
TestValkeyClusterNext = on(lambda: valkey_cluster() + "&forms=next")
