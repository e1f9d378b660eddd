"""How far a queued campaign is, over all its workers: the report of `run`, of the steps in the queue, and who has what.

Made once for a campaign and looked at any number of times: what is settled is read once, for it does not change. The
first look at ten million subjects reads some 100 MB; each later one, what moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capline.campaign.report import OutcomeCounts, Report
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from capline.campaign.queue.queue import Queue, State

__all__ = ["BatchInWork", "QueueProgress", "QueueReport", "QueueStatus"]

_SILENT_S = 10.0
"""So long without a sign of life, of which there is one a second, and nobody is at work."""


class BatchInWork(msgspec.Struct, frozen=True):
    """A batch that a worker has, and for how long; `silent_s` since its last sign of life.

    `takes` is above 1 where workers before it did not come back; `error` is what the last of them said.
    """

    batch: int
    worker: str
    since_us: int
    silent_s: float
    takes: int
    error: str | None


class QueueProgress(msgspec.Struct, frozen=True):
    """Batches: `batches` = `unqueued` + `waiting` + in work + `settled` + set aside (number: why)."""

    url: str
    batches: int
    unqueued: int
    waiting: int
    settled: int
    in_work: list[BatchInWork]
    set_aside: dict[int, str]


class QueueReport(Report, frozen=True, kw_only=True):
    """A report, and how far the queue is."""

    queue: QueueProgress


class QueueStatus:
    """A campaign on a queue, to look at; `CampaignError` where it is not there."""

    def __init__(self, queue: Queue, campaign: str) -> None:
        run = queue.find(campaign)
        if run is None:
            raise CampaignError(
                f"queue {queue.server.url}: no run of a campaign {campaign!r}; begin it with: capline campaign enqueue"
            )
        self._queue = queue
        self._run = run
        self._settled = OutcomeCounts(run.facts.segments)
        self._unsettled = set(range(run.batches))

    def report(self) -> QueueReport:
        """How far it is now."""
        name = self._run.facts.campaign
        # The state before the steps: a batch that moves between the two is then counted as less far, never as further.
        state = self._queue.state(name)
        under_way = OutcomeCounts(self._run.facts.segments)
        for rows in self._queue.steps(name, sorted(self._unsettled)):
            if rows.is_settled:
                self._settled.add(rows)
                self._unsettled.discard(rows.number)
            else:
                under_way.add(rows)
        tally = OutcomeCounts(self._run.facts.segments)
        tally.merge(self._settled)
        tally.merge(under_way)
        report = tally.report(self._run.facts, _state(state), state.elapsed_us)
        return QueueReport(**msgspec.structs.asdict(report), queue=self._progress(state))

    def _progress(self, state: State) -> QueueProgress:
        return QueueProgress(
            self._queue.server.url,
            self._run.batches,
            self._run.batches - state.queued,
            state.waiting,
            state.settled,
            [
                BatchInWork(each.number, each.worker, each.since_us, each.idle_s, each.takes, each.error)
                for each in state.in_work
            ],
            dict(state.aside),
        )


def _state(state: State) -> str:
    if state.finished:
        return "finished"
    return "running" if any(each.idle_s < _SILENT_S for each in state.in_work) else "stopped"
