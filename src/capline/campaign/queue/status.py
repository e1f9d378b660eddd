"""A queued campaign's progress over all its workers: the counts of `report`, and which worker has which batch.

A `QueueStatus` reads each finished batch once, since it does not change. For ten million subjects the first report
reads some 100 MB; each later one reads only what is not finished.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import msgspec

from capline.campaign.queue.records import InWork
from capline.campaign.report import OutcomeCounts, Report, state_at
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from capline.campaign.ledger.rows import BatchRows
    from capline.campaign.queue.queue import Queue
    from capline.campaign.queue.records import State

_SILENT_S = 10.0
"""Leases are renewed every second: after so long without a renewal, nobody is at work."""


class QueueProgress(msgspec.Struct, frozen=True):
    """Batches: `batches` = `unqueued` + `waiting` + in work + `settled` + set aside (number: why)."""

    url: str
    batches: int
    unqueued: int
    waiting: int
    settled: int
    in_work: list[InWork]
    set_aside: dict[int, str]


class QueueReport(Report, frozen=True, kw_only=True):
    """A report with the queue's progress."""

    queue: QueueProgress


class QueueStatus:
    """Reads one campaign of a queue; `CampaignError` where it is not there."""

    def __init__(self, queue: Queue, campaign: str) -> None:
        run = queue.find(campaign)
        if run is None:
            raise CampaignError(
                f"queue {queue.server.url}: no run of a campaign {campaign!r}; begin it with: capline campaign enqueue"
            )
        self._queue = queue
        self._run = run
        self._done = OutcomeCounts(run.facts.segments)
        self._not_done = set(range(run.batches))

    def report(self) -> QueueReport:
        """The progress now."""
        name = self._run.facts.campaign
        # State before steps: where the run moves on in between, the state lags behind the counts, never ahead of them.
        state = self._queue.state(name)
        under_way: list[BatchRows] = []
        for rows in self._queue.steps(name, sorted(self._not_done)):
            if rows.is_done:
                self._done.add(rows)
                self._not_done.discard(rows.number)
            else:
                under_way.append(rows)
        counts = deepcopy(self._done)
        for rows in under_way:
            counts.add(rows)
        report = counts.report(self._run.facts, _state(state), state.elapsed_us)
        return QueueReport(**msgspec.structs.asdict(report), queue=self._progress(state))

    def _progress(self, state: State) -> QueueProgress:
        return QueueProgress(
            self._queue.server.url,
            self._run.batches,
            self._run.batches - state.queued,
            state.waiting,
            state.settled,
            list(state.in_work),
            dict(state.aside),
        )


def _state(state: State) -> str:
    if state.finished:
        return "finished"
    at_work = any(each.silent_s < _SILENT_S for each in state.in_work)
    return state_at("running" if at_work else "stopped", state.due_us)
