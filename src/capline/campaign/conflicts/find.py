"""Who takes whose place: the campaigns that wait, by the logs they share, simulated on the subjects of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from capline.campaign.conflicts.past import Past
from capline.campaign.conflicts.patterns import Patterns, blocks
from capline.campaign.conflicts.planned import Planned, planned_in
from capline.campaign.conflicts.simulate import Simulation, Tally
from capline.model.clock import SystemClock
from capline.model.errors import CaplineError
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from capline.campaign.prepare import Job
    from capline.campaign.store.packed import Ids
    from capline.campaign.store.protocol import CampaignStore

_MOST_CELLS = 1 << 21
"""Patterns times campaigns that are simulated at once: some 200 bytes each."""


class Conflict(msgspec.Struct, frozen=True):
    """So many messages of `campaign`, in a segment, are refused by `limit` where `taken_by` has units in its window.

    `later` of these are held, and sent when they fit. One message counts once for each campaign that took its place.
    """

    campaign: str
    taken_by: str
    limit: str
    segment: str | None
    users: int
    later: int


class Expected(msgspec.Struct, frozen=True):
    """What becomes of a campaign: `audience` = `excluded` + `held_out` + `sent` + `refused`.

    Of those sent, `later` are held first. `losing` messages lose their place to some other campaign, at first at least.
    """

    campaign: str
    policy: str
    due: str
    priority: int
    audience: int
    excluded: int
    held_out: int
    sent: int
    later: int
    refused: int
    losing: int


class Conflicts(msgspec.Struct, frozen=True):
    """What scheduled campaigns do to each other; `unread` says by name why a campaign could not be looked at.

    `history`: on the logs as they are now; else on empty ones.
    """

    history: bool
    campaigns: list[Expected]
    conflicts: list[Conflict]
    unread: dict[str, str]


class _UnreadError(Exception):
    """The audience of this campaign cannot be read."""

    def __init__(self, planned: Planned, why: CaplineError) -> None:
        super().__init__(str(why))
        self.planned = planned


def conflicts_in(store: CampaignStore, *, history: bool = False) -> Conflicts:
    """What the campaigns that wait in a store do to each other; with `history`, on the logs as they are now."""
    now_us = SystemClock().now_us()
    planned, unread = planned_in(store, now_us)
    return conflicts(planned, unread, now_us, history=history)


def conflicts_of(job: Job, store: CampaignStore) -> tuple[list[Conflict], dict[str, str]]:
    """The places that a campaign would lose to those that wait in a store, and take from them, on the logs as they are.

    And why some could not be looked at, as in `Conflicts`.
    """
    file, now_us = job.file, SystemClock().now_us()
    others, unread = planned_in(store, now_us, but=file.campaign)
    if file.only or file.as_of_us is not None:
        return [], unread
    mine = Planned.of_job(job, now_us, file.send_at_us, file.until_us or 0)
    found = conflicts([mine, *others], unread, now_us, history=True, of=mine)
    return [each for each in found.conflicts if mine.name in (each.campaign, each.taken_by)], found.unread


def conflicts(
    planned: Sequence[Planned], unread: dict[str, str], now_us: int, *, history: bool = False, of: Planned | None = None
) -> Conflicts:
    """What these campaigns do to each other, from now on; `unread` is added to.

    `of` one of them: what the others do to it, and it to them, to its recipients; what others do beside it is left out.
    """
    unread = {**unread}
    found: list[Expected] = []
    taken: list[Conflict] = []
    for group in _groups(planned):
        while group and (of is None or (of in group and len(group) > 1)):
            audiences = _Audiences(group)
            try:
                tally = _simulated(group, audiences, now_us, history=history, of=of)
            except _UnreadError as error:
                unread[error.planned.name] = str(error)
                group.remove(error.planned)
                continue
            found += [audiences.expected(each, tally) for each in group]
            taken += [Conflict(*place, users, tally.taken_for_now[place]) for place, users in tally.taken.items()]
            break
    found.sort(key=lambda each: (each.due, -each.priority, each.campaign))
    order = {each.campaign: place for place, each in enumerate(found)}
    taken.sort(key=lambda each: (order[each.campaign], order[each.taken_by], each.limit, each.segment or ""))
    return Conflicts(history, found, taken, dict(sorted(unread.items())))


def _groups(planned: Sequence[Planned]) -> list[list[Planned]]:
    """The campaigns that share a log with one another, directly or by way of others."""
    found: list[tuple[set[object], list[Planned]]] = []
    for each in planned:
        logs: set[object] = {(*each.place, log) for log in each.logs}
        apart = [(theirs, group) for theirs, group in found if logs.isdisjoint(theirs)]
        shared = [(theirs, group) for theirs, group in found if not logs.isdisjoint(theirs)]
        group = [other for _, others in shared for other in others]
        found = [*apart, (logs.union(*(more for more, _ in shared)), [*group, each])]
    return [group for _, group in found]


class _Audiences:
    """The audiences of campaigns, as kinds by subject; counts those who are read."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._planned = planned
        self._counts = {each.name: [0, 0, 0] for each in planned}

    def streams(self) -> Iterator[tuple[int, Iterator[tuple[Ids, NDArray[np.int64]]]]]:
        """A stream of ids and kinds for each part of an audience that ascends."""
        for row, each in enumerate(self._planned):
            try:
                streams = [*each.streams()]
            except CaplineError as error:
                raise _UnreadError(each, error) from None
            yield from ((row, self._read(each, numbers)) for numbers in streams)

    def _read(self, each: Planned, numbers: Sequence[int]) -> Iterator[tuple[Ids, NDArray[np.int64]]]:
        counts = self._counts[each.name]
        for number in numbers:
            try:
                waiting = each.part(number)
                if waiting is None:
                    continue
                part = waiting.part
                excluded, held_out = each.file.left_out(part.ids)
            except CaplineError as error:
                raise _UnreadError(each, error) from None
            for place, more in enumerate((len(part), int(excluded.sum()), int(held_out.sum()))):
                counts[place] += more
            kept = ~(excluded | held_out)
            yield part.ids[kept], each.kinds(waiting)[kept]

    def expected(self, each: Planned, tally: Tally) -> Expected:
        """What becomes of a campaign."""
        name = each.name
        came = (counter[name] for counter in (tally.sent, tally.later, tally.refused, tally.losing))
        due, priority = instant_text(each.due_us), each.file.priority
        return Expected(name, each.policy.name, due, priority, *self._counts[name], *came)


def _simulated(
    group: Sequence[Planned], audiences: _Audiences, now_us: int, *, history: bool, of: Planned | None
) -> Tally:
    """Simulate a group, some patterns at a time."""
    tally = Tally()
    most = [each.most_kinds for each in group] + [Past.most if history else 0]
    patterns = Patterns(most)

    def simulate() -> None:
        patterns.settle()
        if not len(patterns.counts):
            return
        kinds, of_past = patterns.table[:-1], patterns.table[-1]
        Simulation(group, kinds, patterns.counts, past.records(of_past), now_us).run(tally)

    with Past(group, now_us, history=history) as past:
        asked_for = [row for row, each in enumerate(group) if each is of]
        for ids, table in blocks(len(group), audiences.streams()):
            some = (table[asked_for] > 0).all(axis=0)
            patterns.add(np.vstack([table[:, some], past.kinds(ids[some])]))
            if len(patterns.counts) * len(group) > _MOST_CELLS:
                simulate()
                patterns = Patterns(most)
        simulate()
    return tally
