"""Two published limiters, as control: the same load, and what faults and retries cost there."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisClusterStorage
from limits.aio.strategies import MovingWindowRateLimiter
from redis import RedisCluster
from redis.asyncio import RedisCluster as AsyncRedisCluster

from capline.store.redis.scripting.keys import slot_of
from proof.chaos.callers import KEEP_US, NEVER_BINDS, WINDOW_US, Caller, Content, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CONTROLS"]

UNTOLD = -1
SORTED_SET = Path(__file__).parents[2] / "bench" / "sorted_set.lua"


@dataclass(frozen=True, slots=True)
class Told:
    """A control's answer."""

    allowed: bool
    hit: int | None
    retry_after_us: int = UNTOLD


class SortedSet:
    """The published script of one sorted set a subject: scores and members are stamps of the callers' clocks."""

    tells_stamps = True

    def __init__(self, place: Place) -> None:
        self._place = place
        self._script = SORTED_SET.read_text(encoding="utf-8")
        host, port = place.nodes[0]
        self._client: Any = AsyncRedisCluster(host=host, port=port, socket_timeout=place.deadline_s)

    async def decide(self, subject: str, id: str | None) -> Told:
        """Sends the script whole: after a failover the new primary does not know its hash."""
        del id  # it has none
        now_us = time.time_ns() // 1000
        words = (KEEP_US // 1_000_000, self._place.quota, now_us - WINDOW_US, NEVER_BINDS, now_us - KEEP_US)
        allowed = await self._client.eval(self._script, 1, _key(self._place, subject), now_us, *words)
        return Told(bool(allowed), now_us if allowed else None)

    async def refund(self, subject: str, hit: int) -> bool | None:
        return bool(await self._client.zrem(_key(self._place, subject), hit))

    async def close(self) -> None:
        await self._client.aclose()

    @classmethod
    def content(cls, place: Place, subjects: Iterable[str]) -> Content | None:
        host, port = place.nodes[0]
        client: Any = RedisCluster(host=host, port=port)
        try:
            return {
                subject: [(int(member), 1) for member in client.zrange(_key(place, subject), 0, -1)]
                for subject in subjects
            }
        finally:
            client.close()

    @staticmethod
    def slot(place: Place, subject: str) -> int:
        return slot_of(_key(place, subject).encode())


class Limits:
    """The package `limits` with its moving window: a list cut to the quota, so that no hit can be found again."""

    tells_stamps = False

    def __init__(self, place: Place) -> None:
        storage: Any = RedisClusterStorage(
            f"async+redis+cluster://{place.addresses}", implementation="redispy", socket_timeout=place.deadline_s
        )
        self._limiter = MovingWindowRateLimiter(storage)
        self._storage = storage
        self._item = _item(place)

    async def decide(self, subject: str, id: str | None) -> Told:
        del id  # it has none
        return Told(await self._limiter.hit(self._item, subject), None)

    async def refund(self, subject: str, hit: int) -> bool | None:
        del subject, hit

    async def close(self) -> None:
        with suppress(Exception):
            await asyncio.wait_for(self._storage.bridge.get_connection().aclose(), 1)

    @classmethod
    def content(cls, place: Place, subjects: Iterable[str]) -> Content | None:
        """None: older hits are cut off."""
        del place, subjects

    @staticmethod
    def slot(place: Place, subject: str) -> int:
        return slot_of(f"LIMITS:{_item(place).key_for(subject)}".encode())


def _item(place: Place) -> RateLimitItemPerSecond:
    return RateLimitItemPerSecond(place.quota, WINDOW_US // 1_000_000, namespace=place.namespace)


def _key(place: Place, subject: str) -> str:
    return f"{place.namespace}:{subject}"


CONTROLS: dict[str, type[Caller]] = {"sorted set": SortedSet, "limits": Limits}
