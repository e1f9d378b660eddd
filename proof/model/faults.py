"""The rule with one fault each. `FAULTS` names what the model has to find, by the numbers of the promises broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capline.window.log import Hit, Log
from proof.model.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline import Decision

__all__ = ["DEBIT_FAULTS", "FAULTS"]


class EdgeTooEarly(Rule):
    """A hit one microsecond younger than the window is out."""

    def __init__(self, limits: Sequence[tuple[int, int]]) -> None:
        super().__init__(limits)
        self.use([(quota, window_us - 1) for quota, window_us in limits])


class EdgeTooLate(Rule):
    """A hit exactly as old as the window is in."""

    def __init__(self, limits: Sequence[tuple[int, int]]) -> None:
        super().__init__(limits)
        self.use([(quota, window_us + 1) for quota, window_us in limits])


class OnlyTheFirstLimit(Rule):
    """The second limit is not looked at."""

    def __init__(self, limits: Sequence[tuple[int, int]]) -> None:
        super().__init__(limits)
        self.use(limits[:1])


class RefusalRecords(Rule):
    """A refusal leaves a hit of no units, and lifts the log's time."""

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        after, decision = super().decide(log, cost, now_us, attempt_id)
        return (after if decision.allowed else Log(after.hits, max(after.high_water_us, now_us))), decision


class NoIds(Rule):
    """Ids are not kept."""

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        return super().decide(log, cost, now_us)


class IdOutlivesItsRefund(Rule):
    """A hit that was given back answers for its id."""

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        after, decision = super().decide(log, cost, now_us, attempt_id)
        if attempt_id and decision.allowed and any(not hit.units for hit in log.hits):
            return log, msgspec.structs.replace(decision, hit=next(hit.stamp_us for hit in log.hits if not hit.units))
        return after, decision


class RefundTwice(Rule):
    """A refund is done whenever the hit is found."""

    def refund(self, log: Log, stamp_us: int, now_us: int) -> tuple[Log, bool]:
        after, done = super().refund(log, stamp_us, now_us)
        return after, done or any(hit.stamp_us == stamp_us for hit in log.hits)


class RefundDeletes(Rule):
    """A hit that was given back is removed: its stamp may be another's."""

    def refund(self, log: Log, stamp_us: int, now_us: int) -> tuple[Log, bool]:
        after, done = super().refund(log, stamp_us, now_us)
        return Log(tuple(hit for hit in after.hits if hit.units), after.high_water_us), done


class RefundOfTheNewest(Rule):
    """A refund gives back whichever hit is the last."""

    def refund(self, log: Log, stamp_us: int, now_us: int) -> tuple[Log, bool]:
        there = super().refund(log, stamp_us, now_us)[1]
        return super().refund(log, log.newest_us(), now_us) if there else (log, False)


class TimeRunsBack(Rule):
    """The log has no floor: a clock that steps back makes room."""

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        after, decision = super().decide(Log(log.hits, 0), cost, now_us, attempt_id)
        return log if after.hits == log.hits else after, decision


class SlotsAreJumped(Rule):
    """A plain attempt does not wait for those who have taken their slots."""

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        past = Log(tuple(hit for hit in log.hits if hit.stamp_us <= max(now_us, log.high_water_us)), log.high_water_us)
        after, decision = super().decide(past, cost, now_us, attempt_id)
        if after == past:
            return log, decision
        rest = tuple(hit for hit in log.hits if hit not in past.hits)
        return Log(tuple(sorted((*after.hits, *rest), key=lambda hit: hit.stamp_us)), after.high_water_us), decision


class SlotTooLate(Rule):
    """A slot is a microsecond later than it need be."""

    def slot(self, log: Log, cost: int, now_us: int, max_wait_us: int | None = None) -> tuple[Log, Decision]:
        after, decision = super().slot(log, cost, now_us + 1, max_wait_us)
        return after, decision if decision.hit is None else msgspec.structs.replace(
            decision, wait_us=decision.hit - now_us
        )


class SlotIgnoresMaxWait(Rule):
    """A slot is taken however far it is."""

    def slot(self, log: Log, cost: int, now_us: int, max_wait_us: int | None = None) -> tuple[Log, Decision]:
        after, decision = super().slot(log, cost, now_us, max_wait_us)
        return (after if decision.allowed else super().slot(log, cost, now_us)[0]), decision


class TrimByCount(Rule):
    """So many hits are kept as the smallest quota has units."""

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        after, decision = super().decide(log, cost, now_us, attempt_id)
        if after == log:
            return log, decision
        return Log(after.hits[-min(quota for quota, _ in self.limits) :], after.high_water_us), decision


class OneInstantOneHit(Rule):
    """Two hits in one instant have one stamp."""

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        after, decision = super().decide(log, cost, now_us, attempt_id)
        if decision.hit is None or after == log or all(hit.stamp_us != now_us for hit in log.hits):
            return after, decision
        hits = tuple(Hit(now_us, cost, hit.fingerprint) if hit.stamp_us == now_us else hit for hit in log.hits)
        return Log(hits, now_us), msgspec.structs.replace(decision, hit=now_us)


class RetryAfterTooSoon(Rule):
    """A retry_after that is a microsecond short."""

    def decide(self, log: Log, cost: int, now_us: int, attempt_id: str = "") -> tuple[Log, Decision]:
        after, decision = super().decide(log, cost, now_us, attempt_id)
        if decision.allowed or decision.retry_after_us is None:
            return after, decision
        return after, msgspec.structs.replace(decision, retry_after_us=decision.retry_after_us - 1)


class BatchOfOne(Rule):
    """A batch drops what is in it twice."""

    def batch(self, log: Log, costs: Sequence[int], now_us: int) -> tuple[Log, list[Decision]]:
        log, (decision,) = super().batch(log, costs[:1], now_us)
        return log, [decision] * len(costs)


class SweptTooSoon(Rule):
    """A log is swept away while its last hit is still in a window."""

    def sweep(self, log: Log, now_us: int) -> Log:
        return Log() if log.hits and log.newest_us() + 1 < now_us else log


class ChargeIsRefused(Rule):
    """A charge is an attempt like any other."""

    def charge(self, log: Log, cost: int, now_us: int) -> tuple[Log, Decision]:
        return self.decide(log, cost, now_us)


class ChargeStopsAtTheQuota(Rule):
    """A charge fills what is left, and says that it was all."""

    def charge(self, log: Log, cost: int, now_us: int) -> tuple[Log, Decision]:
        for units in range(cost, 0, -1):
            after, decision = self.decide(log, units, now_us)
            if decision.allowed:
                return after, decision
        after, decision = super().charge(log, cost, now_us)
        return log, decision


class ChargeWaitsItsTurn(Rule):
    """A charge is stamped behind the slots that are taken."""

    def charge(self, log: Log, cost: int, now_us: int) -> tuple[Log, Decision]:
        return super().charge(log, cost, max(now_us, log.newest_us() + 1))


class SettledTwiceCountsTwice(Rule):
    """A settlement adds its cost to the hit."""

    def settle(self, log: Log, stamp_us: int, cost: int, now_us: int) -> tuple[Log, bool]:
        return super().settle(log, stamp_us, cost + log.units_at(stamp_us) if cost else 0, now_us)


class SettlingRevives(Rule):
    """A hit that was given back can be settled."""

    def settle(self, log: Log, stamp_us: int, cost: int, now_us: int) -> tuple[Log, bool]:
        after, done = super().settle(log, stamp_us, cost, now_us)
        if done or not cost or stamp_us not in [hit.stamp_us for hit in log.hits]:
            return after, done
        hits = tuple(Hit(stamp_us, cost) if hit.stamp_us == stamp_us else hit for hit in log.hits)
        return Log(hits, log.high_water_us), True


DEBIT_FAULTS: dict[type[Rule], set[int]] = {
    ChargeIsRefused: {2},
    ChargeStopsAtTheQuota: {5},
    ChargeWaitsItsTurn: {0},
    SettledTwiceCountsTwice: {5},
    SettlingRevives: {5},
}
FAULTS: dict[type[Rule], set[int]] = {
    EdgeTooEarly: {0, 1},
    EdgeTooLate: {0, 2},
    OnlyTheFirstLimit: {1, 2},
    RefusalRecords: {3},
    NoIds: {4},
    IdOutlivesItsRefund: {1, 4},
    RefundTwice: {5},
    RefundDeletes: {1, 5},
    RefundOfTheNewest: {5},
    TimeRunsBack: {1, 2},
    SlotsAreJumped: {0, 1},
    SlotTooLate: {0},
    SlotIgnoresMaxWait: {3},
    TrimByCount: {5},
    OneInstantOneHit: {1},
    RetryAfterTooSoon: {2},
    BatchOfOne: {6},
    SweptTooSoon: {5},
}
