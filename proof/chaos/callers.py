"""The verbs that every limiter of the experiment has: decide, refund, and its content at the end. And capline's.

All keep the same limit. Where a limiter can, a second limit that never binds keeps the hits that left the window: so at
the end every acknowledged hit can be looked up, not only those of the last seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from capline import AsyncLimiter, Limit, Limiter, Policy
from capline.store.redis.scripting.keys import slot_of, tag_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KEEP_US", "NEVER_BINDS", "POLICY", "WINDOW_US", "Caller", "Capline", "Content", "Place", "Replicated"]

POLICY = "p"
WINDOW_US = 10_000_000
KEEP_US = 86_400_000_000
NEVER_BINDS = 1_000_000_000

Content = dict[str, list[tuple[int, int]]]
"""By subject: stamp and units of each hit."""


@dataclass(frozen=True)
class Place:
    """A cluster, and a run's namespace on it, its quota, and the deadline of each call."""

    addresses: str
    namespace: str
    quota: int
    deadline_s: float

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """Host and port of each seed node."""
        return [(host, int(port)) for host, _, port in (one.partition(":") for one in self.addresses.split(","))]


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
        ...


class Capline:
    """capline with asynchronous replication, the default."""

    tells_stamps = True
    replicas = 0

    def __init__(self, place: Place) -> None:
        self._limiter = AsyncLimiter(_url(place, place.deadline_s), self._policies(place), namespace=place.namespace)

    @classmethod
    def _policies(cls, place: Place) -> list[Policy]:
        kept = Policy("kept", [Limit(NEVER_BINDS, KEEP_US)], log=POLICY)
        return [Policy(POLICY, [Limit(place.quota, WINDOW_US)], wait_replicas=cls.replicas), kept]

    async def decide(self, subject: str, id: str | None) -> Any:
        return await self._limiter.decide(POLICY, subject, id=id)

    async def refund(self, subject: str, hit: int) -> bool | None:
        return await self._limiter.refund(POLICY, subject, hit)

    async def close(self) -> None:
        await self._limiter.close()

    @classmethod
    def content(cls, place: Place, subjects: Iterable[str]) -> Content | None:
        with Limiter(_url(place, 30), cls._policies(place), namespace=place.namespace) as limiter:
            return {
                subject: [(hit.stamp_us, hit.units) for hit in limiter.explain(POLICY, subject).hits]
                for subject in subjects
            }

    @staticmethod
    def slot(place: Place, subject: str) -> int:  # noqa: ARG004 - the tag is all that counts
        return slot_of(tag_of(subject, 0))


class Replicated(Capline):
    """capline with `wait_replicas=1`: a hit is allowed once a replica has it."""

    replicas = 1


def _url(place: Place, deadline_s: float) -> str:
    return f"redis+cluster://{place.addresses}?deadline={deadline_s:g}s&bulk_deadline=30s"
