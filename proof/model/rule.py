"""The rule as capline has it, behind the verbs that the model calls: pure functions of a log and the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline import Limit
from capline.model.policy import Look
from capline.model.policy import Rule as Terms
from capline.window.log import Log
from capline.window.log import refund as refund_hit
from capline.window.sliding_log import step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline import Decision

__all__ = ["GRACE_WINDOWS", "Rule"]

GRACE_WINDOWS = 2
"""A log is swept away when its last hit is so many widest windows old: a clock may have jumped ahead for a moment."""


class Rule:
    """`capline.window` under these limits, (quota, window_us)."""

    def __init__(self, limits: Sequence[tuple[int, int]]) -> None:
        self.limits = tuple(limits)
        self.keep_us = max(window_us for _, window_us in limits)
        self.terms = Terms("p", (Look("p", tuple(Limit(*one) for one in limits), self.keep_us),))

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        """Consume, or say when."""
        (log,), decision = step((log,), self.terms, cost, now_us, attempt_id.encode())
        return log, decision

    def slot(self, log: Log, cost: int, now_us: int, max_wait_us: int | None = None) -> tuple[Log, Decision]:
        """Take the next free instant."""
        (log,), decision = step((log,), self.terms, cost, now_us, slot=True, max_wait_us=max_wait_us)
        return log, decision

    def refund(self, log: Log, stamp_us: int, now_us: int) -> tuple[Log, bool]:
        """Give a hit back, if it still counts for anything."""
        if stamp_us <= max(now_us, log.floor_us) - self.keep_us:
            return log, False
        return refund_hit(log, stamp_us)

    def batch(self, log: Log, costs: Sequence[int], now_us: int) -> tuple[Log, list[Decision]]:
        """Several attempts in one step."""
        decisions: list[Decision] = []
        for cost in costs:
            log, decision = self.decide(log, cost, now_us)
            decisions.append(decision)
        return log, decisions

    def sweep(self, log: Log, now_us: int) -> Log:
        """Forget a log that is stale."""
        last_us = max([log.floor_us, *(hit.stamp_us for hit in log.hits)])
        return Log() if last_us + GRACE_WINDOWS * self.keep_us <= now_us else log
