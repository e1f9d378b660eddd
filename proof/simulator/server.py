"""Servers: what each answers to a command, what it holds, and what its replica has of it.

A fleet is a cluster of two shards, or one primary that a sentinel names; every shard has a primary and a replica.
A write reaches the replica some time later, or never where the primary dies before.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from capline.store.redis.scripting.keys import SLOTS, slot_of, tag_of_key
from proof.simulator.scripts import SCRIPTS, Logs, run_script

if TYPE_CHECKING:
    import random

    from capline.store.redis.io.url import Address
    from proof.simulator.clock import SimulatedLoop

__all__ = ["SENTINEL", "Fleet", "Refusal", "Server", "Shard"]

SENTINEL: Address = ("sentinel", 26379)
LAG_S = 0.001
"""How far a replica is behind, ordinarily."""


class Refusal(Exception):  # noqa: N818 - an answer of the server's
    """An error reply."""


class Server:
    """One process. What it holds outlives it, as if every write were synced; its scripts do not."""

    def __init__(self, address: Address, shard: Shard) -> None:
        self.address = address
        self.shard = shard
        self.logs: Logs = {}
        self.alive = True
        self.incarnation = 0
        self.loading_until = 0.0
        self.scripts: set[bytes] = set()

    def die(self) -> None:
        """As by kill -9."""
        self.alive = False
        self.incarnation += 1
        self.scripts.clear()


class Shard:
    """A primary, its replica, and the writes on their way to that, with their times of arrival."""

    def __init__(self) -> None:
        self.primary: Server
        self.replica: Server | None = None
        self.offset = 0
        self.stalled_until = 0.0
        self._on_the_way: list[tuple[float, int, bytes, dict[bytes, Any] | None]] = []

    def write(self, key: bytes, now: float) -> None:
        """The primary has written this key."""
        self.offset += 1
        if self.replica is not None:
            arrives = max(now + LAG_S, self.stalled_until, self._on_the_way[-1][0] if self._on_the_way else 0.0)
            held = self.primary.logs.get(key)
            self._on_the_way.append((arrives, self.offset, key, None if held is None else dict(held)))

    def replicate(self, now: float) -> None:
        """Let the replica have what has arrived."""
        while self._on_the_way and self._on_the_way[0][0] <= now and self.replica is not None:
            _, _, key, held = self._on_the_way.pop(0)
            if held is None:
                self.replica.logs.pop(key, None)
            else:
                self.replica.logs[key] = held

    def replicated_at(self, offset: int) -> float | None:
        """When the primary knows that the replica has so much; None while it has no live replica."""
        if self.replica is None or not self.replica.alive:
            return None
        return next((arrives + LAG_S for arrives, at, *_ in self._on_the_way if at >= offset), 0.0)

    def promote(self, now: float) -> int:
        """The replica takes over, with what it has; returns how many writes are lost."""
        if self.replica is None:
            raise ValueError("there is no replica to promote")
        self.replicate(now)
        lost = len(self._on_the_way)
        self._on_the_way.clear()
        self.primary, self.replica = self.replica, None
        return lost

    def join(self, server: Server) -> None:
        """A server becomes the replica, with all that the primary has."""
        server.logs = {key: dict(held) for key, held in self.primary.logs.items()}
        self.replica = server


class Fleet:
    """All servers of one store."""

    def __init__(self, shape: str, loop: SimulatedLoop, draw: random.Random) -> None:
        self.shape = shape
        self.loop = loop
        self.draw = draw
        self.shards = [Shard() for _ in range(2 if shape == "cluster" else 1)]
        self.servers: dict[Address, Server] = {}
        for number, shard in enumerate(self.shards):
            shard.primary, shard.replica = (Server((f"s{number}{role}", 7000), shard) for role in "ab")
            self.servers |= {one.address: one for one in (shard.primary, shard.replica)}
        self.owners: dict[int, Shard] = {}
        """Slots that have moved, and their owners."""
        self.moving: dict[int, Shard] = {}
        """Slots that are being moved, and their targets."""
        self.master_told: Server = self.shards[0].primary
        """Whom the sentinel names."""

    def url(self) -> str:
        """The store's URL."""
        if self.shape == "sentinel":
            return f"redis+sentinel://{SENTINEL[0]}:{SENTINEL[1]}/m?deadline=250ms"
        return f"redis+cluster://{','.join(f'{host}:{port}' for host, port in self.servers)}?deadline=250ms"

    def owner(self, slot: int) -> Shard:
        """Whose slot it is."""
        if len(self.shards) == 1:
            return self.shards[0]
        return self.owners.get(slot) or self.shards[slot * 2 // SLOTS]

    def answer(self, address: Address, command: list[bytes], *, asking: bool) -> Any:
        """What the server answers to the command; raises `Refusal`."""
        name = command[0]
        if name == b"SENTINEL":
            return [part.encode() for part in (self.master_told.address[0], str(self.master_told.address[1]))]
        server = self.servers[address]
        if name == b"INFO":
            return b"redis_version:7.4.0"
        if name == b"CONFIG":
            return []
        if self.loop.time() < server.loading_until:
            raise Refusal("LOADING Redis is loading the dataset in memory")
        if name == b"CLUSTER":
            return self._slots()
        if name == b"SCRIPT":
            sha = next(sha for sha, script in SCRIPTS.items() if script.text == command[2])
            server.scripts.add(sha)
            return sha
        if name == b"EVALSHA":
            return self._script(server, command, asking=asking)
        raise NotImplementedError(f"command {name!r} is not simulated")

    def _script(self, server: Server, command: list[bytes], *, asking: bool) -> Any:
        many = int(command[2])
        keys, args = command[3 : 3 + many], command[3 + many :]
        self._check_place(server, keys, asking=asking)
        if command[1] not in server.scripts:
            raise Refusal("NOSCRIPT No matching script. Please use EVAL.")
        if server.shard.primary is not server:
            raise Refusal("READONLY You can't write against a read only replica.")
        reply = run_script(command[1], keys, args, server.logs, self.loop.now_us())
        for key in keys:
            server.shard.write(key, self.loop.time())
        return reply

    def _check_place(self, server: Server, keys: list[bytes], *, asking: bool) -> None:
        """Redirect as a cluster does."""
        if self.shape != "cluster":
            return
        slots = {slot_of(tag_of_key(key) or b"") for key in keys}
        if len(slots) > 1:
            raise Refusal("CROSSSLOT Keys in request don't hash to the same slot")
        [slot] = slots
        owner, target = self.owner(slot), self.moving.get(slot)
        if server.shard.primary is not server or server.shard not in (owner, target if asking else owner):
            raise Refusal(f"MOVED {slot} {_place(owner.primary)}")
        here = [key in server.logs for key in keys]
        if target is None or all(here):
            return
        if any(here):
            raise Refusal("TRYAGAIN Multiple keys request during rehashing of slot")
        if server.shard is owner:
            raise Refusal(f"ASK {slot} {_place(target.primary)}")
        if len(keys) > 1:
            raise Refusal("TRYAGAIN Multiple keys request during rehashing of slot")

    def _slots(self) -> list[Any]:
        cuts = sorted({0, SLOTS // 2, SLOTS, *self.owners, *(slot + 1 for slot in self.owners)})
        return [
            [first, end - 1, [owner.primary.address[0].encode(), owner.primary.address[1], b"id"]]
            for first, end in pairwise(cuts)
            for owner in (self.owner(first),)
        ]

    def moved_key(self, slot: int) -> bool:
        """Move one key of a slot that is on its way; False where none is left."""
        source, target = self.owner(slot), self.moving[slot]
        key = next((key for key in source.primary.logs if slot_of(tag_of_key(key) or b"") == slot), None)
        if key is None:
            return False
        target.primary.logs[key] = source.primary.logs.pop(key)
        for shard in (source, target):
            shard.write(key, self.loop.time())
        return True


def _place(server: Server) -> str:
    return f"{server.address[0]}:{server.address[1]}"
