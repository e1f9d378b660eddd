"""The rule as capline has it, behind the verbs that the model calls: pure functions of a log and the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline import Limit
from capline.model.policy import BoundPolicy, LogLimits
from capline.window.bound_log import BoundLog, readers_of
from capline.window.charge import charge as charge_units
from capline.window.charge import refund as refund_hit
from capline.window.charge import settle as settle_hit
from capline.window.log import Draft, Log
from capline.window.rule import Slot, attempt

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
        self.retention_us = max(window_us for _, window_us in limits)
        self.use(limits)

    def use(self, limits: Sequence[tuple[int, int]]) -> None:
        """Decide under these, whatever the limits are."""
        self._look = LogLimits("p", tuple(Limit(*one) for one in limits), self.retention_us)
        (self._readers,) = readers_of(BoundPolicy("p", (self._look,)))

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        """Consume, or say when. An id is "id" and its number."""
        draft, bound_logs = self._bound_logs(log, cost)
        decision = attempt(bound_logs, now_us, int(attempt_id[2:]) + 1 if attempt_id else 0)
        return draft.log, decision

    def slot(self, log: Log, cost: int, now_us: int, max_wait_us: int | None = None) -> tuple[Log, Decision]:
        """Take the next free instant."""
        draft, bound_logs = self._bound_logs(log, cost)
        decision = attempt(bound_logs, now_us, slot=Slot(max_wait_us))
        return draft.log, decision

    def refund(self, log: Log, stamp_us: int, now_us: int) -> tuple[Log, bool]:
        """Give a hit back, if it still counts for anything."""
        draft, bound_logs = self._bound_logs(log, 1)
        done = refund_hit(bound_logs, stamp_us, 1, now_us)
        return draft.log, done

    def charge(self, log: Log, cost: int, now_us: int) -> tuple[Log, Decision]:
        """Record, whatever the limits say."""
        draft, bound_logs = self._bound_logs(log, cost)
        decision = charge_units(bound_logs, now_us)
        return draft.log, decision

    def settle(self, log: Log, stamp_us: int, cost: int, now_us: int) -> tuple[Log, bool]:
        """Make a hit's units what it really cost, if it still counts for anything."""
        draft, bound_logs = self._bound_logs(log, cost)
        done = settle_hit(bound_logs, stamp_us, now_us)
        return draft.log, done

    def _bound_logs(self, log: Log, cost: int) -> tuple[Draft, list[BoundLog]]:
        draft = Draft(log)
        return draft, [BoundLog(draft, self._look, self._readers, cost)]  # pyright: ignore[reportArgumentType] - as `draft_logs`

    def batch(self, log: Log, costs: Sequence[int], now_us: int) -> tuple[Log, list[Decision]]:
        """Several attempts in one step."""
        decisions: list[Decision] = []
        for cost in costs:
            log, decision = self.decide(log, cost, now_us)
            decisions.append(decision)
        return log, decisions

    def sweep(self, log: Log, now_us: int) -> Log:
        """Forget a log that is stale."""
        last_us = max([log.high_water_us, *(hit.stamp_us for hit in log.hits)])
        return Log() if last_us + GRACE_WINDOWS * self.retention_us <= now_us else log
