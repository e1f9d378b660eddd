"""Decisions as OpenTelemetry metrics, by opentelemetry-api. The program sets up the SDK that exports them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from capline.model.errors import CaplineError
from capline.observe.bounded import LABEL_SETS, check_label_sets
from capline.observe.metrics import (
    BUCKETS_SECONDS,
    DECISION_LABELS,
    DECISIONS,
    OBSERVER_ERRORS,
    PEEKS,
    STORE_LABELS,
    STORE_SECONDS,
    Metrics,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider


class OpenTelemetryObserver(Metrics):
    """The metrics of `capline.observe.metrics`, by this meter provider or the global one.

    Each metric has at most `label_sets` (1 to a million); later ones count as "other". An SDK may have a lower bound.
    """

    def __init__(self, provider: MeterProvider | None = None, *, label_sets: int = LABEL_SETS) -> None:
        check_label_sets(label_sets)
        try:
            from opentelemetry.metrics import get_meter  # noqa: PLC0415 - an extra, not always there
        except ImportError:
            raise CaplineError('metrics need opentelemetry-api: pip install "capline[otel]"') from None
        meter = get_meter("capline", meter_provider=provider)
        decisions = meter.create_counter(DECISIONS, "{attempt}", "Attempts, by their outcome")
        peeks = meter.create_counter(PEEKS, "{attempt}", "Attempts that were only peeked at")
        seconds = meter.create_histogram(
            STORE_SECONDS,
            "s",
            "Seconds that the store's call took",
            explicit_bucket_boundaries_advisory=BUCKETS_SECONDS,
        )
        failed = meter.create_counter(OBSERVER_ERRORS, "{error}", "Times that an observer raised")
        super().__init__(
            label_sets,
            lambda labels: partial(decisions.add, attributes=dict(zip(DECISION_LABELS, labels, strict=True))),
            lambda labels: partial(peeks.add, attributes=dict(zip(DECISION_LABELS, labels, strict=True))),
            lambda labels: partial(seconds.record, attributes=dict(zip(STORE_LABELS, labels, strict=True))),
            failed.add,
        )
