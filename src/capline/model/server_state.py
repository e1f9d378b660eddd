"""How one server of a store is doing, as the limiter that asks it sees it."""

from typing import Any, Literal

import msgspec

BreakerState = Literal["closed", "open", "half-open"]
"""Of a circuit breaker: calls go out; calls fail at once; the next call is a trial."""


class ServerState(msgspec.Struct, frozen=True):
    """`server` is host:port. The other figures are the server's own; None where it did not answer, or may not say.

    `breaker` is None where calls go without one.
    `max_memory_bytes` and `max_clients` are its bounds; of memory 0 is no bound. `replicas` are those connected now.
    `keys` are those of all its databases: of logs by subject one a log and subject.
    `replica_lag_s` is how long its slowest replica has not confirmed, `replica_lag_bytes` what its slowest one lacks.
    `evicted_keys` are since it started, as `scripts` are and the `script_us` that they took.
    `unsaved_s` is how old its last save is: 0 while all is saved or appended. `save_failed` says whether that fails.
    """

    server: str
    up: bool
    breaker: BreakerState | None
    memory_bytes: int | None = None
    max_memory_bytes: int | None = None
    clients: int | None = None
    max_clients: int | None = None
    replicas: int | None = None
    keys: int | None = None
    replica_lag_s: int | None = None
    replica_lag_bytes: int | None = None
    evicted_keys: int | None = None
    unsaved_s: int | None = None
    save_failed: bool | None = None
    scripts: int | None = None
    script_us: int | None = None


_LONG_S = 10
"""A replica that is well confirms every second."""


def _faults(state: ServerState) -> dict[str, str]:
    """What of a server somebody should look at, by the figure that shows it."""
    found: dict[str, str] = {}
    if state.breaker not in (None, "closed"):
        found["breaker"] = "calls fail at once, as it did not answer"
    if (state.replica_lag_s or 0) > _LONG_S:
        found["replica_lag_s"] = f"a replica has not confirmed for {state.replica_lag_s} s"
    if state.evicted_keys:
        found["evicted_keys"] = f"{state.evicted_keys:,} keys were evicted, their hits are lost"
    if state.save_failed:
        found["unsaved_s"] = "its last save failed"
    return found


def script_mean_us(state: ServerState, before: ServerState | None = None) -> float | None:
    """What a script took on average since the state before, or since the server started; None if none ran."""
    if state.scripts is None or state.script_us is None:
        return None
    scripts, script_us = state.scripts, state.script_us
    if before is not None and 0 <= (before.scripts or 0) <= scripts:
        scripts, script_us = scripts - (before.scripts or 0), script_us - (before.script_us or 0)
    return script_us / scripts if scripts else None


def told_of(state: ServerState, script_mean_us: float | None) -> dict[str, Any]:
    """The state as plain values, with what a script took lately and what somebody should look at."""
    return {**msgspec.structs.asdict(state), "script_mean_us": script_mean_us, "faults": _faults(state)}
