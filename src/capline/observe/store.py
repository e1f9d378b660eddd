"""The figures of an embedded store's file as Prometheus metrics, read on demand.

    StoreMetrics(registry).add("main", limiter)

Alert when `capline_store_oldest_reader` and `capline_store_free_pages` only grow: a process hangs with the file open,
so the pages that it may still read cannot be reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from capline.model.errors import StoreError
from capline.observe.on_demand import NamedSources
from capline.support.override import override

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

_FIGURES = {
    "logs": "Subjects with a log",
    "readers": "Processes that hold a snapshot",
    "oldest_reader": "Transactions since the oldest snapshot that is held",
    "used_pages": "Pages in use",
    "free_pages": "Pages to use before the file grows",
    "page_bytes": "Bytes of a page",
    "file_bytes": "Bytes of the file",
}


class HasStats(Protocol):
    """An object with such figures: `Limiter` or `AsyncLimiter`."""

    def stats(self) -> Mapping[str, int]:
        """The figures at this moment, by name; raises `StoreError` where the store cannot answer."""
        ...


class StoreMetrics(NamedSources[HasStats]):
    """The figures of limiters' stores, each under a name, in a registry: prometheus-client's own or the one given.

    A store that has no figures, or cannot answer, has no sample. A reading takes some twenty microseconds.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__("store", "limiter", registry)

    @override
    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - as above

        gauges = {
            name: GaugeMetricFamily(f"capline_store_{name}", what, labels=["store"]) for name, what in _FIGURES.items()
        }
        for store, limiter in self._sources.items():
            try:
                stats = limiter.stats()
            except StoreError:
                continue
            for name, gauge in gauges.items():
                if name in stats:
                    gauge.add_metric([store], stats[name])
        return list(gauges.values())
