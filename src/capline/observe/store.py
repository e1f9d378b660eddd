"""The figures of an embedded store's file as Prometheus metrics, read on demand.

    StoreMetrics(registry).add("main", limiter)

Alarm on `capline_store_oldest_reader` that only grows, and on `capline_store_free_pages` with it: a process hangs with
the file open, and the pages that it may still read cannot be reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from capline.model.errors import CaplineError, InvalidValueError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

__all__ = ["HasStats", "StoreMetrics"]

MOST_STORES = 1000
_FIGURES = {
    "logs": "Subjects with a log",
    "readers": "Processes that hold a snapshot",
    "oldest_reader": "Transactions since the oldest snapshot that is held",
    "used_pages": "Pages in use",
    "free_pages": "Pages that are used before the file grows",
    "page_bytes": "Bytes of a page",
    "file_bytes": "Bytes of the file",
}


class HasStats(Protocol):
    """What has such figures: `Limiter` and `AsyncLimiter`."""

    def stats(self) -> Mapping[str, int]:
        """The figures at this moment, by name; raises `StoreError` where the store cannot answer."""
        ...


class StoreMetrics:
    """Keeps the figures of stores, each under a name, in a registry: prometheus-client's own, or the one given.

    A store without figures, or one that cannot answer, has no sample. Each reading takes some twenty microseconds.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY  # noqa: PLC0415 - an extra, not always there
        except ImportError:
            raise CaplineError('metrics need prometheus-client: pip install "capline[prometheus]"') from None
        self._stores: dict[str, HasStats] = {}
        try:
            (REGISTRY if registry is None else registry).register(self)
        except ValueError:
            raise InvalidValueError("this registry has store metrics already; add the limiter to those") from None

    def add(self, name: str, limiter: HasStats) -> None:
        """Export this limiter's store under this name; it replaces an earlier one of that name."""
        if name not in self._stores and len(self._stores) >= MOST_STORES:
            raise InvalidValueError(f"more than {MOST_STORES} stores; share them")
        self._stores = {**self._stores, name: limiter}

    def collect(self) -> Iterable[Metric]:
        """Read the figures; prometheus-client calls it."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - as above

        gauges = {
            name: GaugeMetricFamily(f"capline_store_{name}", what, labels=["store"]) for name, what in _FIGURES.items()
        }
        for store, limiter in self._stores.items():
            try:
                stats = limiter.stats()
            except StoreError:
                continue
            for name, gauge in gauges.items():
                if name in stats:
                    gauge.add_metric([store], stats[name])
        return list(gauges.values())

    def describe(self) -> Iterable[Metric]:
        """Name the metrics, so that the registry can tell of one that it has."""
        return self.collect()
