"""How one server of a store is doing, as the limiter that asks it sees it."""

from typing import Literal

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
