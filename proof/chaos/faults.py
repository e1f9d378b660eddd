"""The faults of a cluster: each returns when the cluster is whole again.

    planned    what an operator does: nothing acknowledged may be lost
    rough      servers that die, hang, or fall behind before they die

A killed server comes back empty, and only after its replica was promoted. Back earlier, it would still be the primary,
and its replica would copy the empty data: against that only persistence helps, not replication.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.kit.servers import HOST, ReplyError, ServerError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.kit.servers import Cluster, Server

__all__ = ["FAULTS", "PLANNED", "ROUGH", "Scene", "come_back"]

LAG_S = 0.5
LONG_S, SHORT_S = 5.0, 1.0
"""Longer than a cluster takes to replace a primary that hangs, and shorter."""
AWAY_S = 1.0
MOST_WAIT_S = 30


@dataclass(frozen=True)
class Scene:
    """Where a fault happens. `slots` are some that the load is on."""

    cluster: Cluster
    draw: random.Random
    slots: tuple[int, ...]

    def shard(self) -> tuple[Server, Server]:
        """A random primary and its replica."""
        primary = self.draw.choice([one for one in self.cluster.primaries if one.runs])
        return primary, self.replica_of(primary)

    def replica_of(self, primary: Server) -> Server:
        """The server that follows it."""
        for one in self.cluster.servers:
            role = one.command("ROLE")
            if role[0] == b"slave" and int(role[2]) == primary.port:
                return one
        raise ServerError(f"the primary on {primary.port} has no replica")


def failover_asked(scene: Scene) -> None:
    """A replica is told to take over, and its primary steps down when it has everything."""
    _, replica = scene.shard()
    replica.command("CLUSTER", "FAILOVER")
    _until_primary(replica)
    scene.cluster.wait()


def slots_moved(scene: Scene) -> None:
    """Some slots that are asked for go to another primary, key by key."""
    for slot in scene.draw.sample(scene.slots, min(3, len(scene.slots))):
        source = scene.cluster.owner(slot)
        target = scene.draw.choice([one for one in scene.cluster.primaries if one is not source])
        names = {one: one.command("CLUSTER", "MYID") for one in (source, target)}
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            source.command("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys, timeout_seconds=10)
        for one in (target, source, *(one for one in scene.cluster.primaries if one not in (source, target))):
            one.command("CLUSTER", "SETSLOT", slot, "NODE", names[target])
    scene.cluster.wait()


def scripts_flushed(scene: Scene) -> None:
    """No server knows any script."""
    for one in scene.cluster.servers:
        one.command("SCRIPT", "FLUSH")


def clients_cut(scene: Scene) -> None:
    """A primary closes every client's connection."""
    scene.shard()[0].command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def primary_killed(scene: Scene) -> None:
    """A primary is killed by kill -9; its replica is elected."""
    primary, replica = scene.shard()
    primary.kill()
    come_back(scene, primary, replica)


def lagging_primary_killed(scene: Scene) -> None:
    """As `primary_killed`, with a replica half a second behind: asynchronous replication at its worst.

    The link is cut while the replica is paused; else it would still read what its socket holds.
    """
    primary, replica = scene.shard()
    replica.pause()
    try:
        primary.command("CLIENT", "KILL", "TYPE", "replica")
        time.sleep(LAG_S)
        primary.kill()
    finally:
        replica.resume()
    come_back(scene, primary, replica)


def primary_stopped(scene: Scene) -> None:
    """SIGSTOP of a primary until it is replaced; then it continues."""
    primary, replica = scene.shard()
    begun = time.monotonic()
    primary.pause()
    try:
        _until_primary(replica)
        time.sleep(max(0.0, begun + LONG_S - time.monotonic()))
    finally:
        primary.resume()
    scene.cluster.wait()


def primary_hiccup(scene: Scene) -> None:
    """SIGSTOP of a primary, too short for a failover."""
    primary, _ = scene.shard()
    primary.pause()
    try:
        time.sleep(SHORT_S)
    finally:
        primary.resume()
    scene.cluster.wait()


def replica_killed(scene: Scene) -> None:
    """A replica is killed by kill -9, and comes back."""
    _, replica = scene.shard()
    replica.kill()
    time.sleep(AWAY_S)
    replica.restart()
    scene.cluster.wait()


def come_back(scene: Scene, primary: Server, replica: Server) -> None:
    """Start a primary that was killed again, once its replica was promoted."""
    _until_primary(replica)
    time.sleep(AWAY_S)
    primary.restart()
    scene.cluster.wait()


def _until_primary(server: Server) -> None:
    """Wait until it is a primary and reports cluster_state:ok."""
    until = time.monotonic() + MOST_WAIT_S
    while True:
        try:
            if server.command("ROLE")[0] == b"master" and b"cluster_state:ok" in server.command("CLUSTER", "INFO"):
                return
        except (OSError, ReplyError):
            pass
        if time.monotonic() > until:
            raise ServerError(f"the replica on {server.port} did not take over; its log ends:\n{server.log_tail()}")
        time.sleep(0.02)


PLANNED = (failover_asked, slots_moved, scripts_flushed, clients_cut, replica_killed)
ROUGH = (primary_killed, lagging_primary_killed, primary_stopped, primary_hiccup, *PLANNED)
FAULTS: dict[str, Callable[[Scene], None]] = {fault.__name__: fault for fault in ROUGH}
