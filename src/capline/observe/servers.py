"""The servers of a store as Prometheus metrics: the figures that were shown last, so that a scrape waits for no server.

    ServerMetrics(registry).show(limiter.servers())        every ten seconds, say

The rule: servers that hold logs now have samples. One that was replaced has none from then on, but a closed breaker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.errors import CaplineError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from capline.model.server_state import ServerState

__all__ = ["ServerMetrics"]

_FIGURES = {
    "memory_bytes": "Memory that the server uses",
    "max_memory_bytes": "Memory that it may use; 0 for any",
    "clients": "Connections to the server",
    "max_clients": "Connections that it takes",
    "replicas": "Replicas that are connected to it",
}
BREAKER = "capline_server_breaker_open"


class ServerMetrics:
    """Keeps the states that it is shown in a registry: prometheus-client's own, or the one given.

    The breaker is each process's own. In prometheus-client's multiprocess mode give `counted`, the registry of what is
    gathered from all processes: the worst of their breakers is shown then, and the rest is that of who is asked.
    """

    def __init__(self, registry: CollectorRegistry | None = None, counted: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, Gauge  # noqa: PLC0415 - an extra, not always there
        except ImportError:
            raise CaplineError('metrics need prometheus-client: pip install "capline[prometheus]"') from None
        into = REGISTRY if registry is None else registry
        self._states: Sequence[ServerState] = ()
        try:
            into.register(self)
            self._breaker = Gauge(
                BREAKER,
                "1 while calls to the server fail at once, by the worst of all processes",
                ["server"],
                registry=into if counted is None else counted,
                multiprocess_mode="livemax",
            )
        except ValueError:
            raise InvalidValueError("this registry has server metrics already; show it the states") from None
        self._broken: set[str] = set()

    def show(self, states: Sequence[ServerState]) -> None:
        """Export these from now on, in place of those before."""
        self._states = states
        broken = {state.server: state.breaker != "closed" for state in states}
        for server in self._broken - broken.keys():
            self._breaker.labels(server).set(0)  # in the multiprocess mode a sample stays, so it must not stay 1
        for server, is_open in broken.items():
            self._breaker.labels(server).set(is_open)
        self._broken |= broken.keys()

    def collect(self) -> Iterable[Metric]:
        """Give the last states; prometheus-client calls it."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - as above

        up = GaugeMetricFamily("capline_server_up", "1 where the server answered when last asked", labels=["server"])
        gauges = [up]
        for state in self._states:
            up.add_metric([state.server], state.up)
        for name, what in _FIGURES.items():
            gauge = GaugeMetricFamily(f"capline_server_{name}", what, labels=["server"])
            for state in self._states:
                figure: int | None = getattr(state, name)
                if figure is not None:
                    gauge.add_metric([state.server], figure)
            gauges.append(gauge)
        return gauges

    def describe(self) -> Iterable[Metric]:
        """Name the metrics, so that the registry can tell of one that it has."""
        return self.collect()
