"""The record of a run: every decision, in the order decided, as columns.

    subjects  uint32   the customer
    at_us     int64    when
    codes     uint8    the segment then (0: none)
    kinds     uint8    which message
    hit       int64    the stamp of the recorded hit; NO_HIT (-1) where refused
    limit     int16    index into `limits` of the limit that refused; -1 where allowed

24 bytes a decision. The figures and the recount use nothing else, neither the store nor the limiter's counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.model.limit import Limit
    from capline.replay.demo.messages import Messages
    from capline.store.columns import Decisions


@dataclass(frozen=True, slots=True)
class Record:
    """See the module's text; the columns have one length."""

    subjects: NDArray[np.uint32]
    at_us: NDArray[np.int64]
    codes: NDArray[np.uint8]
    kinds: NDArray[np.uint8]
    hit: NDArray[np.int64]
    limit: NDArray[np.int16]
    limits: tuple[Limit, ...]

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """Tell for each row whether it was sent."""
        return self.limit < 0

    def __len__(self) -> int:
        return len(self.subjects)


class Recorder:
    """Gathers a record batch by batch."""

    __slots__ = ("_batches", "_index", "_limits")

    def __init__(self) -> None:
        self._batches: list[tuple[NDArray[Any], ...]] = []
        self._index: dict[Limit, int] = {}
        self._limits: list[Limit] = []

    def add(self, batch: Messages, decisions: Decisions) -> None:
        """Record one batch; an allowed row names no limit, whichever of its limits had least left."""
        place = np.array([self._place(limit) for limit in decisions.limits], np.int16)
        limit = np.where(decisions.allowed, np.int16(-1), place[decisions.limit_index])
        at_us = np.full(batch.subjects.size, batch.at_us, np.int64)
        self._batches.append((batch.subjects, at_us, batch.codes, batch.kinds, decisions.hit, limit))

    def done(self) -> Record:
        """Return the record of everything added."""
        columns = zip(*self._batches, strict=True)
        subjects, at_us, codes, kinds, hit, limit = (np.concatenate(column) for column in columns)
        return Record(subjects, at_us, codes, kinds, hit, limit, tuple(self._limits))

    def _place(self, limit: Limit) -> int:
        if limit not in self._index:
            self._index[limit] = len(self._limits)
            self._limits.append(limit)
        return self._index[limit]
