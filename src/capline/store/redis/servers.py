"""How each server of a store is doing: its circuit breaker here, and its own figures. A generator, like `steps`.

A server is asked whatever its breaker says, and INFO does not change the breaker: who watches disturbs nobody.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from capline.model.errors import StoreError, StoreUnavailableError
from capline.model.server_state import BreakerState, ServerState
from capline.store.redis.cluster.breaker import Breaker
from capline.store.redis.io.server_check import QUESTIONS, advice, info_of
from capline.store.redis.io.url import Address
from capline.store.redis.io.wire import Exchange, NoReply, Reply, Request, ServerError, Steps, pack
from capline.store.redis.scripting.scripts import SWEEP, Call
from capline.store.redis.session import Session, unwrap

WITHIN_S = 2.0
"""For each server; one after the other, so that one that is gone takes no time from the next."""

TIMES = 20
"""Round trips for each figure of a server that is examined."""
_INFO, _TIME = pack(b"INFO") + pack(b"INFO", b"commandstats"), pack(b"TIME")
_FIGURES = {
    "memory_bytes": "used_memory",
    "max_memory_bytes": "maxmemory",
    "clients": "connected_clients",
    "max_clients": "maxclients",
    "replicas": "connected_slaves",
    "evicted_keys": "evicted_keys",
}
_KEYS = re.compile(r"keys=([0-9]+)")
_REPLICA = re.compile(r"slave[0-9]+$")
_SCRIPT = re.compile(r"cmdstat_(eval|fcall)")
_SAVES = "rdb_last_bgsave_status", "aof_last_write_status"


def servers(session: Session) -> Steps[list[ServerState]]:
    """The servers that hold logs, as far as they are known. Never raises for a server that is away."""
    router = session.router
    if router.topology.stale:
        yield from router.run([Call(0, _TIME, repeatable=True)], session.until())  # any call reads it
    states: list[ServerState] = []
    for node in router.topology.primaries():
        [[reply, commands]] = yield Exchange([Request(node, _INFO, 2)], time.monotonic() + WITHIN_S)
        # It may refuse INFO to this user, and an old server says less.
        figures = figures_of(info_of(reply) | info_of(commands))
        breaker = _state(router.breaker(node), time.monotonic())
        states.append(ServerState(f"{node[0]}:{node[1]}", not isinstance(reply, NoReply), breaker, **figures))
    return states


class Examined(msgspec.Struct, frozen=True):
    """What one server says of itself, and how it answers from here."""

    server: str
    info: dict[str, str]
    """Empty where this user may not ask."""
    advice: dict[str, str]
    ahead_us: int
    """How far its clock is ahead of this machine's, to half a round trip."""
    round_trip_us: int
    script_us: int
    """The round trip of a script that does nothing."""


def examine(session: Session) -> Steps[list[Examined]]:
    """Ask each server that holds logs what `advice` needs, and time it; raises what keeps it from deciding."""
    router, found = session.router, list[Examined]()
    [outcome] = yield from router.run([Call(0, _TIME, repeatable=True)], session.until())
    unwrap(outcome)
    script = pack(b"EVALSHA", SWEEP.sha, b"0", b"0", b"", b"0")
    questions = b"".join((pack(b"SCRIPT", b"LOAD", SWEEP.text), script, *QUESTIONS))
    for node in router.topology.primaries():
        place = f"{node[0]}:{node[1]}"
        [[_, ran, *replies]] = yield Exchange([Request(node, questions, 4)], time.monotonic() + WITHIN_S)
        trip_s, at_s, clock = yield from _quickest(node, _TIME)
        script_s, _, _ = yield from _quickest(node, script)
        for reply in (ran, clock):
            if isinstance(reply, ServerError):
                raise StoreError(f"{place}: {reply.text}")
            if isinstance(reply, NoReply):
                raise StoreUnavailableError(f"{place}: {reply.text}")
        clock_us = int(clock[0]) * 1_000_000 + int(clock[1])
        trips_us = round(trip_s * 1e6), round(script_s * 1e6)
        found.append(Examined(place, info_of(replies[0]), advice(replies), clock_us - round(at_s * 1e6), *trips_us))
    return found


def _quickest(node: Address, question: bytes) -> Steps[tuple[float, float, Reply]]:
    """The quickest round trip of some, as the others waited for something else; its middle, and the reply."""
    trips: list[tuple[float, float, Reply]] = []
    for _ in range(TIMES):
        at_s, begun = time.time(), time.perf_counter()
        [[reply]] = yield Exchange([Request(node, question, 1)], time.monotonic() + WITHIN_S)
        trip_s = time.perf_counter() - begun
        trips.append((trip_s, at_s + trip_s / 2, reply))
        if isinstance(reply, NoReply):
            break
    return min(trips, key=lambda trip: trip[0])


def _state(breaker: Breaker, now: float) -> BreakerState:
    until = breaker.open_until
    return "closed" if not until else "open" if now < until else "half-open"


def figures_of(info: Mapping[str, str]) -> dict[str, Any]:
    """The figures of a `ServerState` in what INFO says."""
    found: dict[str, Any] = {name: int(info[key]) for name, key in _FIGURES.items() if info.get(key, "").isdecimal()}
    if not info:
        return found
    keys = [_KEYS.match(said) for name, said in info.items() if name.startswith("db")]
    found["keys"] = sum(int(each[1]) for each in keys if each)
    replicas = [_pairs(said) for name, said in info.items() if _REPLICA.match(name) and "state=online" in said]
    if replicas:
        written = _whole(info, "master_repl_offset")
        found["replica_lag_s"] = max(_whole(replica, "lag") for replica in replicas)
        found["replica_lag_bytes"] = max(0, written - min(_whole(replica, "offset") for replica in replicas))
    if "rdb_last_save_time" in info:
        is_saved = info.get("aof_enabled") == "1" or info.get("rdb_changes_since_last_save") == "0"
        now_s = _whole(info, "server_time_usec") // 1_000_000
        found["unsaved_s"] = 0 if is_saved else max(0, now_s - _whole(info, "rdb_last_save_time"))
        found["save_failed"] = any(info.get(status) == "err" for status in _SAVES)
    scripts = [_pairs(said) for name, said in info.items() if _SCRIPT.match(name)]
    if scripts:
        found["scripts"] = sum(_whole(command, "calls") for command in scripts)
        found["script_us"] = sum(_whole(command, "usec") for command in scripts)
    return found


def _whole(said: Mapping[str, str], name: str) -> int:
    number = said.get(name, "")
    return int(number) if number.isdecimal() else 0


def _pairs(said: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in said.split(",") if "=" in pair)
