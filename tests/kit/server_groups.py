"""Servers that belong together, formed, watched and stopped as one: a cluster, or a master with its sentinels."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from tests.kit.server_process import HOST, ReplyError, Server, ServerError

__all__ = ["Cluster", "Group", "SentinelGroup"]

MASTER = "mymaster"
SLOTS = 16_384
FORM_SECONDS = 60

# A replica that has heard nothing yet is not among those that a cluster tells its clients of, so it hears a ping soon.
CLUSTER = ("cluster-node-timeout 2000", "cluster-replica-validity-factor 0", "repl-ping-replica-period 1")


@dataclass(eq=False)
class Group:
    """Servers that belong together, stopped together."""

    kind: str
    servers: list[Server] = field(default_factory=list[Server])
    _owner: int = field(default_factory=os.getpid)

    def _add(self, server: Server) -> Server:
        self.servers.append(server)  # before it starts: what it leaves behind when it does not is removed by `stop`
        return server.start()

    def stop(self) -> None:
        """End every server and remove its directory. Safe to call twice; in a forked child it does nothing."""
        if os.getpid() != self._owner:
            return
        for server in self.servers:  # all at once, then wait for each
            server.ask_to_stop()
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


@dataclass(eq=False)
class Cluster(Group):
    """A cluster. `servers` holds the first primaries, then their replicas."""

    first_primaries: int = 3

    def form(self, primaries: int, replicas: int, options: Sequence[str]) -> None:
        """Start the nodes and make one cluster of them."""
        self.first_primaries = primaries
        for _ in range(primaries * (1 + replicas)):
            self._add(Server(self.kind, (*CLUSTER, *options), is_cluster=True))
        _form(self.servers, primaries)
        self.wait()

    @property
    def url(self) -> str:
        """What opens a store on it, by the addresses of the first primaries."""
        return f"{self.kind}+cluster://{','.join(server.address for server in self.servers[: self.first_primaries])}"

    @property
    def primaries(self) -> list[Server]:
        """The servers that are primaries now, by their own word; one that does not run is none."""
        return [server for server in self.servers if _role(server) == b"master"]

    def owner(self, slot: int) -> Server:
        """The primary that serves this slot now, by the word of the first server that answers."""
        for server in self.servers:
            with suppress(OSError, ReplyError):
                for start, end, primary, *_ in server.command("CLUSTER", "SLOTS"):
                    if start <= slot <= end:
                        return next(one for one in self.servers if one.port == primary[1])
        raise ServerError(f"nobody serves the slot {slot}")

    def wait(self) -> None:
        """Until every running node says that all is well, knows every other, and every replica follows its primary."""
        _until(lambda: _cluster_is_well([one for one in self.servers if one.runs]), "the cluster", self.servers)


@dataclass(eq=False)
class SentinelGroup(Group):
    """A master with its replicas, and the sentinels that watch it. `servers` holds all three, in this order."""

    sentinels: list[Server] = field(default_factory=list[Server])

    def form(self, replicas: int, sentinels: int, options: Sequence[str]) -> None:
        """Start the servers, and the sentinels when the replicas follow."""
        master = self._add(Server(self.kind, tuple(options)))
        for _ in range(replicas):
            self._add(Server(self.kind, (*options, f"replicaof {HOST} {master.port}")))
        # A sentinel asks its master who follows it when it starts, and then only every ten seconds.
        _until(lambda: int(master.info("replication")["connected_slaves"]) == replicas, "the replicas", self.servers)
        watch = (
            f"sentinel monitor {MASTER} {HOST} {master.port} {sentinels // 2 + 1}",
            f"sentinel down-after-milliseconds {MASTER} 1000",
            f"sentinel failover-timeout {MASTER} 5000",
        )
        for _ in range(sentinels):
            self.sentinels.append(self._add(Server(self.kind, watch, is_sentinel=True)))
        self.wait()

    @property
    def url(self) -> str:
        """What opens a store on the master, by the addresses of the sentinels."""
        return f"{self.kind}+sentinel://{','.join(server.address for server in self.sentinels)}/{MASTER}/0"

    @property
    def master(self) -> Server:
        """The server that is the master now, by the word of the first sentinel that answers."""
        for one in self.sentinels:
            with suppress(OSError, ReplyError):
                port = int(one.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)[1])
                return next(server for server in self.servers if server.port == port)
        raise ServerError("no sentinel answers")

    def wait(self) -> None:
        """Until every running sentinel knows every other, and a master that is up with every running replica."""
        watchers = [server for server in self.sentinels if server.runs]
        replicas = sum(server.runs for server in self.servers) - len(watchers) - 1
        _until(
            lambda: all(_sentinel_is_well(server, len(watchers) - 1, replicas) for server in watchers),
            "the sentinels to know each other and the replicas",
            self.servers,
        )


def _form(servers: list[Server], primaries: int) -> None:
    """Make one cluster of these nodes: the slots to the first, the rest as their replicas in turn."""
    for number, server in enumerate(servers):
        # Different epochs from the start: nodes that have the same one settle who gets another, pair by pair.
        server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        if number < primaries:
            first, end = SLOTS * number // primaries, SLOTS * (number + 1) // primaries
            server.command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        servers[0].command("CLUSTER", "MEET", HOST, server.port, server.bus_port)
    names = [server.command("CLUSTER", "MYID").decode() for server in servers]
    _until(lambda: all(_knows(server, names) for server in servers), "the nodes to know each other", servers)
    for number, server in enumerate(servers[primaries:]):
        server.command("CLUSTER", "REPLICATE", names[number % primaries])


def _nodes(server: Server) -> list[list[str]]:
    """What this node knows of each node: name, address, flags, primary, ... (CLUSTER NODES)."""
    return [line.split() for line in server.command("CLUSTER", "NODES").decode().splitlines()]


def _knows(server: Server, names: list[str]) -> bool:
    nodes = _nodes(server)
    return {node[0] for node in nodes} == set(names) and not any("handshake" in node[2] for node in nodes)


def _cluster_is_well(running: list[Server]) -> bool:
    """Whether all of them serve, tell the same of who follows whom, and count no other as anything but gone."""
    views: list[set[tuple[str, ...]]] = []
    for server in running:
        nodes = [(node[0], set(node[2].split(",")), node[3]) for node in _nodes(server)]
        if b"cluster_state:ok" not in server.command("CLUSTER", "INFO"):
            return False
        if any({"fail?", "handshake", "noaddr"} & flags for _, flags, _ in nodes):
            return False
        view = {(name, primary) for name, flags, primary in nodes if "fail" not in flags}
        me = next(name for name, flags, _ in nodes if "myself" in flags)
        state = server.info("replication")
        if state["role"] == "slave" and state["master_link_status"] != "up":
            return False
        if state["role"] == "master" and int(state["connected_slaves"]) != sum(primary == me for _, primary in view):
            return False
        slots = server.command("CLUSTER", "SLOTS")
        if {node[1] for _, _, *nodes in slots for node in nodes} != {one.port for one in running}:
            return False
        views.append(view)
    return all(view == views[0] and len(view) == len(running) for view in views)


def _sentinel_is_well(server: Server, sentinels: int, replicas: int) -> bool:
    state = server.command("SENTINEL", "MASTER", MASTER)
    known = dict(zip(state[::2], state[1::2], strict=True))
    followers = [dict(zip(one[::2], one[1::2], strict=True)) for one in server.command("SENTINEL", "REPLICAS", MASTER)]
    up = [one for one in followers if one[b"flags"] == b"slave" and one[b"master-link-status"] == b"ok"]
    return known[b"flags"] == b"master" and int(known[b"num-other-sentinels"]) >= sentinels and len(up) >= replicas


def _role(server: Server) -> bytes | None:
    with suppress(OSError, ReplyError):
        return server.command("ROLE")[0]
    return None


def _until(truth: Callable[[], bool], what: str, servers: Iterable[Server]) -> None:
    """Wait until it is true; a server that does not answer in the meantime only has to by the end."""
    deadline = time.monotonic() + FORM_SECONDS
    while True:
        with suppress(OSError, ReplyError):
            if truth():
                return
        if time.monotonic() > deadline:
            logs = "\n".join(f"{server.kind} on {server.port}:\n{server.log_tail()}" for server in servers)
            raise ServerError(f"waited {FORM_SECONDS} s for {what}; the logs end:\n{logs}")
        time.sleep(0.05)
