"""Decisions as OpenTelemetry metrics, by opentelemetry-api. The program sets up the SDK that exports them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from capline.model.errors import CaplineError
from capline.observe.bounded import LABEL_SETS, check_label_sets
from capline.observe.metrics import BUCKETS_SECONDS, OBSERVER_ERRORS, Metrics

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from capline.observe.bounded import Figure


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

        def counter(name: str, text: str, labels: tuple[str, ...]) -> Callable[[tuple[str, ...]], Figure]:
            made = meter.create_counter(name, "{error}" if name == OBSERVER_ERRORS else "{attempt}", text)
            return lambda values: partial(made.add, attributes=dict(zip(labels, values, strict=True)))

        def histogram(name: str, text: str, labels: tuple[str, ...]) -> Callable[[tuple[str, ...]], Figure]:
            made = meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=BUCKETS_SECONDS)
            return lambda values: partial(made.record, attributes=dict(zip(labels, values, strict=True)))

        super().__init__(label_sets, counter, histogram)
