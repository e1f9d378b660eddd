"""Reads a queue's progress every few seconds, in a thread with a connection of its own: for metrics.

A reading costs three commands for each campaign that it looks at, and one for each of its leased batches.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice

import msgspec
from msgspec.structs import asdict

from capline.campaign.queue.background import repeating
from capline.campaign.store.protocol import SILENT_S, CampaignStore
from capline.campaign.store.records import InWork
from capline.model.errors import CampaignError

EVERY_S = 5.0
MOST_CAMPAIGNS, MOST_WORKERS = 100, 100


class CampaignDepth(msgspec.Struct, frozen=True):
    """A campaign that is not finished, in batches; `silent_s`: how long ago the stalest lease was renewed."""

    campaign: str
    age_s: float
    waiting: int
    leased: int
    delivered: int
    dead_letters: int
    silent_s: float


class QueueDepth(msgspec.Struct, frozen=True):
    """How many campaigns are not finished, and the oldest 100 of them."""

    campaigns: int
    oldest: list[CampaignDepth]


class Working(InWork, frozen=True):
    """A batch in work, of which campaign; `is_silent`: nobody is at work on it, by its lease."""

    campaign: str
    is_silent: bool


class Workers(msgspec.Struct, frozen=True):
    """Batches in work, the longest silent first; of so many campaigns, those due longest."""

    workers: list[Working]
    campaigns: int


def workers_of(queue: CampaignStore) -> Workers:
    """Who works on what; bounded as `read_depth`, and by 100 batches."""
    names = [*islice(queue.ages_s(most=MOST_CAMPAIGNS), MOST_CAMPAIGNS)]
    found = [
        Working(**asdict(batch), campaign=name, is_silent=batch.silent_s >= SILENT_S)
        for name in names
        for batch in queue.state(name).in_work
    ]
    found.sort(key=lambda batch: -batch.silent_s)
    return Workers(found[:MOST_WORKERS], len(names))


def read_depth(queue: CampaignStore) -> QueueDepth:
    """The queue as it is; `CampaignError` where the server does not answer."""
    ages = queue.ages_s()
    return QueueDepth(len(ages), [_depth(queue, name, age_s) for name, age_s in islice(ages.items(), MOST_CAMPAIGNS)])


def _depth(queue: CampaignStore, campaign: str, age_s: float) -> CampaignDepth:
    state = queue.state(campaign)
    silent_s = max((batch.silent_s for batch in state.in_work), default=0.0)
    return CampaignDepth(campaign, age_s, state.waiting, len(state.in_work), state.settled, len(state.aside), silent_s)


def watching(url: str, show: Callable[[QueueDepth | None], object]) -> AbstractContextManager[None]:
    """Call `show` with the depth every few seconds within the block; with None where the queue did not answer."""

    def look(queue: CampaignStore) -> None:
        try:
            show(read_depth(queue))
        except CampaignError:
            show(None)

    return repeating(url, "capline-queue-metrics", EVERY_S, look)
