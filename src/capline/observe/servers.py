"""The servers of stores as Prometheus metrics: the last known figures, so that a scrape waits for no server.

    ServerMetrics(registry).show(limiter.servers())        every ten seconds, say

The label `store` says which store: "main" has the logs, "config" the configuration.

The rule: the servers that now hold data have samples. A server that was replaced has none but a closed breaker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from capline.model.errors import InvalidValueError
from capline.model.server_state import script_mean_us
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
        self.script_us: dict[tuple[str, str], float] = {}
        """What a script takes by store and server: of those since the states before, or of all."""

    def show(self, states: Sequence[ServerState], store: str = "main") -> None:
        """Export these states of the store from now on."""
        before = {state.server: state for state in self.states.get(store, ())}
        for state in states:
            if mean_us := script_mean_us(state, before.get(state.server)):
                self.script_us[store, state.server] = mean_us
        self.states[store] = states
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
