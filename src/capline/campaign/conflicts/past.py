"""What the logs of some campaigns hold now, as kinds of subjects: those with the same hits have the same past.

Only the campaigns' recipients are looked up: on each log by a policy whose one limit is as wide as the widest of all,
so that what it has left says who has hits at all, in bulk, and what it explains is all of them.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from capline.campaign.prepare import open_limiter
from capline.limiter.arguments.records import MOST_HITS, LogRecord
from capline.model.errors import NoStoreError
from capline.model.limit import LARGEST_QUOTA, Limit, QuietHours
from capline.policy.joint import members_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from capline.campaign.conflicts.planned import Planned
    from capline.campaign.store.packed import Ids
    from capline.limiter.limiter import Limiter
    from capline.model.policy import Policy
    from capline.model.subject import Subject

_Hits = tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...]
"""The hits of a subject by log: its policy's own, and those of channels."""


class Past:
    """Looks at the logs of these campaigns, which share them; without `history` at none.

    Cost: 2 to 3 us a recipient, log and channel on this machine, and a read for each who has hits.
    """

    most = 1 << 40

    def __init__(self, planned: Sequence[Planned], now_us: int, *, history: bool) -> None:
        self._planned, self._now_us, self._has_history = planned, now_us, history
        self._limiter: Limiter | None = None
        self._stack = ExitStack()
        self._codes: dict[_Hits, int] = {}
        policies = [policy for each in planned for policy in members_of(each.policy)]
        limits = [limit for policy in policies for limit in policy.all_limits() if not isinstance(limit, QuietHours)]
        self._reach_us = max((limit.reach_us for limit in limits), default=1)
        every = [Limit(LARGEST_QUOTA, self._reach_us)]
        self._policies: list[Policy] = []
        self._looks: list[tuple[str, str | None]] = []
        for log, policy in {policy.log: policy for policy in policies}.items():
            name = f"look-{len(self._policies)}"
            channels = sorted({channel for each in policies if each.log == log for channel in each.channels})
            widest = {"limits": every, "by_segment": None, "channels": dict.fromkeys(channels, every) or None}
            self._policies.append(policy.having(name=name, log=log, **widest))
            self._looks += [(name, channel) for channel in channels or (None,)]

    def __enter__(self) -> Self:
        first = self._planned[0]
        file = replace(first.file, as_of_us=self._now_us, policy=self._policies[0].name)
        if self._has_history:
            try:
                opened = open_limiter(file, replace(first.policies, policies=(*self._policies,)), create=False)
                self._limiter = self._stack.enter_context(opened)
            except NoStoreError:
                pass  # a store that is not there is empty
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def kinds(self, ids: Ids) -> NDArray[np.int64]:
        """Which past each of these has; 0 is none."""
        kinds = np.zeros(len(ids), np.int64)
        if self._limiter is None or not len(ids):
            return kinds
        has_hits = np.zeros(len(ids), bool)
        subjects = ids.tolist() if ids.dtype == object else ids
        for name, channel in self._looks:
            has_hits |= self._limiter.peek_many(name, subjects, channel=channel).remaining < LARGEST_QUOTA - 1
        for place in np.flatnonzero(has_hits).tolist():
            hits = tuple(sorted(self._hits(self._limiter, ids[place : place + 1].tolist()[0]).items()))
            kinds[place] = self._codes.setdefault(hits, len(self._codes) + 1)
        return kinds

    def records(self, kinds: NDArray[np.int64]) -> Iterator[LogRecord]:
        """The logs of subject i, which has the past that `kinds[i]` is."""
        pasts = [*self._codes]
        with_past: list[int] = np.flatnonzero(kinds).tolist()
        for subject in with_past:
            for log, hits in pasts[int(kinds[subject]) - 1]:
                for first in range(0, len(hits), MOST_HITS):
                    yield LogRecord(log, subject, hits[first : first + MOST_HITS])

    def _hits(self, limiter: Limiter, subject: Subject) -> dict[str, tuple[tuple[int, int, int], ...]]:
        found: dict[str, tuple[tuple[int, int, int], ...]] = {}
        for name, channel in self._looks:
            for each in limiter.explain(name, subject, channel=channel).limits:
                if each.frees:
                    found[each.log] = tuple((at_us - self._reach_us, units, 0) for at_us, units in each.frees)
        return found
