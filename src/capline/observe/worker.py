"""A campaign worker and its queue as Prometheus metrics: what the worker did, and the queue as it was shown last.

    capline_worker_batches_total{outcome}        delivered, lost (to another worker), dead_letter
    capline_worker_recipients_total{outcome}     sent, refused, failed, not_known
    capline_queue_up                             1 while the queue's server answers
    capline_queue_campaigns                      campaigns that are not finished
    capline_queue_batches{campaign,state}        waiting, leased, delivered, dead_letter
    capline_queue_age_seconds{campaign}          since it was enqueued
    capline_queue_silent_seconds{campaign}       since the quietest lease was renewed; each is, every second

Every worker shows the same queue, so take the largest: `max by (campaign) (…)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

__all__ = ["CampaignFigures", "WorkedFigures", "WorkerMetrics"]

MOST_CAMPAIGNS = 100
"""The oldest have samples; all are in `capline_queue_campaigns`."""


class WorkedFigures(Protocol):
    """What a worker did; `capline.campaign.queue.worker.Worked` is one."""

    settled: int
    lost: int
    aside: int
    sent: int
    refused: int
    failed: int
    not_known: int


class CampaignFigures(Protocol):
    """A campaign that is not finished; `capline.campaign.queue.watch.CampaignDepth` is one."""

    @property
    def campaign(self) -> str: ...  # noqa: D102 - its name
    @property
    def age_s(self) -> float: ...  # noqa: D102 - since it was enqueued
    @property
    def waiting(self) -> int: ...  # noqa: D102 - batches that nobody has
    @property
    def leased(self) -> int: ...  # noqa: D102 - batches that a worker has
    @property
    def delivered(self) -> int: ...  # noqa: D102 - batches
    @property
    def dead_letters(self) -> int: ...  # noqa: D102 - batches
    @property
    def silent_s(self) -> float: ...  # noqa: D102 - of the lease that was renewed longest ago


class WorkerMetrics:
    """Keeps them in this registry. `worked` is read when somebody asks; the queue is what `show` was given last."""

    def __init__(self, worked: WorkedFigures, registry: CollectorRegistry) -> None:
        self._worked = worked
        self._campaigns: Sequence[CampaignFigures] | None = None
        registry.register(self)

    def show(self, campaigns: Sequence[CampaignFigures] | None) -> None:
        """Export these campaigns from now on, the oldest first; None where the queue did not answer."""
        self._campaigns = campaigns

    def collect(self) -> Iterable[Metric]:
        """Read the figures; prometheus-client calls it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - an extra

        worked, outcome = self._worked, ["outcome"]
        batches = CounterMetricFamily("capline_worker_batches", "Batches of this worker", labels=outcome)
        for name, count in (("delivered", worked.settled), ("lost", worked.lost), ("dead_letter", worked.aside)):
            batches.add_metric([name], count)
        people = CounterMetricFamily("capline_worker_recipients", "Recipients of those delivered", labels=outcome)
        for name in ("sent", "refused", "failed", "not_known"):
            people.add_metric([name], getattr(worked, name))
        campaigns = self._campaigns
        up = GaugeMetricFamily("capline_queue_up", "1 while the queue answers", value=campaigns is not None)
        yield from (batches, people, up)
        if campaigns is None:
            return
        yield GaugeMetricFamily("capline_queue_campaigns", "Campaigns that are not finished", value=len(campaigns))
        of, by = ["campaign"], ["campaign", "state"]
        state = GaugeMetricFamily("capline_queue_batches", "Batches of a campaign that is not finished", labels=by)
        age = GaugeMetricFamily("capline_queue_age_seconds", "Since the campaign was enqueued", labels=of)
        silent = GaugeMetricFamily("capline_queue_silent_seconds", "Since its quietest lease was renewed", labels=of)
        for one in campaigns[:MOST_CAMPAIGNS]:
            for name in ("waiting", "leased", "delivered"):
                state.add_metric([one.campaign, name], getattr(one, name))
            state.add_metric([one.campaign, "dead_letter"], one.dead_letters)
            age.add_metric([one.campaign], one.age_s)
            silent.add_metric([one.campaign], one.silent_s)
        yield from (state, age, silent)

    def describe(self) -> Iterable[Metric]:
        """Names are not known to clash: the registry is the worker's own."""
        return ()
