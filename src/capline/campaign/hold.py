"""Whose turn it is: messages that are held for one subject wait for each other.

The rule: of the messages that campaigns of one store hold for a subject on one log, the first is that of the highest
priority, then the one that was asked for first, then by the campaign's name. The others are not decided before it is.
What cannot go on is not waited for: a campaign that is paused, cancelled or over, a batch that was set aside.

There is no index to keep right: who is held stands in the recorded steps of the batches that may have these subjects.
Cost: for each other campaign that holds on this log, some two such batches, 1 ms each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from capline.campaign.pending import on_shared_log, pending
from capline.campaign.store.rows import DECIDING, HELD, SECOND_US
from capline.model.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from capline.campaign.store.packed import Ids
    from capline.campaign.store.protocol import CampaignStore
    from capline.campaign.store.rows import BatchRows

_AFTER_US = 1000
"""A message that waits for another one is due so long after it, so that the other one is looked at first."""


def turns_of(
    store: CampaignStore, campaign: str, rows: BatchRows, due: NDArray[np.intp], now_us: int
) -> tuple[NDArray[np.int64], list[str]]:
    """Until when each row waits for messages before it (0: it does not wait), and the limit that holds those."""
    until_us, limits = np.zeros(len(due), np.int64), [""] * len(due)
    ids = rows.ids[due]
    for theirs, over_us in _before(store, campaign, rows.at_us, ids):
        held = np.flatnonzero(np.isin(theirs.state, (HELD, DECIDING)))
        _, places, at = np.intersect1d(ids, theirs.ids[held], assume_unique=True, return_indices=True)
        first = held[at]
        ends_us = np.where(theirs.state[first] == HELD, np.minimum(theirs.held_until_us[first], over_us), 0)
        # A message that is due and not decided is in other hands: its row looks again in a second.
        ends_us = np.where(ends_us > now_us, ends_us + _AFTER_US, (now_us // SECOND_US + 1) * SECOND_US)
        later = ends_us > until_us[places]
        until_us[places[later]] = ends_us[later]
        for place, limit in zip(places[later].tolist(), theirs.limit[first[later]].tolist(), strict=True):
            limits[place] = theirs.limits[limit] if limit >= 0 else ""
    return until_us, limits


def _before(store: CampaignStore, campaign: str, at_us: int, ids: Ids) -> Iterator[tuple[BatchRows, float]]:
    """The batches of other campaigns with these ids that come before a batch of this one, asked for at `at_us`.

    Each with when its campaign is over.
    """
    run, ends = store.find(campaign), ids[[0, -1]].tolist()
    if run is None:
        return
    mine = -run.priority, at_us, campaign
    for other in pending(store, SystemClock().now_us(), 0):
        name, priority = other.run.facts.campaign, other.run.priority
        if name == campaign or not other.run.facts.holds or priority < run.priority:
            continue
        if not on_shared_log(store, other.run, run):
            continue
        numbers = [number for number in store.holding(name, ends[0], to=ends[1]) if number not in other.state.aside]
        for theirs in store.steps(name, numbers):
            is_before = (-priority, theirs.at_us, name) < mine
            if is_before and (theirs.ids.dtype == object) == (ids.dtype == object):
                yield theirs, other.state.until_us or math.inf
