"""The events of each subject as columns: its instants in order, and for a window how many events each instant ends.

    subject   0        0        0  |  1        1
    at_us     10       12       40 |  3        9
    events    2        1        1  |  1        5       events of that instant; `bounds` is their running sum

A window of 20 us that ends at the third instant begins there, as a hit exactly so old is out: `first` is 2, `within` 1.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.replay.count import ALLOWED, UnitCore

_ROOM = 1 << 62
_STEPS_BACK = 8
_BLOCK_EVENTS = 1 << 20


class Histories:
    """The instants of every subject, by subject and then by time; of at least one event."""

    def __init__(self, subjects: NDArray[np.int32], at_us: NDArray[np.int64]) -> None:
        events = np.bincount(subjects)
        at_us = _in_order(subjects, at_us, events)
        self.codes = np.flatnonzero(events).astype(np.int32)
        """The code of each subject."""
        firsts = (np.cumsum(events) - events)[self.codes]
        is_new = np.append(_new(at_us), np.True_)
        is_new[firsts] = True
        self.bounds = np.flatnonzero(is_new)
        """How many events come before each instant, and at the end how many there are."""
        self.at_us = at_us[self.bounds[:-1]]
        self.starts = np.searchsorted(self.bounds, firsts)
        """Where the instants of each subject begin."""
        self.subjects = np.repeat(
            np.arange(len(self.codes), dtype=np.int32), np.diff(self.starts, append=len(self.at_us))
        )
        """The place of each instant's subject in `codes`."""

    @property
    def events(self) -> int:
        """How many events there are."""
        return int(self.bounds[-1])

    def of(self, place: int) -> list[int]:
        """The instants of the events of one subject."""
        last = self.starts[place + 1] if place + 1 < len(self.starts) else len(self.at_us)
        steps = slice(self.starts[place], last)
        return np.repeat(self.at_us[steps], np.diff(self.bounds[self.starts[place] : last + 1])).tolist()

    def sizes(self) -> NDArray[np.int64]:
        """How many events each subject has."""
        return np.diff(np.append(self.bounds[self.starts], self.bounds[-1]))


class Window(NamedTuple):
    """What a rolling window holds at each instant if nothing is refused."""

    width_us: int
    first: NDArray[np.int32]
    """The first instant of the same subject that is in the window of each instant."""
    within: NDArray[np.int32]
    """How many events are in it, those of the instant itself too."""
    peaks: NDArray[np.int32]
    """The most that a window of each subject holds: a smaller quota refuses some of its events."""
    uneven: NDArray[np.bool_]
    """The subjects that `counted` must decide one by one."""


def window_of(histories: Histories, width_us: int) -> Window:
    """Look at every window of this width.

    A log's stamps strictly increase: a hit in the microsecond of the one before it gets the next one. That changes an
    answer only where an event lies in the few microseconds by which such a stamp is late, at the far end of its window.
    Subjects with such an event are `uneven`.
    """
    starts, at_us, bounds = histories.starts, histories.at_us, histories.bounds
    first, within = np.empty((2, len(at_us)), np.int32)
    uneven = np.zeros(len(starts), np.bool_)
    start_us = int(at_us.min())
    # One key for subject and time, with more than a window between two subjects.
    room = int(at_us.max()) - start_us + width_us + histories.events + 1
    for low, high in _parts(starts, _ROOM // room):
        part = slice(starts[low], starts[high] if high < len(starts) else len(at_us))
        of_subject = histories.subjects[part]
        keys = (of_subject - low).astype(np.int64) * room + (at_us[part] - start_us)
        begins = _begins(keys, width_us)
        np.add(begins, starts[low], out=first[part], casting="unsafe")
        np.subtract(bounds[1:][part], bounds[first[part]], out=within[part], casting="unsafe")
        before = bounds[part]
        if bounds[1:][part][-1] - before[0] == len(keys):  # no two events at one instant: no stamp is late
            continue
        late_us = bounds[1:][part] - 1 + np.maximum.accumulate(keys - before) - keys
        late = np.flatnonzero(late_us)
        moved = np.searchsorted(keys, keys[late] - width_us + late_us[late], "right") != begins[late]
        uneven[of_subject[late[moved]]] = True
    return Window(width_us, first, within, np.maximum.reduceat(within, starts), uneven)


def _parts(starts: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """From which subject to which: `most` at once, of few events, so that a processor's cache holds their columns."""
    low = 0
    while low < len(starts):
        few = int(np.searchsorted(starts, int(starts[low]) + _BLOCK_EVENTS, "left"))
        high = min(max(low + 1, few), low + most)
        yield low, high
        low = high


def _begins(keys: NDArray[np.int64], width_us: int) -> NDArray[np.int64]:
    """Where the window of each of these rising keys begins: a few steps back, and by halves where it is further."""
    begins, near = np.arange(len(keys)), np.empty(0, np.bool_)
    for back in range(1, _STEPS_BACK + 1):
        near = keys[back:] - keys[:-back] < width_us
        begins[back:] -= near
    far = np.flatnonzero(near) + _STEPS_BACK
    begins[far] = np.searchsorted(keys, keys[far] - width_us, "right")
    return begins


def counted(instants_us: Sequence[int], limits: Sequence[Limit]) -> int:
    """How many of one subject's events these limits refuse, one by one."""
    core = UnitCore(Policy("suggested", limits))
    core.add_kind(None)
    kinds = [0] * len(instants_us)
    return sum(answer != ALLOWED for answer in core.decide(kinds, instants_us, kinds))


def _in_order(subjects: NDArray[np.int32], at_us: NDArray[np.int64], events: NDArray[np.int64]) -> NDArray[np.int64]:
    """The instants by subject and then by time; `events` says how many each has.

    It goes block by block, as numpy sorts 16 bits by counting, and small arrays fast.
    """
    if (at_us[1:] < at_us[:-1]).any():
        by_time = np.argsort(at_us, kind="stable")
        subjects, at_us = subjects[by_time], at_us[by_time]
    ordered = np.empty_like(at_us)
    following = np.cumsum(events) - events  # where the next event of each subject goes
    for low in range(0, len(subjects), _BLOCK_EVENTS):
        block = subjects[low : low + _BLOCK_EVENTS]
        order = np.argsort(block.astype(np.uint16), kind="stable")
        if len(events) > 1 << 16:
            order = order[np.argsort((block >> 16).astype(np.uint16)[order], kind="stable")]
        block = block[order]
        first = np.flatnonzero(_new(block))
        many = np.diff(first, append=len(block))
        places = np.repeat(following[block[first]] - first, many) + np.arange(len(block))
        ordered[places] = at_us[low : low + _BLOCK_EVENTS][order]
        following[block[first]] += many
    return ordered


def _new(values: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each value differs from the one before."""
    return np.concatenate((np.ones(1, np.bool_), values[1:] != values[:-1]))
