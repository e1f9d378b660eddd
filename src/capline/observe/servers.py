"""The servers of stores as Prometheus metrics: the last known figures, so that a scrape waits for no server.

    ServerMetrics(registry).show(limiter.servers())        every ten seconds, say

The label `store` says which store: "main" has the logs, "config" the configuration.

The rule: the servers that now hold data have samples. A server that was replaced has none but a closed breaker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from capline.model.errors import InvalidValueError
from capline.observe.on_demand import needs_prometheus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from capline.model.server_state import ServerState

_FIGURES = (
    ("memory_bytes", "memory_bytes", "Memory that the server uses"),
    ("max_memory_bytes", "max_memory_bytes", "Memory that it may use; 0 for no limit"),
    ("clients", "clients", "Connections to the server"),
    ("max_clients", "max_clients", "Connections that it takes"),
    ("replicas", "replicas", "Replicas that are connected to it"),
    ("replica_lag_seconds", "replica_lag_s", "How long its slowest replica has not confirmed"),
    ("replica_lag_bytes", "replica_lag_bytes", "What its slowest replica lacks"),
    ("unsaved_seconds", "unsaved_s", "How old its last save is; 0 while all is saved or appended"),
    ("save_failed", "save_failed", "1 while its last save or append failed"),
    ("evicted_keys_total", "evicted_keys", "Keys that it evicted since it started: hits that are lost"),
    ("scripts_total", "scripts", "Scripts that it ran since it started"),
    ("script_seconds_total", "script_us", "Seconds that those scripts took"),
)
LABELS = ("store", "server")
BREAKER = "capline_server_breaker_open"
_LONG_S = 10
"""A replica that is well confirms every second."""
EVICTED_LATELY_S = 900.0
"""How long evicted keys need attention, as CaplineServerEvicts does: what is lost does not come back."""


class ServerReports:
    """What states say of the servers of one store, beside those that were looked at before."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._before: dict[str, ServerState] = {}
        self._script_us: dict[str, float] = {}
        self._evicted_at: dict[str, float] = {}

    def reports(self, states: Sequence[ServerState]) -> list[dict[str, Any]]:
        """The states as plain values, with what a script took lately, and `faults` by the figure that shows them."""
        return [
            {**msgspec.structs.asdict(state), **self._since_before(state), "faults": self._faults(state)}
            for state in states
        ]

    def _since_before(self, state: ServerState) -> dict[str, float | None]:
        before, server = self._before.get(state.server), state.server
        if mean_us := script_mean_us(state, before):
            self._script_us[server] = mean_us
        if state.evicted_keys is not None:  # it answered
            if state.evicted_keys != (before.evicted_keys if before else 0):
                self._evicted_at[server] = self._now()
            self._before[server] = state
        return {"script_mean_us": self._script_us.get(server)}

    def _faults(self, state: ServerState) -> dict[str, str]:
        found: dict[str, str] = {}
        if state.breaker not in (None, "closed"):
            found["breaker"] = "calls fail at once, as it did not answer"
        if (state.replica_lag_s or 0) > _LONG_S:
            found["replica_lag_s"] = f"a replica has not confirmed for {state.replica_lag_s} s"
        evicted_at = self._evicted_at.get(state.server)
        if state.evicted_keys and evicted_at is not None and self._now() - evicted_at < EVICTED_LATELY_S:
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


class ServerMetrics:
    """Exports the states given to `show`, in a registry: prometheus-client's own or the one given.

    Each process has its own circuit breakers. In prometheus-client's multiprocess mode `counted` is the registry that
    gathers all processes: it shows the worst breaker; the other figures are those of the scraped process.
    """

    def __init__(self, registry: CollectorRegistry | None = None, counted: CollectorRegistry | None = None) -> None:
        with needs_prometheus():
            from prometheus_client import REGISTRY, Gauge  # noqa: PLC0415 - an extra, not always there
        into = REGISTRY if registry is None else registry
        self.states: dict[str, Sequence[ServerState]] = {}
        """What was shown last, by store."""
        self.reports: dict[str, list[dict[str, Any]]] = {}
        """The same as plain values, with what somebody should look at: see `ServerReports`."""
        self._reporters: dict[str, ServerReports] = {}
        try:
            into.register(self)
            self._breaker = Gauge(
                BREAKER,
                "1 while calls to the server fail at once, by the worst of all processes",
                LABELS,
                registry=into if counted is None else counted,
                multiprocess_mode="livemax",
            )
        except ValueError:
            raise InvalidValueError("this registry has server metrics already; show it the states") from None
        self._broken: set[tuple[str, str]] = set()

    def show(self, states: Sequence[ServerState], store: str = "main") -> None:
        """Export these states of the store from now on."""
        self.states[store] = states
        self.reports[store] = self._reporters.setdefault(store, ServerReports()).reports(states)
        broken = {(store, state.server): state.breaker != "closed" for state in states if state.breaker is not None}
        for gone in self._broken - broken.keys():
            if gone[0] == store:
                self._breaker.labels(*gone).set(0)  # in multiprocess mode a sample stays, so it must not stay 1
        for server, is_open in broken.items():
            self._breaker.labels(*server).set(is_open)
        self._broken |= broken.keys()

    def collect(self) -> Iterable[Metric]:
        """The last states; prometheus-client calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - as above

        up = GaugeMetricFamily("capline_server_up", "1 if the server answered when last asked", labels=LABELS)
        families: list[Metric] = [up]
        states = [(store, state) for store, states in self.states.items() for state in states]
        for store, state in states:
            up.add_metric([store, state.server], state.up)
        for name, field, what in _FIGURES:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"capline_server_{name}", what, labels=LABELS)
            for store, state in states:
                figure: float | None = getattr(state, field)
                if figure is not None:
                    family.add_metric([store, state.server], figure / 1e6 if field.endswith("_us") else figure)
            families.append(family)
        return families

    def describe(self) -> Iterable[Metric]:
        """The metrics, so that the registry can refuse duplicates."""
        return self.collect()
