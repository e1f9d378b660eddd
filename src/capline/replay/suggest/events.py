"""A file of events as columns in memory, and what is odd about them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from capline.replay.suggest.histories import Histories

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.replay.blocks import EventFile


class Past:
    """All events of a file, in its order: the codes of their subjects, their instants, and their segments."""

    def __init__(
        self,
        subjects: NDArray[np.int32],
        at_us: NDArray[np.int64],
        segments: NDArray[np.int32],
        names: list[str | None],
    ) -> None:
        self.subjects, self.at_us, self._segments, self._names = subjects, at_us, segments, names
        self.first_us, self.last_us = int(at_us.min()), int(at_us.max())
        self.histories = Histories(subjects, at_us)

    def segments(self) -> dict[str | None, Histories]:
        """The events of each segment, by its name in order; None, for those in no segment, is first."""
        return {
            name: Histories(self.subjects[of_segment], self.at_us[of_segment])
            for name, code in sorted(
                zip(self._names, range(len(self._names)), strict=True), key=lambda each: each[0] or ""
            )
            if (of_segment := self._segments == code).any()
        }

    def oddities(self, file: str) -> list[str]:
        """What a person should know before trusting the figures, a sentence each."""
        told: list[str] = []
        early = int(np.count_nonzero(np.diff(self.at_us) < 0))
        if early:
            told.append(
                f"{file}: not in order of time ({early:,} times an event is earlier than the one before); sorted"
            )
        now_us = time.time_ns() // 1000
        if self.last_us > now_us:
            later = int(np.count_nonzero(self.at_us > now_us))
            last = datetime.fromtimestamp(self.last_us / 1e6, UTC)
            told.append(
                f"{file}: {later:,} events are in the future, the last at {last:%Y-%m-%d %H:%M:%S} UTC; counted"
            )
        each = np.diff(self.histories.bounds)
        times = int(np.gcd.reduce(each))
        if times > 1:
            told.append(f"{file}: every event is there {times} times; is the file twice in itself? each is counted")
        elif same := int((each - 1).sum()):
            told.append(f"{file}: {same:,} events are at the same instant as another of their subject; each is counted")
        return told


def read(file: EventFile, progress: Callable[[int], object]) -> Past:
    """Read all of the file; `progress` gets the bytes read so far."""
    subjects: list[NDArray[np.int32]] = []
    at_us: list[NDArray[np.int64]] = []
    kinds: list[NDArray[np.int32]] = []
    for block in file.blocks():
        subjects.append(block.subjects)
        at_us.append(block.at_us)
        kinds.append(block.kinds)
        progress(block.at_bytes)
    names = [segment for segment, _zone in file.kinds()]
    return Past(np.concatenate(subjects), np.concatenate(at_us), np.concatenate(kinds), names)
