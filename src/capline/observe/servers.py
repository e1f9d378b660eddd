"""The servers of stores as Prometheus metrics: the last known figures, so that a scrape waits for no server.

    ServerMetrics(registry).show(limiter.servers())        every ten seconds, say

The label `store` says which store: "main" has the logs, "config" the configuration.

The rule: the servers that now hold data have samples. A server that was replaced has none but a closed breaker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from capline.model.errors import InvalidValueError
from capline.observe.on_demand import needs_prometheus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from capline.model.server_state import ServerState

_FIGURES = {
    "memory_bytes": "Memory that the server uses",
    "max_memory_bytes": "Memory that it may use; 0 for no limit",
    "clients": "Connections to the server",
    "max_clients": "Connections that it takes",
    "replicas": "Replicas that are connected to it",
}
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

    def show(self, states: Sequence[ServerState], store: str = "main") -> None:
        """Export these states of the store from now on."""
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
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - as above

        up = GaugeMetricFamily("capline_server_up", "1 if the server answered when last asked", labels=LABELS)
        gauges = [up]
        states = [(store, state) for store, states in self.states.items() for state in states]
        for store, state in states:
            up.add_metric([store, state.server], state.up)
        for name, what in _FIGURES.items():
            gauge = GaugeMetricFamily(f"capline_server_{name}", what, labels=LABELS)
            for store, state in states:
                figure: int | None = getattr(state, name)
                if figure is not None:
                    gauge.add_metric([store, state.server], figure)
            gauges.append(gauge)
        return gauges

    def describe(self) -> Iterable[Metric]:
        """The metrics, so that the registry can refuse duplicates."""
        return self.collect()
