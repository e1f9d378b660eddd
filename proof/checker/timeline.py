"""One log as it grew: its hits in the order of their decisions, and from when on a cost would fit at any point of it.

The order comes from the stamps. A hit is stamped with the instant of its decision, except that

- hits that share an instant are stamped a microsecond apart: in a run of stamps without a gap, a decision may have been
  made at any instant from the run's first stamp on;
- a slot that was moved counts at its new stamp from then on, and stays in its place in the order: nobody is passed;
- a slot is stamped with its own instant, `wait_us` after the decision. It is `ahead`, and holds the queue until then,
  unless it only is the next microsecond of a run: whoever comes in that instant goes on with the run.

"Does a cost of c fit beside the first m hits?" is one look: of the newest q - c + 1 units the oldest has to be out of
the window. Sums of units answer it by bisection; where hits are given back or settled, a binary indexed tree does, in
which the units of a hit can change. Either way O(log n), whatever the quota.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proof.checker.events import Limits
    from proof.checker.hits import Hit

__all__ = ["NEVER", "Timeline"]

NEVER = -1
"""The stamp of a hit that is not there."""


class Timeline:
    """The hits of one log. Everything that takes `m` speaks of the first m decisions, with the units set last."""

    def __init__(self, hits: list[Hit]) -> None:
        hits = sorted(hits, key=lambda hit: hit.stamp_us)
        before_us = first_us = NEVER
        for hit in hits:
            if hit.wait_us:
                hit.early_us = hit.late_us = hit.stamp_us - hit.wait_us
                hit.is_ahead = hit.wait_us > 1 and not (hit.stamp_us == before_us + 1 and hit.early_us >= first_us)
                first_us = hit.stamp_us if hit.is_ahead else hit.early_us
            else:
                if hit.stamp_us != before_us + 1:
                    first_us = hit.stamp_us
                hit.early_us, hit.late_us = first_us, hit.stamp_us
            before_us = hit.stamp_us
        self.hits = hits = sorted(hits, key=lambda hit: (hit.place_us or hit.early_us, hit.stamp_us))
        self.stamps = [hit.stamp_us for hit in hits]
        self._early = [hit.place_us or hit.early_us for hit in hits]
        self._late = [hit.place_us or hit.late_us for hit in hits]
        self._latest = list(accumulate(self._late, max))
        self._units = list(accumulate((hit.units for hit in hits), initial=0))
        self.is_plain = not any(hit.values for hit in hits)
        """Nothing was ever given back or settled."""
        self.units = [hit.first_units for hit in hits]
        self._tree = None if self.is_plain else _Tree(self.units)

    def set_units(self, i: int, units: int) -> None:
        """Let the i-th hit count for so many units; only where something was given back or settled."""
        if self._tree is not None and units != self.units[i]:
            self._tree.add(i, units - self.units[i])
            self.units[i] = units

    def points(self, from_us: int, to_us: int) -> range:
        """How many decisions may have been made before one that was made between these instants."""
        return range(bisect_right(self._latest, from_us - 1), bisect_right(self._early, to_us) + 1)

    def instants(self, m: int, from_us: int, to_us: int) -> tuple[int, int]:
        """The earliest and the latest instant between these at which m decisions had been made."""
        if m:
            from_us = max(from_us, self._early[m - 1])
        if m < len(self.hits):
            to_us = min(to_us, self._late[m])
        return from_us, to_us

    def fits_at(self, m: int, cost: int, limits: Limits) -> int | None:
        """From when on the cost fits every limit; None: it never does; `NEVER`: it always did."""
        at_us = NEVER
        for quota, window_us in limits:
            if cost > quota:
                return None
            i = self._holder(m, quota - cost + 1)
            if i >= 0 and self.stamps[i] + window_us > at_us:
                at_us = self.stamps[i] + window_us
        return at_us

    def newest(self, m: int) -> Hit | None:
        """The newest hit that counts."""
        i = m - 1 if self._tree is None else self._holder(m, 1)
        return self.hits[i] if i >= 0 else None

    def units_after(self, m: int, cutoff_us: int) -> int:
        """Units later than the cutoff; only where the log is plain, as it goes by what was granted."""
        return self._units[m] - self._units[bisect_right(self.stamps, cutoff_us, 0, m)]

    def _holder(self, m: int, k: int) -> int:
        """The number of the hit that holds the k-th newest unit."""
        if self._tree is not None:
            return self._tree.find(self._tree.sum(m) - k)
        target = self._units[m] - k
        return bisect_right(self._units, target) - 1 if target >= 0 else NEVER


class _Tree:
    """Sums of a list's beginnings, of which any element may change: a binary indexed tree."""

    def __init__(self, values: list[int]) -> None:
        self._size = len(values)
        self._sums = [0, *values]
        for i in range(1, self._size + 1):
            above = i + (i & -i)
            if above <= self._size:
                self._sums[above] += self._sums[i]
        self._top = 1 << self._size.bit_length()

    def add(self, i: int, value: int) -> None:
        i += 1
        while i <= self._size:
            self._sums[i] += value
            i += i & -i

    def sum(self, m: int) -> int:
        """Of the first m elements."""
        total = 0
        while m:
            total += self._sums[m]
            m &= m - 1
        return total

    def find(self, target: int) -> int:
        """The element within which the sum passes the target; `NEVER` for a negative one."""
        if target < 0:
            return NEVER
        at, step = 0, self._top
        while step:
            beyond = at + step
            if beyond <= self._size and self._sums[beyond] <= target:
                at = beyond
                target -= self._sums[beyond]
            step >>= 1
        return at
