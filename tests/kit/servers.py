"""Real Redis and Valkey servers for tests and benchmarks, on loopback and on free ports.

with single("redis", "maxmemory 10mb") as server: ...      one server
with cluster("valkey") as nodes: ...                       three primaries with a replica each
with sentinel("redis") as group: ...                       a master, a replica, three sentinels
shared("redis").url                                        one for this whole process, stopped at its end
"""

import atexit
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, overload

from tests.kit.server_groups import Cluster, Group, SentinelGroup
from tests.kit.server_process import HOST, KINDS, Certificates, ReplyError, Server, ServerError, certificates, free_port

__all__ = [
    "HOST",
    "KINDS",
    "Certificates",
    "Cluster",
    "ReplyError",
    "SentinelGroup",
    "Server",
    "ServerError",
    "certificates",
    "cluster",
    "free_port",
    "sentinel",
    "shared",
    "single",
]


def single(kind: str, *options: str, password: str | None = None, tls: Certificates | None = None) -> Server:
    """One server, without persistence unless `options` ask for it (`"appendonly yes"`)."""
    server = Server(kind, options, password, tls)
    with _stopped_if_it_fails(server):
        return server.start()


def cluster(kind: str, primaries: int = 3, replicas: int = 1, *, options: Sequence[str] = ()) -> Cluster:
    """A cluster whose primaries share the slots evenly, each with so many replicas; takes about three seconds."""
    group = Cluster(kind)
    with _stopped_if_it_fails(group):
        group.form(primaries, replicas, options)
    return group


def sentinel(kind: str, replicas: int = 1, sentinels: int = 3, *, options: Sequence[str] = ()) -> SentinelGroup:
    """A master and its replicas under sentinels, most of which must agree that it is down; about three seconds.

    `options` are those of the master and its replicas.
    """
    group = SentinelGroup(kind)
    with _stopped_if_it_fails(group):
        group.form(replicas, sentinels, options)
    return group


_shared: dict[tuple[str, str], Any] = {}


@overload
def shared(kind: str, shape: Literal["single"] = "single") -> Server: ...
@overload
def shared(kind: str, shape: Literal["cluster"]) -> Cluster: ...
@overload
def shared(kind: str, shape: Literal["sentinel"]) -> SentinelGroup: ...
def shared(kind: str, shape: str = "single") -> Any:
    """The one server or group of this kind and shape of this process, started at the first call and stopped at exit.

    Tests that use it leave it as they found it: keys under names of their own, nothing paused or killed.
    """
    made = _shared.get((kind, shape))
    if made is None:
        shapes: dict[str, Callable[[str], Any]] = {"single": single, "cluster": cluster, "sentinel": sentinel}
        if shape not in shapes:
            raise ValueError(f"a shape is one of {', '.join(shapes)}; this is {shape!r}")
        made = _shared[kind, shape] = shapes[shape](kind)
        atexit.register(made.stop)
    return made


@contextmanager
def _stopped_if_it_fails(made: Server | Group) -> Generator[None]:
    try:
        yield
    except BaseException:
        made.stop()
        raise
