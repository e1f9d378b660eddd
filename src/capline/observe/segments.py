"""The age of the served segments as Prometheus metrics, read on demand.

    SegmentMetrics(registry).add("users", watch)

Alarm on `capline_segments_behind_seconds`: it grows while a watch cannot confirm that it serves the newest
version, whatever the reason. `capline_segments_age_seconds` also grows when nobody publishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from capline.model.errors import CaplineError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

__all__ = ["SegmentMetrics", "WatchFigures", "Watched"]

MOST_WATCHES = 1000


class WatchFigures(Protocol):
    """The figures of a watch; `capline.segment.WatchStatus` is one."""

    @property
    def version(self) -> str | None:
        """What is served; None for nothing."""
        ...

    @property
    def age_us(self) -> int | None:
        """How long ago it was built."""
        ...

    @property
    def behind_us(self) -> int | None:
        """How long ago it was last known to be the one to serve."""
        ...

    @property
    def error(self) -> str | None:
        """Why that is not known now."""
        ...

    @property
    def swaps(self) -> int:
        """How often what is served was replaced."""
        ...

    @property
    def refused(self) -> int:
        """How often a version was fetched and refused."""
        ...


class Watched(Protocol):
    """What has such figures; `capline.segment.SegmentWatch` is one."""

    @property
    def status(self) -> WatchFigures:
        """The figures at this moment."""
        ...


class SegmentMetrics:
    """Keeps the figures of watches, each under a name, in a registry: prometheus-client's own, or the one given.

    They are of this process: prometheus-client's multiprocess mode does not gather what is read on demand.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY  # noqa: PLC0415 - an extra, not always there
        except ImportError:
            raise CaplineError('metrics need prometheus-client: pip install "capline[prometheus]"') from None
        self._watches: dict[str, Watched] = {}
        try:
            (REGISTRY if registry is None else registry).register(self)
        except ValueError:
            raise InvalidValueError("this registry has segment metrics already; add the watch to those") from None

    def add(self, name: str, watch: Watched) -> None:
        """Export this watch under this name; it replaces an earlier one of that name."""
        if name not in self._watches and len(self._watches) >= MOST_WATCHES:
            raise InvalidValueError(f"more than {MOST_WATCHES} watches; share them")
        self._watches = {**self._watches, name: watch}

    def collect(self) -> Iterable[Metric]:
        """Read the figures; prometheus-client calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - as above

        labels = ["watch"]
        age = GaugeMetricFamily("capline_segments_age_seconds", "Since the served snapshot was built", labels=labels)
        behind = GaugeMetricFamily(
            "capline_segments_behind_seconds", "Since the served snapshot was known to be the newest", labels=labels
        )
        serving = GaugeMetricFamily("capline_segments_serving", "1 where there is a snapshot to serve", labels=labels)
        failing = GaugeMetricFamily("capline_segments_failing", "1 while the newest cannot be had", labels=labels)
        swaps = CounterMetricFamily("capline_segments_swaps", "Times that the snapshot was replaced", labels=labels)
        refused = CounterMetricFamily("capline_segments_refused", "Times that a version was refused", labels=labels)
        for name, watch in self._watches.items():
            status = watch.status
            # No sample rather than a zero: nothing is not young.
            if status.age_us is not None:
                age.add_metric([name], status.age_us / 1e6)
            if status.behind_us is not None:
                behind.add_metric([name], status.behind_us / 1e6)
            serving.add_metric([name], float(status.version is not None))
            failing.add_metric([name], float(status.error is not None))
            swaps.add_metric([name], status.swaps)
            refused.add_metric([name], status.refused)
        return [age, behind, serving, failing, swaps, refused]

    def describe(self) -> Iterable[Metric]:
        """Name the metrics, so that the registry can tell of one that it has."""
        return self.collect()
