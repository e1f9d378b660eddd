"""Faults of servers while callers ask: restarts, failovers, roles that swap, slots that move. One at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proof.simulator.server import Fleet, Server, Shard

__all__ = ["ServerFaults"]


class ServerFaults:
    """One of `kinds` after the other, until it is `stopped`. `lost` is how many writes failovers have lost."""

    def __init__(self, fleet: Fleet, kinds: Sequence[str], slots: Sequence[int], tell: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._draw = fleet.draw
        self._kinds = kinds
        self._slots = slots
        self._tell = tell
        self.lost = 0
        self.happened = 0
        self.stopped = False

    async def go_on(self) -> None:
        """Each is over before the next begins, or this returns."""
        while True:
            await self._pause(0.02, 0.5)
            if self.stopped:
                return
            kind = self._draw.choice(self._kinds)
            self.happened += 1
            await getattr(self, kind)()

    async def restart(self) -> None:
        """A primary ends and comes back, with what it had and without its scripts; for a while it loads."""
        server = self._shard().primary
        self._tell(f"{server.address[0]} is killed, to come back")
        server.die()
        await self._pause(0.01, 0.4)
        self._come_back(server)

    async def failover(self) -> None:
        """A primary dies with what its replica does not have; the replica takes over, and the dead one follows it."""
        shard = self._shard()
        if shard.replica is None:
            return
        dead = shard.primary
        shard.stalled_until = self._fleet.loop.time() + self._draw.uniform(0.0, 0.3)
        await self._pause(0.0, 0.2)
        dead.die()
        self._tell(f"{dead.address[0]} is killed, for good")
        await self._pause(0.02, 0.3)
        lost = shard.promote(self._fleet.loop.time())
        self.lost += lost
        self._tell(f"{shard.primary.address[0]} is primary now; {lost} writes are lost")
        await self._follow(shard, dead)

    async def swap(self) -> None:
        """A primary and its replica change places when both have the same; the sentinel tells it late."""
        shard, loop = self._shard(), self._fleet.loop
        shard.replicate(loop.time())
        if shard.replica is None or shard.replicated_at(shard.offset) != 0.0:
            return
        old = shard.primary
        shard.promote(loop.time())
        shard.join(old)
        self._tell(f"{shard.primary.address[0]} is primary now, by order")
        await self._follow(shard, None)

    async def move(self) -> None:
        """A slot goes from one shard to the other, key by key."""
        fleet, slot = self._fleet, self._draw.choice(self._slots)
        target = next(shard for shard in fleet.shards if shard is not fleet.owner(slot))
        fleet.moving[slot] = target
        self._tell(f"slot {slot} moves to {target.primary.address[0]}")
        await self._pause(0.0, 0.1)
        while fleet.moved_key(slot):
            await self._pause(0.0, 0.05)
        await self._pause(0.0, 0.05)
        while fleet.moved_key(slot):
            pass
        fleet.owners[slot] = fleet.moving.pop(slot)
        self._tell(f"slot {slot} is {target.primary.address[0]}'s")

    async def _follow(self, shard: Shard, dead: Server | None) -> None:
        """Clients hear of the new primary, and a dead one comes back as its replica."""
        await self._pause(0.0, 0.1)
        self._fleet.master_told = shard.primary
        if dead is not None:
            await self._pause(0.0, 0.3)
            shard.join(dead)
            self._come_back(dead)

    def _come_back(self, server: Server) -> None:
        server.alive = True
        server.loading_until = self._fleet.loop.time() + self._draw.uniform(0.0, 0.15)
        self._tell(f"{server.address[0]} is back")

    def _shard(self) -> Shard:
        return self._draw.choice(self._fleet.shards)

    async def _pause(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self._draw.uniform(least_s, most_s))
