"""A campaign worker and its queue as Prometheus metrics: what the worker did, and the last known state of the queue.

    capline_worker_batches_total{outcome}        delivered, lost (to another worker), dead_letter
    capline_worker_recipients_total{outcome}     sent, refused, failed, not_known
    capline_campaign_delay_seconds{campaign,segment}   histogram: from when messages were due to their receiver's answer
    capline_queue_up                             1 while the queue's server answers
    capline_queue_campaigns                      campaigns that are not finished
    capline_queue_batches{campaign,state}        waiting, leased, delivered, dead_letter
    capline_queue_age_seconds{campaign}          since it was due
    capline_queue_silent_seconds{campaign}       since the oldest renewal of a lease; leases are renewed every second

Every worker exports the same queue, so take the maximum: `max by (campaign) (…)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from capline.campaign.queue.watch import QueueDepth
    from capline.campaign.queue.worker_report import WorkerReport

_MOST_CAMPAIGNS = 100


class WorkerMetrics:
    """Exports them in this registry. `worked` is read at each scrape; the queue is what `show` was last given."""

    def __init__(self, worked: WorkerReport, registry: CollectorRegistry, bounds_s: Sequence[int]) -> None:
        self._worked = worked
        self._bounds_s = bounds_s
        self._queue: QueueDepth | None = None
        self._delays: dict[str, dict[str, list[int]]] = {}
        registry.register(self)

    def add(self, campaign: str, delays: Mapping[str, Sequence[int]]) -> None:
        """Count a batch's messages by segment: within each of the bounds, and later, and the sum of their delays.

        Of the last 100 campaigns.
        """
        known = self._delays[campaign] = self._delays.pop(campaign, {})
        for segment, counts in delays.items():
            known[segment] = [a + b for a, b in zip(known.get(segment, [0] * len(counts)), counts, strict=True)]
        while len(self._delays) > _MOST_CAMPAIGNS:
            self._delays.pop(next(iter(self._delays)))

    def show(self, queue: QueueDepth | None) -> None:
        """Export this state of the queue from now on; None where it did not answer."""
        self._queue = queue

    def collect(self) -> Iterable[Metric]:
        """Read the figures; prometheus-client calls it."""
        from prometheus_client.core import (  # noqa: PLC0415 - an extra
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        worked, outcome = self._worked, ["outcome"]
        batches = CounterMetricFamily("capline_worker_batches", "Batches of this worker", labels=outcome)
        for name, count in (("delivered", worked.settled), ("lost", worked.lost), ("dead_letter", worked.aside)):
            batches.add_metric([name], count)
        people = CounterMetricFamily("capline_worker_recipients", "Recipients of those delivered", labels=outcome)
        for name in ("sent", "refused", "failed", "not_known"):
            people.add_metric([name], getattr(worked, name))
        queue = self._queue
        up = GaugeMetricFamily("capline_queue_up", "1 while the queue answers", value=queue is not None)
        told = "From when messages were due to their receiver's answer"
        delay = HistogramMetricFamily("capline_campaign_delay_seconds", told, labels=["campaign", "segment"])
        for campaign, segments in list(self._delays.items()):
            for segment, counts in segments.items():
                buckets = list(zip((*map(str, self._bounds_s), "+Inf"), accumulate(counts[:-1]), strict=True))
                delay.add_metric([campaign, segment], buckets, counts[-1])
        yield from (batches, people, delay, up)
        if queue is None:
            return
        yield GaugeMetricFamily("capline_queue_campaigns", "Campaigns that are not finished", value=queue.campaigns)
        of, by = ["campaign"], ["campaign", "state"]
        state = GaugeMetricFamily("capline_queue_batches", "Batches of a campaign that is not finished", labels=by)
        age = GaugeMetricFamily("capline_queue_age_seconds", "Since the campaign was due", labels=of)
        silent = GaugeMetricFamily("capline_queue_silent_seconds", "Since its quietest lease was renewed", labels=of)
        for backlog in queue.oldest:
            for name in ("waiting", "leased", "delivered"):
                state.add_metric([backlog.campaign, name], getattr(backlog, name))
            state.add_metric([backlog.campaign, "dead_letter"], backlog.dead_letters)
            age.add_metric([backlog.campaign], backlog.age_s)
            silent.add_metric([backlog.campaign], backlog.silent_s)
        yield from (state, age, silent)
