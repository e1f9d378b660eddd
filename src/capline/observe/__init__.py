"""Observers: who is told of every decision, for metrics and logs. None may break a decision, none is told a subject.

    limiter  ->  Decided (what was decided, counted when asked)  ->  Observer.decided, one after the other

prometheus-client and opentelemetry-api are loaded when their observer is made, and not before.
"""

from capline.observe.event import Decided, Outcome
from capline.observe.json_lines import LogObserver
from capline.observe.opentelemetry import OpenTelemetryObserver
from capline.observe.prometheus import PrometheusObserver
from capline.observe.protocol import HearsFailures, Observer
from capline.observe.segments import SegmentMetrics, Watched, WatchFigures
from capline.observe.store import HasStats, StoreMetrics

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
    "StoreMetrics",
    "WatchFigures",
    "Watched",
]
