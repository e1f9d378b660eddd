"""What the logs of some campaigns hold now, as kinds of subjects: those with the same hits have the same past."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from capline.campaign.prepare import open_limiter
from capline.limiter.arguments.records import LogRecord
from capline.model.errors import NoStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from capline.campaign.conflicts.planned import Planned
    from capline.campaign.store.packed import Ids
    from capline.model.subject import Subject

_Hits = tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...]
"""The hits of a subject by log: its policy's own, and those of channels."""


class Past:
    """Reads all logs of these campaigns, which share them: 7 us each, and memory for all that there are."""

    def __init__(self, planned: Sequence[Planned], now_us: int) -> None:
        first = planned[0]
        file = replace(first.file, as_of_us=now_us)
        is_text = first.log[-1]
        logs: dict[Subject, dict[str, tuple[tuple[int, int, int], ...]]] = defaultdict(dict)
        try:
            with open_limiter(file, first.policies, create=False) as limiter:
                for record in limiter.export([first.policy.name]):
                    if isinstance(record.subject, str) == is_text:
                        hits = tuple((stamp_us, units, 0) for stamp_us, units, _ in record.hits)
                        logs[record.subject][record.log] = hits
        except NoStoreError:
            pass  # a store that is not there is empty
        codes: dict[_Hits, int] = {}
        kinds = [codes.setdefault(tuple(sorted(of.items())), len(codes) + 1) for of in logs.values()]
        ids = np.array([*logs], object if is_text else np.uint64)
        order = np.argsort(ids)
        self._ids, self._kinds = ids[order], np.array(kinds, np.int64)[order]
        self._hits: list[_Hits] = [*codes]
        self.most = len(codes)

    def stream(self) -> Iterator[tuple[Ids, NDArray[np.int64]]]:
        """The subjects with a past, ascending, and which; 0 is none."""
        yield self._ids, self._kinds

    def records(self, kinds: NDArray[np.int64]) -> Iterator[LogRecord]:
        """The logs of subject i, which has the past that `kinds[i]` is."""
        with_past: list[int] = np.flatnonzero(kinds).tolist()
        for subject in with_past:
            for log, hits in self._hits[int(kinds[subject]) - 1]:
                yield LogRecord(log, subject, hits)
