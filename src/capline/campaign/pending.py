"""The campaigns that are pending, and whom each still wants to send to.

A campaign is pending until it is over. It wants those of its audience who are neither excluded nor held out, and whose
message is not decided, or is held. A batch knows its first and last recipient from the start, so only those that may
have some of the subjects are read: 1 ms for 10,000 rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from capline.campaign.file import loads_campaign
from capline.campaign.part import Part
from capline.campaign.store.protocol import UnreadableRunError
from capline.campaign.store.rows import DECIDING, HELD
from capline.model.clock import SystemClock
from capline.model.errors import CaplineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from capline.campaign.file import CampaignFile
    from capline.campaign.store.packed import Ids
    from capline.campaign.store.protocol import CampaignStore
    from capline.campaign.store.records import State, StoredRun
    from capline.model.subject import Subject


@dataclass(frozen=True, slots=True)
class Pending:
    """A campaign that is not over. Until its `state` is whole, nobody knows whom it wants."""

    run: StoredRun
    state: State

    @property
    def file(self) -> CampaignFile | None:
        """Its file; None where that cannot be read here: then nobody is known to be excluded or held out."""
        return _file(self.run.text, self.run.path)

    def wants(self, store: CampaignStore, first: Subject, last: Subject, now_us: int) -> Iterator[Wanted]:
        """Its recipients from one subject to another whose message is still to come, batch by batch; 1 ms a batch.

        A batch that was set aside wants nobody. A campaign wants nobody whose message is due after its end.
        """
        for number in store.holding(self.run.facts.campaign, first, to=last):
            if number in self.state.aside:
                continue
            batch = store.stored(self.run.facts.campaign, number)
            rows = None if batch is None else batch.steps()
            if batch is None or (rows is None and not batch.data):
                continue
            if rows is None:
                ids = Part.claimed(batch, self.run).ids
                due_us = np.full(len(ids), max(batch.due_us, int(self.state.due_us)), np.int64)
            else:
                open_rows = np.flatnonzero(np.isin(rows.state, (HELD, DECIDING)))
                ids, due_us = rows.ids[open_rows], np.where(rows.state == HELD, rows.held_until_us, 0)[open_rows]
            due_us = np.maximum(due_us, now_us)
            stay = due_us < (self.state.until_us or np.iinfo(np.int64).max)
            if self.file is not None:
                stay &= ~_left_out(self.file, ids)
            yield Wanted(ids[stay], due_us[stay])


@dataclass(frozen=True, slots=True)
class Wanted:
    """Recipients, ascending, and when the message of each is due: now, where it might have been decided already."""

    ids: Ids
    due_us: NDArray[np.int64]


def pending(store: CampaignStore, now_us: int, within_s: float = float("inf")) -> Iterator[Pending]:
    """The campaigns that are not over or paused, and are due within so long; test sends are not among them."""
    for name in store.ages_s(within_s):
        try:
            run = store.find(name)
        except UnreadableRunError:
            continue
        if run is None or run.facts.is_test:
            continue
        state = store.state(name)
        if state.goes_on(now_us) and state.refused is None:
            yield Pending(run, state)


def wake_others(store: CampaignStore, run: StoredRun) -> None:
    """Make due what other campaigns hold on the log of this one, since it may have waited for this one.

    Not where a batch has messages that wait to be tried again. Cost: a second for 10M of their recipients.
    """
    for other in pending(store, SystemClock().now_us()):
        name = other.run.facts.campaign
        if name != run.facts.campaign and other.run.facts.holds and on_shared_log(store, run, other.run):
            steps = store.steps(name, range(other.state.queued))
            held = [rows.number for rows in steps if rows.todo("wait").size and not rows.todo("send").size]
            if held:
                store.wake(name, held)


def on_shared_log(store: CampaignStore, run: StoredRun, other: StoredRun) -> bool:
    """Whether the messages of both count on one log. Its store is the one in their files until both are opened."""
    runs = run, other
    logs = [{*each.facts.log.split(" ")} for each in runs]
    opened = [store.store(each.facts.campaign) for each in runs]
    if None in opened:
        opened = [next((named for named in each.inputs if named.name == "store"), None) for each in runs]
    return not logs[0].isdisjoint(logs[1]) and opened[0] == opened[1]


@lru_cache(64)
def _file(text: str, path: str) -> CampaignFile | None:
    try:
        return loads_campaign(text, Path(path))
    except CaplineError:
        return None


def _left_out(file: CampaignFile, ids: Ids) -> NDArray[np.bool_]:
    """Which of these it does not send to, as far as that can be read here."""
    try:
        return np.logical_or(*file.left_out(ids))
    except CaplineError:  # who is excluded cannot be read here
        return replace(file, exclude=None).left_out(ids)[1]
