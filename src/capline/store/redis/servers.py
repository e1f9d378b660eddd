"""How each server of a store is doing: its circuit breaker here, and its own figures. A generator, like `steps`.

A server is asked whatever its breaker says, and INFO does not change the breaker: who watches disturbs nobody.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from capline.model.server_state import ServerState
from capline.store.redis.io.wire import Exchange, NoReply, Request, pack
from capline.store.redis.scripting.scripts import Call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capline.model.server_state import BreakerState
    from capline.store.redis.cluster.breaker import Breaker
    from capline.store.redis.io.wire import Reply, Steps
    from capline.store.redis.session import Session

__all__ = ["figures_of", "servers"]

WITHIN_S = 2.0
"""For each server; one after the other, so that one that is gone takes no time from the next."""

_INFO, _TIME = pack(b"INFO"), pack(b"TIME")
_FIGURES = {
    "memory_bytes": "used_memory",
    "max_memory_bytes": "maxmemory",
    "clients": "connected_clients",
    "max_clients": "maxclients",
    "replicas": "connected_slaves",
}


def servers(session: Session) -> Steps[list[ServerState]]:
    """The servers that hold logs, as far as they are known. Never raises for a server that is away."""
    router = session.router
    if router.topology.stale:
        yield from router.run([Call(0, _TIME, repeatable=True)], session.until())  # any call reads it
    states: list[ServerState] = []
    for node in router.topology.primaries():
        [[reply]] = yield Exchange([Request(node, _INFO, 1)], time.monotonic() + WITHIN_S)
        figures = _figures(reply)
        breaker = _state(router.breaker(node), time.monotonic())
        states.append(ServerState(f"{node[0]}:{node[1]}", not isinstance(reply, NoReply), breaker, **figures))
    return states


def _state(breaker: Breaker, now: float) -> BreakerState:
    until = breaker.open_until
    return "closed" if not until else "open" if now < until else "half-open"


def _figures(reply: Reply) -> dict[str, int]:
    """Those that the server tells; it may refuse INFO to this user, and an old one knows fewer."""
    if not isinstance(reply, bytes):
        return {}
    return figures_of(dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line))


def figures_of(info: Mapping[str, object]) -> dict[str, int]:
    """The figures of a `ServerState` in what INFO says."""
    said = {name: str(info.get(key, "")) for name, key in _FIGURES.items()}
    return {name: int(figure) for name, figure in said.items() if figure.isdecimal()}
