"""The campaigns of a queue, a line each; of one the counts of `report`, and which worker has which batch.

A `QueueStatus` reads each finished batch once, since it does not change. For ten million subjects the first report
reads some 100 MB; each later one reads only what is not finished.
"""

from collections.abc import Iterator
from copy import deepcopy

import msgspec

from capline.campaign.ledger import Ledger
from capline.campaign.report import OutcomeCounts, Report, Steering, state_now
from capline.campaign.store.protocol import CampaignStore, UnreadableRunError, names_of
from capline.campaign.store.records import PREPARE, InWork, State
from capline.campaign.store.rows import BatchRows


class QueueProgress(msgspec.Struct, frozen=True):
    """Batches: `batches` = `unqueued` + `waiting` + in work + `settled` + set aside (number: why).

    In work as batch -1 is the reading of the audience; `refused` says why it cannot be used.
    """

    url: str
    batches: int
    unqueued: int
    waiting: int
    settled: int
    in_work: list[InWork]
    set_aside: dict[int, str]
    refused: str | None


class QueueReport(Report, frozen=True, kw_only=True):
    """A report with the queue's progress."""

    queue: QueueProgress


class QueueStatus:
    """Reads one campaign of a queue; `CampaignError` where it is not there."""

    def __init__(self, queue: CampaignStore, campaign: str) -> None:
        self._run = Ledger.of(queue, campaign)
        self._batches = 0
        self._settled = 0
        self._not_done: set[int] = set()
        self._done = OutcomeCounts(self._run.facts.segments)

    def report(self) -> QueueReport:
        """The progress now."""
        # State before steps: where the run moves on in between, the state lags behind the counts, never ahead of them.
        state = self._run.state()
        if state.batches != self._batches or state.settled < self._settled:
            # It is new here, its audience was read, or some of it is done again.
            self._run = Ledger.of(self._run.store, self._run.name)
            self._done = OutcomeCounts(self._run.facts.segments)
            self._not_done = set(range(state.batches))
        self._batches, self._settled = state.batches, state.settled
        under_way: list[BatchRows] = []
        for rows in self._run.store.steps(self._run.name, sorted(self._not_done)):
            if rows.is_done:
                self._done.add(rows)
                self._not_done.discard(rows.number)
            else:
                under_way.append(rows)
        counts = deepcopy(self._done)
        for rows in under_way:
            counts.add(rows)
        report = counts.report(self._run.facts, state)
        return QueueReport(**msgspec.structs.asdict(report), queue=self._progress(state))

    def _progress(self, state: State) -> QueueProgress:
        return QueueProgress(
            self._run.store.url,
            state.batches,
            state.batches - state.queued,
            state.waiting,
            state.settled,
            list(state.in_work),
            {number: why for number, why in state.aside.items() if number != PREPARE},
            state.refused,
        )


class Listed(msgspec.Struct, frozen=True):
    """A campaign in a list, and how far it is. One that another version began has no facts: it is "unreadable"."""

    campaign: str
    run: str
    state: str
    policy: str
    audience: int
    done: int
    batches: int
    settled: int
    send_at: str | None = None


def listed(store: CampaignStore, campaign: str) -> Listed | None:
    """The line of a campaign; None where it is gone. Reads no outcomes."""
    try:
        run = store.find(campaign)
    except UnreadableRunError:
        return Listed(campaign, "", "unreadable", "", 0, 0, 0, 0)
    if run is None:
        return None
    facts, now = run.facts, store.state(campaign)
    return Listed(
        campaign,
        facts.run_id,
        state_now(now),
        facts.policy,
        facts.audience,
        now.done,
        now.batches,
        now.settled,
        Steering.of(now).send_at,
    )


def every(store: CampaignStore) -> Iterator[Listed]:
    """The lines of all campaigns in a store, by name."""
    return filter(None, (listed(store, name) for name in names_of(store)))
