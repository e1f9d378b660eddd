"""The limiters that are asked, each behind the same three verbs: decide, give back, and what the servers hold at the end.

All keep the same limit. Where a limiter can, it also keeps what has left the window, under a second limit that never
binds: so that at the end every hit that was acknowledged can be looked for, and not only those of the last seconds.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisClusterStorage
from limits.aio.strategies import MovingWindowRateLimiter
from redis import RedisCluster
from redis.asyncio import RedisCluster as AsyncRedisCluster

from capline import AsyncLimiter, Limit, Limiter, Policy
from capline.store.redis.keys import slot_of, tag_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CALLERS", "DEADLINE_S", "KEEP_US", "POLICY", "QUOTA", "WINDOW_US", "Caller", "Place"]

POLICY = "p"
QUOTA = 30
WINDOW_US = 10_000_000
KEEP_US = 86_400_000_000
NEVER_BINDS = 1_000_000_000
DEADLINE_S = 1.0
UNTOLD = -1
SORTED_SET = Path(__file__).parents[2] / "bench" / "sorted_set.lua"

Content = dict[str, list[tuple[int, int]]]
"""By subject: stamp and units of each hit."""


@dataclass(frozen=True)
class Place:
    """A cluster, and the name under which a run keeps its logs on it."""

    addresses: str
    namespace: str

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """Host and port of each node to begin with."""
        return [(host, int(port)) for host, _, port in (one.partition(":") for one in self.addresses.split(","))]


@dataclass(frozen=True, slots=True)
class Told:
    """What a limiter answers that is not capline."""

    allowed: bool
    hit: int | None
    retry_after_us: int = UNTOLD


class Caller(Protocol):
    """One process's limiter."""

    tells_stamps: bool
    """Whether a hit has a stamp by which it can be found again."""

    def __init__(self, place: Place) -> None: ...

    async def decide(self, subject: str, id: str | None) -> Any:
        """Consume one unit, or not; anything with `allowed`, `hit` and `retry_after_us`."""

    async def refund(self, subject: str, hit: int) -> bool | None:
        """Give a hit back; None where the limiter has no such verb."""

    async def close(self) -> None:
        """Let the connections go."""

    @classmethod
    def content(cls, place: Place, subjects: Iterable[str]) -> Content | None:
        """What the servers hold; None where that does not tell which hits were recorded."""

    @staticmethod
    def slot(place: Place, subject: str) -> int:
        """Where in the cluster the subject's log is."""


class Capline:
    """capline, its replication asynchronous, as it is by default."""

    tells_stamps = True
    replicas = 0

    def __init__(self, place: Place) -> None:
        self._limiter = AsyncLimiter(_url(place, DEADLINE_S), self._policies(), namespace=place.namespace)

    @classmethod
    def _policies(cls) -> list[Policy]:
        kept = Policy("kept", [Limit(NEVER_BINDS, KEEP_US)], log=POLICY)
        return [Policy(POLICY, [Limit(QUOTA, WINDOW_US)], wait_replicas=cls.replicas), kept]

    async def decide(self, subject: str, id: str | None) -> Any:
        """`AsyncLimiter.decide`."""
        return await self._limiter.decide(POLICY, subject, id=id)

    async def refund(self, subject: str, hit: int) -> bool | None:
        """`AsyncLimiter.refund`."""
        return await self._limiter.refund(POLICY, subject, hit)

    async def close(self) -> None:
        """Close the limiter."""
        await self._limiter.close()

    @classmethod
    def content(cls, place: Place, subjects: Iterable[str]) -> Content | None:
        """By `explain`."""
        with Limiter(_url(place, 30), cls._policies(), namespace=place.namespace) as limiter:
            return {
                subject: [(hit.stamp_us, hit.units) for hit in limiter.explain(POLICY, subject).hits]
                for subject in subjects
            }

    @staticmethod
    def slot(place: Place, subject: str) -> int:
        """By the tag of the subject's key."""
        return slot_of(tag_of(subject, 0))


class Replicated(Capline):
    """capline, where a hit counts as allowed when a replica has it."""

    replicas = 1


class SortedSet:
    """The published script of one sorted set a subject: scores and members are stamps of the callers' clocks."""

    tells_stamps = True

    def __init__(self, place: Place) -> None:
        self._place = place
        self._script = SORTED_SET.read_text(encoding="utf-8")
        host, port = place.nodes[0]
        self._client: Any = AsyncRedisCluster(host=host, port=port, socket_timeout=DEADLINE_S)

    async def decide(self, subject: str, id: str | None) -> Told:
        """The script, sent whole: after a failover the new primary does not know it by its hash."""
        del id  # it has none
        now_us = time.time_ns() // 1000
        words = (KEEP_US // 1_000_000, QUOTA, now_us - WINDOW_US, NEVER_BINDS, now_us - KEEP_US)
        allowed = await self._client.eval(self._script, 1, _key(self._place, subject), now_us, *words)
        return Told(bool(allowed), now_us if allowed else None)

    async def refund(self, subject: str, hit: int) -> bool | None:
        """Take the member out."""
        return bool(await self._client.zrem(_key(self._place, subject), hit))

    async def close(self) -> None:
        """Close the client."""
        await self._client.aclose()

    @classmethod
    def content(cls, place: Place, subjects: Iterable[str]) -> Content | None:
        """All members."""
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
        """Of its key."""
        return slot_of(_key(place, subject).encode())


class Limits:
    """The package limits, its moving window; a hit is an entry of a list, cut to the quota: none can be found again."""

    tells_stamps = False

    def __init__(self, place: Place) -> None:
        storage: Any = RedisClusterStorage(
            f"async+redis+cluster://{place.addresses}", implementation="redispy", socket_timeout=DEADLINE_S
        )
        self._limiter = MovingWindowRateLimiter(storage)
        self._storage = storage
        self._item = RateLimitItemPerSecond(QUOTA, WINDOW_US // 1_000_000, namespace=place.namespace)

    async def decide(self, subject: str, id: str | None) -> Told:
        """`hit`."""
        del id  # it has none
        return Told(await self._limiter.hit(self._item, subject), None)

    async def refund(self, subject: str, hit: int) -> bool | None:
        """It has no such verb."""
        del subject, hit

    async def close(self) -> None:
        """It has no such verb either; what is open goes with the process."""
        with suppress(Exception):
            await asyncio.wait_for(self._storage.bridge.get_connection().aclose(), 1)

    @classmethod
    def content(cls, place: Place, subjects: Iterable[str]) -> Content | None:
        """It tells nothing: older hits are cut off."""
        del place, subjects

    @staticmethod
    def slot(place: Place, subject: str) -> int:
        """Of the key that the package makes."""
        item = RateLimitItemPerSecond(QUOTA, WINDOW_US // 1_000_000, namespace=place.namespace)
        return slot_of(f"LIMITS:{item.key_for(subject)}".encode())


def _url(place: Place, deadline_s: float) -> str:
    return f"redis+cluster://{place.addresses}?deadline={deadline_s:g}s&bulk_deadline=30s"


def _key(place: Place, subject: str) -> str:
    return f"{place.namespace}:{subject}"


CALLERS: dict[str, type[Caller]] = {
    "capline": Capline,
    "capline, wait_replicas=1": Replicated,
    "sorted set": SortedSet,
    "limits": Limits,
}
"""By the names that the table has for them."""
