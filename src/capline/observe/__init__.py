"""Observers receive every decision, for metrics and logs. None can break a decision, and none sees a subject.

    limiter  ->  Decided (what was decided, counted when asked)  ->  Observer.decided, one after the other

prometheus-client and opentelemetry-api are loaded when their observer is made, and not before.
"""

from typing import TYPE_CHECKING

from capline.observe.event import Decided, Outcome
from capline.observe.protocol import HearsFailures, Observer
from capline.support.lazy import lazy_names

if TYPE_CHECKING:
    from capline.observe.json_lines import LogObserver
    from capline.observe.opentelemetry import OpenTelemetryObserver
    from capline.observe.prometheus import PrometheusObserver
    from capline.observe.segments import SegmentMetrics, Watched, WatchFigures
    from capline.observe.servers import ServerMetrics
    from capline.observe.store import HasStats, StoreMetrics
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "capline.observe.json_lines": ("LogObserver",),
            "capline.observe.opentelemetry": ("OpenTelemetryObserver",),
            "capline.observe.prometheus": ("PrometheusObserver",),
            "capline.observe.segments": ("SegmentMetrics", "WatchFigures", "Watched"),
            "capline.observe.servers": ("ServerMetrics",),
            "capline.observe.store": ("HasStats", "StoreMetrics"),
        },
    )

__all__ = [
    "Decided",
    "HasStats",
    "HearsFailures",
    "LogObserver",
    "Observer",
    "OpenTelemetryObserver",
    "Outcome",
    "PrometheusObserver",
    "SegmentMetrics",
    "ServerMetrics",
    "StoreMetrics",
    "WatchFigures",
    "Watched",
]


def __dir__() -> list[str]:
    return __all__
