"""How many events of each subject are refused under many quotas at once, exactly, by columns.

The rule: with `refused` the refusals of one subject so far, an instant that ends a window with `within` events leaves

    refused(now) = max(refused(before), refused(when the window began) + within - quota)

for each window of the policy, as the allowed ones in a window are the events in it less the refusals in it. So only an
instant with `within > quota` matters, and a stretch in which no window reaches back to such an instant begins anew: a
*run*. Runs stand beside each other as rows, quotas as columns, and one step does the next instant of every run.

A ring keeps the last states of the runs, as far as a window reaches back. Cost: some nanoseconds for each instant and
quota that refuses there, and some microseconds for each instant of the longest run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capline.model.limit import Limit
from capline.replay.suggest.histories import Histories, Window, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MOST_CELLS = 1 << 24
"""Cells of a ring, and of an answer; 4 bytes each."""


class Refusals(NamedTuple):
    """Refusals under some sets of quotas: rows are subjects that may have some, columns the sets of quotas."""

    places: NDArray[np.int32]
    """The subjects, by their places in the histories."""
    counts: NDArray[np.int32]

    @property
    def events(self) -> NDArray[np.int64]:
        """Refused events, by set of quotas."""
        return self.counts.sum(axis=0, dtype=np.int64)

    @property
    def subjects(self) -> NDArray[np.int64]:
        """Subjects with a refusal, by set of quotas."""
        return np.count_nonzero(self.counts, axis=0)


def refusals(histories: Histories, windows: Sequence[Window], quotas: NDArray[np.int32]) -> Refusals:
    """Count under these sets of quotas: a row of `quotas` for each window, a column for each set."""
    uneven = np.logical_or.reduce([window.uneven for window in windows])
    kept = np.zeros(len(histories.at_us), np.bool_)
    for window, least in zip(windows, quotas.min(axis=1), strict=True):
        kept |= window.within > least
    if uneven.any():
        kept &= ~uneven[histories.subjects]
    steps = np.flatnonzero(kept)
    begins = [np.searchsorted(steps, window.first[steps]) for window in windows]
    within = [window.within[steps] for window in windows]
    reach = np.minimum.reduce(begins)
    runs = np.flatnonzero(reach == np.arange(len(steps)))
    counts = _Runs(runs, begins, within, reach, quotas).counts() if len(runs) else np.empty((0, quotas.shape[1]))
    places = histories.subjects[steps[runs]]
    if len(runs):
        firsts = np.flatnonzero(np.diff(places, prepend=-1))
        places, counts = places[firsts], np.add.reduceat(counts, firsts, axis=0)
    alone = np.flatnonzero(uneven)
    rows = [_one_by_one(histories, windows, place, quotas) for place in alone.tolist()]
    return Refusals(
        np.concatenate((places, alone)).astype(np.int32),
        np.concatenate((counts, np.array(rows, np.int32).reshape(len(rows), -1))).astype(np.int32)
        if rows
        else counts.astype(np.int32),
    )


def _one_by_one(histories: Histories, windows: Sequence[Window], place: int, quotas: NDArray[np.int32]) -> list[int]:
    instants_us = histories.of(place)
    return [
        counted(instants_us, [Limit(quota, window.width_us) for quota, window in zip(column, windows, strict=True)])
        for column in quotas.T.tolist()
    ]


class _Runs:
    """Runs of instants: where each begins in `steps`, and for each window and step where it begins and its events."""

    def __init__(
        self,
        runs: NDArray[np.int64],
        begins: Sequence[NDArray[np.int64]],
        within: Sequence[NDArray[np.int32]],
        reach: NDArray[np.int64],
        quotas: NDArray[np.int32],
    ) -> None:
        self._runs, self._begins, self._within, self._quotas = runs, begins, within, quotas
        self._lengths = np.diff(np.append(runs, len(reach)))
        back = np.arange(1, len(reach) + 1) - reach
        self._rings = np.maximum.reduceat(back, runs) + 1
        """How many states of each run must be kept."""

    def counts(self) -> NDArray[np.int32]:
        """The refusals of each run under each set of quotas."""
        lanes = self._quotas.shape[1]
        found = np.zeros((len(self._runs), lanes), np.int32)
        longest_first = np.argsort(-self._lengths, kind="stable")
        rings = np.maximum.accumulate(self._rings[longest_first][::-1])[::-1]
        place = 0
        while place < len(longest_first):
            size = int(rings[place])
            many = max(1, MOST_CELLS // (size * lanes))
            self._batch(longest_first[place : place + many], size, found)
            place += many
        return found

    def _batch(self, batch: NDArray[np.int64], size: int, found: NDArray[np.int32]) -> None:
        """Do these runs, the longest first, with a ring of this size."""
        lengths, starts = self._lengths[batch], self._runs[batch]
        # How many runs have a first step, a second …; and all their steps in that order, run by run.
        live: NDArray[np.int64] = np.cumsum(np.bincount(lengths)[:0:-1])[::-1]
        ends: NDArray[np.int64] = np.cumsum(live)
        of_run = np.repeat(np.arange(len(batch)), lengths)
        number = np.arange(len(of_run)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        steps = np.empty(len(of_run), np.int64)
        steps[(ends - live)[number] + of_run] = starts[of_run] + number
        run = np.empty(len(of_run), np.int64)
        run[(ends - live)[number] + of_run] = of_run
        slots = [((begins[steps] - starts[run]) % size) * len(batch) + run for begins in self._begins]
        within = [events[steps, None] for events in self._within]
        ring = np.zeros((size, len(batch), self._quotas.shape[1]), np.int32)
        flat = ring.reshape(size * len(batch), -1)
        buffer = np.empty_like(ring[0])
        windows = list(zip(slots, within, self._quotas, strict=True))
        low, before = 0, ring[0]
        for done, (many, high) in enumerate(zip(live.tolist(), ends.tolist(), strict=True), 1):
            after, room = ring[done % size], buffer[:many]
            states = before[:many]
            for begin, events, quotas in windows:
                np.take(flat, begin[low:high], axis=0, out=room, mode="clip")
                np.add(room, events[low:high], out=room)
                np.subtract(room, quotas, out=room)
                np.maximum(states, room, out=after[:many])
                states = after[:many]
            low, before = high, after
            ending = int(live[done]) if done < len(live) else 0
            if ending < many:
                found[batch[ending:many]] = after[ending:many]
