"""How many events of each subject are refused under many quotas at once, exactly, by columns.

The rule: with `refused` the refusals of one subject so far, an instant that ends a window with `within` events leaves

    refused(now) = max(refused(before), refused(when the window began) + within - quota)

for each window of the policy, as the allowed ones in a window are the events in it less the refusals in it. So only an
instant with `within > quota` matters, and a stretch in which no window reaches back to such an instant begins anew: a
*run*. Runs stand beside each other as rows, quotas as columns, and one step does the next instant of every run.

A ring keeps the last states of the runs, as far as a window reaches back. Cost: some nanoseconds for each instant and
quota that refuses there, and some microseconds for each instant of the longest run.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capline.model.limit import Limit
from capline.replay.suggest.histories import Histories, Window, counted

MOST_CELLS = 1 << 25
"""Cells of a ring; 4 bytes each."""
_BLOCK_CELLS = 1 << 18
"""Cells that a processor's cache holds."""
_LEAST_CELLS = 1 << 14
"""Cells of a step, below which its calls cost more than its work."""
_FEW_STEPS = 16
_LEAST_AHEAD = 16
"""Steps that can be looked up at once, below which a run is never done alone."""


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


def refusals(
    histories: Histories, windows: Sequence[Window], quotas: NDArray[np.int32], among: NDArray[np.int64] | None = None
) -> Refusals:
    """Count under these sets of quotas: a row of `quotas` for each window, a column for each set.

    `among` are the instants that may matter, all or none of a subject's; all of them if left out.
    """
    steps = over(windows, quotas.min(axis=1).tolist(), among)
    places, uneven = histories.subjects[steps], np.logical_or.reduce([window.uneven for window in windows])
    alone = np.unique(places[uneven[places]])
    if len(alone):
        steps = steps[~uneven[places]]
    begins = _places(steps, [window.first[steps] for window in windows], len(histories.at_us))
    reach = np.minimum.reduce(begins)
    runs = np.flatnonzero(reach == np.arange(len(steps)))
    places, counts = histories.subjects[steps[runs]], np.zeros((0, quotas.shape[1]), np.int32)
    if len(runs):
        counts = _Runs(runs, begins, [window.within[steps] for window in windows], reach, quotas).counts()
        firsts = np.flatnonzero(np.diff(places, prepend=-1))
        places, counts = places[firsts], np.add.reduceat(counts, firsts, axis=0, dtype=np.int32)
    rows = [_one_by_one(histories, windows, place, quotas) for place in alone.tolist()]
    return Refusals(np.concatenate((places, alone)), np.concatenate((counts, *(row[None] for row in rows))))


def over(windows: Sequence[Window], quotas: Sequence[int], among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """The instants, of these or of all, at which some window holds more than its quota."""
    more = [
        (window.within if among is None else window.within[among]) > quota
        for window, quota in zip(windows, quotas, strict=True)
    ]
    found = np.flatnonzero(np.logical_or.reduce(more))
    return found if among is None else among[found]


def _places(steps: NDArray[np.int64], firsts: Sequence[NDArray[np.int32]], instants: int) -> list[NDArray[np.int64]]:
    """How many of the steps come before each of these instants: counted once for all instants if the steps are many."""
    if len(steps) < instants // _FEW_STEPS:
        return [np.searchsorted(steps, first) for first in firsts]
    before = np.zeros(instants + 1, np.int32)
    before[steps + 1] = 1
    np.cumsum(before, out=before)
    return [before[first].astype(np.int64) for first in firsts]


def _one_by_one(
    histories: Histories, windows: Sequence[Window], place: int, quotas: NDArray[np.int32]
) -> NDArray[np.int32]:
    instants_us = histories.of(place)
    sets = [list(zip(column, windows, strict=True)) for column in quotas.T.tolist()]
    limits = [[Limit(quota, window.width_us) for quota, window in of_set] for of_set in sets]
    return np.array([counted(instants_us, of_set) for of_set in limits], np.int32)


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
        self._latest = np.maximum.reduce(begins)
        self._rings = np.maximum.reduceat(back, runs) + 1
        """How many states of each run must be kept."""

    def counts(self) -> NDArray[np.int32]:
        """The refusals of each run under each set of quotas."""
        lanes = self._quotas.shape[1]
        found = np.zeros((len(self._runs), lanes), np.int32)
        longest_first = np.argsort(-self._lengths, kind="stable")
        rings = np.maximum.accumulate(self._rings[longest_first][::-1])[::-1]
        place = self._alone(self._lengths[longest_first])
        for run in longest_first[:place].tolist():
            self._one(run, found)
        while place < len(longest_first):
            size = int(rings[place])
            many = max(1, min(MOST_CELLS, max(_BLOCK_CELLS, _LEAST_CELLS * size)) // (size * lanes))
            self._batch(longest_first[place : place + many], size, found)
            place += many
        return found

    def _alone(self, lengths: NDArray[np.int64]) -> int:
        """How many of the longest runs are done one by one: a step of a run costs a twelfth of a step of a batch."""
        ahead = np.arange(len(self._latest)) - self._latest
        if ahead.mean() < _LEAST_AHEAD:
            return 0
        left = np.append(lengths, 0)  # the longest of the others, and so the steps of the batch
        return int(np.argmin(12 * left + np.cumsum(left) - left))

    def _one(self, run: int, found: NDArray[np.int32]) -> None:
        """Do one run: what its windows began with is looked up for many steps at once, those that begin before them."""
        start, length, size = int(self._runs[run]), int(self._lengths[run]), int(self._rings[run])
        part = slice(start, start + length)
        latest = self._latest[part] - start
        windows = [
            ((begins[part] - start) % size, within[part, None], quotas)
            for begins, within, quotas in zip(self._begins, self._within, self._quotas, strict=True)
        ]
        lanes = self._quotas.shape[1]
        ring = np.zeros((size, lanes), np.int32)
        room, more = np.empty((2, max(1, min(length, _BLOCK_CELLS // lanes)), lanes), np.int32)
        states, held = list(ring), list(room)
        before, low = ring[0], 0
        while low < length:
            slot = (low + 1) % size
            high = min(int(np.searchsorted(latest, low, "right")), low + len(room), low + size - slot)
            many = high - low
            for into, (begin, within, quotas) in zip((room, *[more] * len(windows)), windows, strict=False):
                np.take(ring, begin[low:high], axis=0, out=into[:many], mode="clip")
                np.add(into[:many], within[low:high], out=into[:many])
                np.subtract(into[:many], quotas, out=into[:many])
                if into is more:
                    np.maximum(room[:many], more[:many], out=room[:many])
            for state, least in zip(states[slot : slot + many], held, strict=False):
                np.maximum(before, least, out=state)
                before = state
            low = high
        found[run] = before

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
