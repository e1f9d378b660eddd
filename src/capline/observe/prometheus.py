"""Decisions as Prometheus metrics, by prometheus-client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from capline.model.errors import InvalidValueError
from capline.observe.bounded import LABEL_SETS, check_label_sets
from capline.observe.metrics import BUCKETS_SECONDS, Metrics
from capline.observe.on_demand import needs_prometheus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from capline.observe.bounded import Figure


class PrometheusObserver(Metrics):
    """The metrics of `capline.observe.metrics` in a registry: prometheus-client's own or the one given.

    Each metric has at most `label_sets` (1 to a million); later ones count as "other". Limiters may share one observer;
    a second one in the same registry raises `InvalidValueError`. In prometheus-client's multiprocess mode the bound is
    per process.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, label_sets: int = LABEL_SETS) -> None:
        check_label_sets(label_sets)
        with needs_prometheus():
            from prometheus_client import REGISTRY, Counter, Histogram  # noqa: PLC0415 - an extra, not always there
        into = REGISTRY if registry is None else registry

        def counter(name: str, text: str, labels: tuple[str, ...]) -> Callable[[tuple[str, ...]], Figure]:
            made = Counter(name, text, labels, registry=into)
            return lambda values: (made.labels(*values) if values else made).inc

        def histogram(name: str, text: str, labels: tuple[str, ...]) -> Callable[[tuple[str, ...]], Figure]:
            made = Histogram(name, text, labels, registry=into, buckets=BUCKETS_SECONDS)
            return lambda values: made.labels(*values).observe

        try:
            super().__init__(label_sets, counter, histogram)
        except ValueError:
            raise InvalidValueError(
                "this registry has capline's metrics already; share that observer among limiters, or give another "
                "registry"
            ) from None
