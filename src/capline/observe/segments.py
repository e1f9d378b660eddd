"""The age of the served segments as Prometheus metrics, read on demand.

    SegmentMetrics(registry).add("users", watch)

Alert on `capline_segments_behind_seconds`: it grows while a watch cannot confirm that it serves the newest version.
`capline_segments_age_seconds` also grows when nobody publishes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from capline.observe.on_demand import NamedSources
from capline.support.override import override

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


class WatchFigures(Protocol):
    """The figures of a watch; `capline.segment.WatchStatus` is one."""

    @property
    def version(self) -> str | None: ...  # noqa: D102 - that is served; None if there is none
    @property
    def age_us(self) -> int | None: ...  # noqa: D102 - since it was built
    @property
    def behind_us(self) -> int | None: ...  # noqa: D102 - since it was last confirmed as the version to serve
    @property
    def error(self) -> str | None: ...  # noqa: D102 - why it cannot be confirmed now
    @property
    def swaps(self) -> int: ...  # noqa: D102 - how often the served version was replaced
    @property
    def refused(self) -> int: ...  # noqa: D102 - how often a version was fetched and refused


class Watched(Protocol):
    """An object with such figures: `capline.segment.SegmentWatch`."""

    @property
    def status(self) -> WatchFigures: ...  # noqa: D102 - the figures at this moment


class SegmentMetrics(NamedSources[Watched]):
    """The figures of watches, each under a name, in a registry: prometheus-client's own or the one given.

    They are of this process: prometheus-client's multiprocess mode does not gather what is read on demand.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__("segment", "watch", registry)

    @override
    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - as above

        labels = ["watch"]
        age = GaugeMetricFamily("capline_segments_age_seconds", "Since the served snapshot was built", labels=labels)
        behind = GaugeMetricFamily(
            "capline_segments_behind_seconds", "Since the served snapshot was known to be the newest", labels=labels
        )
        serving = GaugeMetricFamily("capline_segments_serving", "1 if there is a snapshot to serve", labels=labels)
        failing = GaugeMetricFamily("capline_segments_failing", "1 while the newest cannot be fetched", labels=labels)
        swaps = CounterMetricFamily("capline_segments_swaps", "Times that the snapshot was replaced", labels=labels)
        refused = CounterMetricFamily("capline_segments_refused", "Times that a version was refused", labels=labels)
        for name, watch in self._sources.items():
            status = watch.status
            # No sample rather than a zero, which would look fresh.
            if status.age_us is not None:
                age.add_metric([name], status.age_us / 1e6)
            if status.behind_us is not None:
                behind.add_metric([name], status.behind_us / 1e6)
            serving.add_metric([name], float(status.version is not None))
            failing.add_metric([name], float(status.error is not None))
            swaps.add_metric([name], status.swaps)
            refused.add_metric([name], status.refused)
        return [age, behind, serving, failing, swaps, refused]
