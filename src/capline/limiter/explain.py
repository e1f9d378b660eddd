"""Why: the limits in force for one subject, every hit that counts, and when each unit frees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capline.model.decision import Decision
from capline.model.limit import Limit
from capline.model.subject import Subject
from capline.store.protocol import Recorded

if TYPE_CHECKING:
    from capline.model.policy import Rule

__all__ = ["Explanation", "LimitState", "explain"]


class LimitState(msgspec.Struct, frozen=True):
    """One limit as it stands; `frees` is (microseconds since 1970, units) of every hit that counts, soonest first."""

    log: str
    limit: Limit
    used: int
    remaining: int
    frees: tuple[tuple[int, int], ...]


class Explanation(msgspec.Struct, frozen=True):
    """The answer to why.

    `decision` is what a `decide` of one unit would answer at `now_us`; `hits` is the log, oldest first.
    """

    policy: str
    subject: Subject
    now_us: int
    decision: Decision
    limits: tuple[LimitState, ...]
    hits: tuple[Recorded, ...]


def explain(rule: Rule, subject: Subject, now_us: int, decision: Decision, logs: list[list[Recorded]]) -> Explanation:
    """Put the hits of each look beside its limits."""
    states: list[LimitState] = []
    for look, hits in zip(rule.looks, logs, strict=True):
        for limit in look.limits:
            frees = tuple(
                (hit.stamp_us + limit.window_us, hit.units)
                for hit in hits
                if hit.units and hit.stamp_us > now_us - limit.window_us
            )
            used = sum(units for _, units in frees)
            states.append(LimitState(look.log, limit, used, max(0, limit.quota - used), frees))
    return Explanation(rule.policy, subject, now_us, decision, tuple(states), tuple(logs[0]))
