"""Observers receive every decision, for metrics and logs. None can break a decision, and none sees a subject.

    limiter  ->  Decided (what was decided, counted when asked)  ->  Observer.decided, one after the other

prometheus-client and opentelemetry-api are loaded when their observer is made, and not before.
"""

from typing import TYPE_CHECKING

from capline.observe.event import Decided as Decided
from capline.observe.event import Outcome as Outcome
from capline.observe.protocol import HearsFailures as HearsFailures
from capline.observe.protocol import Observer as Observer
from capline.support.lazy import lazy_names

if TYPE_CHECKING:
    from capline.observe.json_lines import LogObserver as LogObserver
    from capline.observe.opentelemetry import OpenTelemetryObserver as OpenTelemetryObserver
    from capline.observe.prometheus import PrometheusObserver as PrometheusObserver
    from capline.observe.segments import SegmentMetrics as SegmentMetrics
    from capline.observe.segments import Watched as Watched
    from capline.observe.segments import WatchFigures as WatchFigures
    from capline.observe.servers import ServerMetrics as ServerMetrics
    from capline.observe.store import HasStats as HasStats
    from capline.observe.store import StoreMetrics as StoreMetrics
else:
    __getattr__, __all__, __dir__ = lazy_names(
        __name__,
        {
            "capline.observe.json_lines": ("LogObserver",),
            "capline.observe.opentelemetry": ("OpenTelemetryObserver",),
            "capline.observe.prometheus": ("PrometheusObserver",),
            "capline.observe.segments": ("SegmentMetrics", "WatchFigures", "Watched"),
            "capline.observe.servers": ("ServerMetrics",),
            "capline.observe.store": ("HasStats", "StoreMetrics"),
        },
        "Decided",
        "HearsFailures",
        "Observer",
        "Outcome",
    )
