"""Erases a subject from the campaigns of a store: its rows in audiences and outcomes, as if it had never been in them.

A batch is read, and written again without the subject, if it is still as it was read and nobody has it: a worker has
its batch in memory. What a worker has is counted, so that the call can be repeated when that is settled. The campaign's
and the segment's audience is one less. The file of an audience, and the files of a sender, are the caller's.

Cost: two comparisons for a batch that is decided; one that is not is unpacked, some 10 ms for 10,000 rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from capline.campaign.part import Part
from capline.campaign.store.protocol import UnreadableRunError, names_of
from capline.campaign.store.records import step_bytes
from capline.campaign.store.rows import RETRIED

if TYPE_CHECKING:
    from capline.campaign.store.protocol import CampaignStore
    from capline.campaign.store.records import StoredRun
    from capline.model.subject import Subject

_TRIES = 3


class ErasedFrom(msgspec.Struct, frozen=True):
    """What was erased from a campaign: rows of its audience that were not decided, and outcomes.

    `in_work`: batches with the subject that a worker has now, from which nothing was erased: erase again later.
    """

    campaign: str
    audience: int
    outcomes: int
    in_work: int


def erase(store: CampaignStore, subject: Subject) -> list[ErasedFrom]:
    """Erase a subject from each campaign that has it; by name. Those of another version of capline are left alone."""
    found: list[ErasedFrom] = []
    for name in names_of(store):
        try:
            run = store.find(name)
        except UnreadableRunError:
            continue
        if run is None or (run.facts.ids == "text") != isinstance(subject, str):
            continue
        erased = ErasedFrom(name, 0, 0, 0)
        for number in store.holding(name, subject):
            what = _from_batch(store, run, number, subject)
            if what:
                erased = msgspec.structs.replace(erased, **{what: getattr(erased, what) + 1})
        if erased.audience or erased.outcomes or erased.in_work:
            found.append(erased)
    return found


def _from_batch(store: CampaignStore, run: StoredRun, number: int, subject: Subject) -> str:
    """What the subject had in a batch, a field of `ErasedFrom`; empty if it was not in it."""
    for _ in range(_TRIES):
        was = store.stored(run.facts.campaign, number)
        if was is None:
            return ""
        part = Part.claimed(was, run) if was.data else None
        rows = was.steps()
        held = rows or part
        keeps = np.empty(0, bool) if held is None else held.ids != subject
        if held is None or keeps.all():
            return ""
        if rows is not None and rows.to("decide").size:
            return "in_work"  # what was asked of the limiter is not known yet
        row = int(np.argmin(keeps))
        # A row that was retried counts where it was retried.
        counts = rows is None or int(rows.state[row]) != RETRIED
        left = None if rows is None else rows.take(keeps)
        now = replace(was, rows=int(keeps.sum()), data=b"" if part is None else part.take(keeps).pack())
        if left is not None:
            now = replace(now, **dict(zip(("decided", "outcome"), step_bytes(left, decided=True), strict=True)))
        done = counts and left is not None and left.is_done
        if store.rewrite(was, now, left, int(held.codes[row]) if counts else None, done=done):
            return "audience" if rows is None else "outcomes"
    return "in_work"
