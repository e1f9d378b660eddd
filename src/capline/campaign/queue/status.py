"""The campaigns of a queue, a line each; of one the counts of `report`, and which worker has which batch."""

from collections.abc import Iterator

import msgspec

from capline.campaign.ledger import Ledger
from capline.campaign.report import Report, RunStatus, Steering, state_now
from capline.campaign.store.protocol import CampaignStore, UnreadableRunError, names_of
from capline.campaign.store.records import PREPARE, InWork, State


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
        self._url = queue.url
        self._status = RunStatus(Ledger.of(queue, campaign))

    def report(self) -> QueueReport:
        """The progress now."""
        report, state = self._status.read()
        return QueueReport(**msgspec.structs.asdict(report), queue=self._progress(state))

    def _progress(self, state: State) -> QueueProgress:
        return QueueProgress(
            self._url,
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
