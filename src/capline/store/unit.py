"""The short way of the rule, for what nearly every attempt is: one unit, on one log in which every hit is one unit.

It gives the very answers of `capline.window` (the conformance suite and the state machine hold it to that) by three
facts: a hit's position is its units; a refusal of one unit leaves 0 remaining; and with no slot in the future the log's
floor is its last stamp.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Protocol

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.limit import LARGEST_QUOTA, Limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.model.policy import Rule

__all__ = ["Stamps", "UnitTerms", "decide_unit", "first_unit", "unit_terms"]

UnitTerms = tuple[tuple[tuple[int, int, Limit], ...], int, int, Limit]
"""(quota, window_us, limit) for each limit of the only log; the widest window; the least quota and its limit."""


class Stamps(Protocol):
    """Stamps in order: an array, or pages of them."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> int: ...


def unit_terms(rule: Rule) -> UnitTerms | None:
    """The rule for `decide_unit`; None where it does not apply (another algorithm, a zone, a channel, a quota of 0)."""
    if len(rule.looks) != 1 or rule.algorithm != "sliding_log" or rule.zone or rule.denied_units:
        return None
    limits = rule.looks[0].limits
    if not limits or not all(limit.quota for limit in limits):
        return None
    tightest = min(limits, key=lambda limit: limit.quota)
    return (
        tuple((limit.quota, limit.window_us, limit) for limit in limits),
        max(limit.window_us for limit in limits),
        tightest.quota,
        tightest,
    )


def first_unit(terms: UnitTerms, now_us: int) -> Decision:
    """The answer to one unit on an empty log."""
    _, widest_us, quota, limit = terms
    return Decision(True, limit, quota - 1, 0, widest_us, now_us)


def decide_unit(
    stamps: Stamps,
    start: int,
    n: int,
    oldest_us: int,
    last_us: int,
    terms: UnitTerms,
    now_us: int,
    position: Callable[[Any, int, int], int] = bisect_right,
) -> Decision:
    """Decide one unit on `stamps[start:n]`, which is not empty, all of one unit, none in the future.

    O(1) a limit, O(log n) for `remaining`. The caller, who has looked at them, brings the first stamp and the last;
    `position` is `bisect_right` for these stamps.
    """
    limits, widest_us, _, _ = terms
    stamp_us = now_us if now_us > last_us else last_us + 1
    left, tightest, binding = LARGEST_QUOTA + 1, None, None
    fits_us = stamp_us
    for quota, window_us, limit in limits:
        i = n - quota
        if i >= start:
            at_us = stamps[i] + window_us
            if at_us > fits_us:
                fits_us, binding = at_us, limit
                continue
        if binding is None:
            cutoff_us = stamp_us - window_us
            free = quota - n + (start if oldest_us > cutoff_us else position(stamps, cutoff_us, start))
            if free < left:
                left, tightest = free, limit
    if fits_us >= LATEST_US:
        # No instant is that late: it never fits.
        return Decision(False, binding or tightest, 0 if binding else left, None, last_us + widest_us - now_us, None)
    if binding is None:
        return Decision(True, tightest, left - 1, 0, stamp_us + widest_us - now_us, stamp_us)
    return Decision(False, binding, 0, fits_us - now_us, last_us + widest_us - now_us, None)
