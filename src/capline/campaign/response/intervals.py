"""Shares and differences with their intervals of 95 %.

    a share         Wilson's score interval
    a difference    Newcombe's (his method 10), from the Wilson intervals of both shares

Both suppose that rows are independent. The rows of one recipient are not, so where recipients have several, the count
is divided by the design effect: the variance of the share between recipients over that of independent rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST = 30
"""Recipients, below which neither side of a comparison has an interval."""
METHOD = "95 %: Wilson for a share, Newcombe for a difference"
_Z = 1.959963984540054


class Share(NamedTuple):
    """So many responded, of so many; the bounds of the interval, None if none is claimed."""

    of: int
    responded: int
    low: float | None
    high: float | None

    @property
    def rate(self) -> float:
        """The share; 0 of none."""
        return self.responded / self.of if self.of else 0.0


class Difference(NamedTuple):
    """One share less another, and the bounds of its interval, None if none is claimed."""

    value: float
    low: float | None
    high: float | None

    @property
    def is_apart(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def share_of(people: NDArray[np.integer[Any]], responded: NDArray[np.bool_], least: int = 1) -> Share:
    """The share of rows that responded, each with the code of its recipient; no interval of fewer than `least`."""
    of, count = len(people), int(responded.sum())
    rows = np.bincount(people)
    there = rows > 0
    recipients = int(there.sum())
    if recipients < least:
        return Share(of, count, None, None)
    rate, size = count / of, float(of)
    if recipients < of:
        size = float(recipients)
        if 0 < rate < 1 and recipients > 1:
            off = np.bincount(people, responded)[there] - rate * rows[there]
            variance = float(off @ off) / of**2 * recipients / (recipients - 1)
            size = min(float(of), rate * (1 - rate) / variance) if variance else float(of)
    part = _Z * _Z / size
    middle, half = rate + part / 2, _Z * math.sqrt((rate * (1 - rate) + part / 4) / size)
    low = (middle - half) / (1 + part) if count else 0.0
    return Share(of, count, low, (middle + half) / (1 + part) if count < of else 1.0)


def difference_of(share: Share, base: Share) -> Difference:
    """The first share less the second."""
    value = share.rate - base.rate
    if share.low is None or share.high is None or base.low is None or base.high is None:
        return Difference(value, None, None)
    low = value - math.hypot(share.rate - share.low, base.high - base.rate)
    return Difference(value, low, value + math.hypot(share.high - share.rate, base.rate - base.low))
