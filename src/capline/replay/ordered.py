"""Events in order of time, however many: sorted runs in a temporary file, merged while they are read.

Memory holds one run and a block. The file takes 16 bytes an event. It has no name, so nothing is left of it however the
process ends.
"""

from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capline.model.clock import LATEST_US

BLOCK_ROWS = 1 << 16
RUN_ROWS = 1 << 19
_ROW = np.dtype([("subject", np.int32), ("at_us", np.int64), ("kind", np.int32)])


class Events(NamedTuple):
    """Some events: each one's codes of its subject and its kind, and its instant."""

    subjects: NDArray[np.int32]
    at_us: NDArray[np.int64]
    kinds: NDArray[np.int32]


class OrderedEvents:
    """Events that are added in any order, and read in order of time; those of one instant as they were added."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._runs: list[tuple[int, int]] = []
        self._added: list[NDArray[np.void]] = []
        self._waiting = self._written = 0
        self.first_us, self.last_us, self.subjects = LATEST_US, 0, 0
        """The instants of the first and the last event, and one more than the largest code of a subject."""

    def __len__(self) -> int:
        return self._written

    def add(self, events: Events) -> None:
        """Add at least one event."""
        rows = np.empty(len(events.at_us), _ROW)
        rows["subject"], rows["at_us"], rows["kind"] = events
        self._added.append(rows)
        self._waiting += len(rows)
        self.subjects = max(self.subjects, int(events.subjects.max()) + 1)
        if self._waiting >= RUN_ROWS:
            self.end_run()

    def end_run(self) -> None:
        """Sort what was added last, and write it; before events are read."""
        if not self._added:
            return
        rows = _in_order(np.concatenate(self._added))
        self._added.clear()
        self._waiting, start, self._written = 0, self._written, self._written + len(rows)
        first_us, last_us = int(rows["at_us"][0]), int(rows["at_us"][-1])
        if self._runs and first_us >= self.last_us:
            start = self._runs.pop()[0]  # One run with the last.
        self._runs.append((start, self._written))
        self.first_us, self.last_us = min(self.first_us, first_us), max(self.last_us, last_us)
        self._file.write(rows.view(np.uint8).data)

    def blocks(self) -> Iterator[Events]:
        """Yield them some at a time."""
        runs, most = list(self._runs), max(1, BLOCK_ROWS // len(self._runs))
        heads = [np.empty(0, _ROW)] * len(runs)
        while True:
            for number, (place, end) in enumerate(runs):
                if place < end and not len(heads[number]):
                    rows = min(most, end - place)
                    self._file.seek(place * _ROW.itemsize)
                    heads[number] = np.frombuffer(self._file.read(rows * _ROW.itemsize), _ROW)
                    runs[number] = place + rows, end
            live = [number for number, head in enumerate(heads) if len(head)]
            if not live:
                return
            # The head that ends first: its run may have more of its last instant, so later runs keep theirs back.
            least = min(live, key=lambda number: heads[number]["at_us"][-1])
            end_us = int(heads[least]["at_us"][-1])
            taken: list[NDArray[np.void]] = []
            for number in live:
                at_us = heads[number]["at_us"]
                cut = np.count_nonzero(at_us <= end_us if number <= least else at_us < end_us)
                taken.append(heads[number][:cut])
                heads[number] = heads[number][cut:]
            block = _in_order(np.concatenate(taken))
            yield Events(block["subject"], block["at_us"], block["kind"])


def _in_order(rows: NDArray[np.void]) -> NDArray[np.void]:
    at_us = rows["at_us"]
    return rows[np.argsort(at_us, kind="stable")] if (np.diff(at_us) < 0).any() else rows
