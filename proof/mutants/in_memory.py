"""Wrong limiters: each is `right.Right` but for one mistake that people have made.

`MUTANTS` names each with what the checker has to say of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proof.mutants.in_memory_slots import (
    JointConsumesAgain,
    JointLooksAtTheFirst,
    JointPartByPart,
    JointTimeOfTheLatest,
    JumpsTheQueue,
    SlotForOneUnit,
    SlotHoweverFar,
    SlotIsOnlyTold,
    SlotTooLate,
)
from proof.mutants.right import Answer, Hit, Right

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proof.mutants.right import Limits

__all__ = ["MUTANTS"]


class MillisecondMember(Right):
    """The hit is a member of a set, named by its stamp in milliseconds: of two in one millisecond one is lost."""

    def record(self, log: list[Hit], hit: Hit) -> None:
        if all(other.stamp_us // 1000 != hit.stamp_us // 1000 for other in log):
            log.append(hit)


class EdgeTooLate(Right):
    """A hit exactly as old as the window still counts."""

    def used(self, log: list[Hit], window_us: int, at_us: int) -> int:
        return sum(hit.units for hit in log if at_us - window_us <= hit.stamp_us <= at_us)

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        return Right(self.now_us, self.policies).refuse(log, limits, cost, stamp_us)


class EdgeTooEarly(Right):
    """A hit one microsecond younger than the window counts no more."""

    def used(self, log: list[Hit], window_us: int, at_us: int) -> int:
        return sum(hit.units for hit in log if at_us - window_us + 1 < hit.stamp_us <= at_us)


class RefusalConsumes(Right):
    """Every attempt is recorded, and then it is looked whether there are too many."""

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        answer = super().refuse(log, limits, cost, stamp_us)
        self.record(log, Hit(stamp_us, cost, None))
        return answer


class NoIds(Right):
    """A retry is a new attempt."""

    def known(self, log: list[Hit], attempt_id: str | None) -> Hit | None:
        return None


class IdsForGood(Right):
    """An id is remembered for ever, so that a hit of last week answers today."""

    def decide(self, policy: str, subject: str, cost: int = 1, id: str | None = None) -> Answer:
        memory: dict[str, Answer] = self.__dict__.setdefault("memory", {})
        if id is not None and id in memory:
            return memory[id]
        answer = super().decide(policy, subject, cost, id)
        if id is not None and answer.allowed:
            memory[id] = answer
        return answer


class TrimByCount(Right):
    """Only so many hits are kept as the policy at hand can count."""

    def decide(self, policy: str, subject: str, cost: int = 1, id: str | None = None) -> Answer:
        answer = super().decide(policy, subject, cost, id)
        del self.logs[subject][: -max(quota for quota, _ in self.policies[policy])]
        return answer


class RefuseEverything(Right):
    """Never one too many."""

    def fits(self, log: list[Hit], limits: Limits, cost: int, at_us: int) -> bool:
        return False

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        return Answer(False, None, 1_000_000)


class OneLimitAfterTheOther(Right):
    """A log for each limit, consumed as each is checked: what the second refuses, the first has consumed."""

    def decide(self, policy: str, subject: str, cost: int = 1, id: str | None = None) -> Answer:
        log = self.trimmed(subject)
        known = self.known(log, id)
        if known is not None:
            return Answer(True, known.stamp_us)
        stamp_us = self.stamp(log)
        firsts = self.logs.setdefault(f"{subject} first", [])
        (quota, window_us), *others = self.policies[policy]
        if self.used(firsts, window_us, stamp_us) + cost > quota:
            return self.refuse(firsts, ((quota, window_us),), cost, stamp_us)
        self.record(firsts, Hit(stamp_us, cost, id))
        if not self.fits(log, tuple(others), cost, stamp_us):
            return self.refuse(log, tuple(others), cost, stamp_us)
        self.record(log, Hit(stamp_us, cost, id))
        return Answer(True, stamp_us)


class BatchDropsDuplicates(Right):
    """A batch is a set of subjects."""

    def decide_many(self, policy: str, subjects: Iterable[str]) -> list[Answer]:
        subjects = list(subjects)
        answers = {subject: self.decide(policy, subject) for subject in dict.fromkeys(subjects)}
        return [answers[subject] for subject in subjects]


class CostIsOne(Right):
    """A cost is asked for, and one unit recorded."""

    def record(self, log: list[Hit], hit: Hit) -> None:
        hit.units = 1
        log.append(hit)


class RefundAgain(Right):
    """A refund that was repeated gives back another hit as well."""

    def refund(self, subject: str, stamp_us: int) -> bool:
        if super().refund(subject, stamp_us):
            return True
        return any(super(RefundAgain, self).refund(subject, hit.stamp_us) for hit in self.trimmed(subject))


class RefundOfTheOldest(Right):
    """A refund lowers the count by giving back the oldest hit."""

    def refund(self, subject: str, stamp_us: int) -> bool:
        there = any(hit.stamp_us == stamp_us and hit.units for hit in self.trimmed(subject))
        oldest = next((hit.stamp_us for hit in self.trimmed(subject) if hit.units), None)
        return there and oldest is not None and super().refund(subject, oldest)


class RefundIsForgotten(Right):
    """A refund is answered, and nothing happens."""

    def refund(self, subject: str, stamp_us: int) -> bool:
        seen: set[int] = self.__dict__.setdefault("seen", set())
        there = stamp_us not in seen and any(hit.stamp_us == stamp_us for hit in self.trimmed(subject))
        seen.add(stamp_us)
        return there


class RetryAfterTooSoon(Right):
    """A retry_after that is a microsecond short."""

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        answer = super().refuse(log, limits, cost, stamp_us)
        return answer._replace(retry_after_us=answer.retry_after_us and answer.retry_after_us - 1)


class RetryAfterTheWholeWindow(Right):
    """A retry_after that is always the window."""

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        return Answer(False, None, max(window_us for _, window_us in limits))


class FixedWindow(Right):
    """Counts by the calendar: twice the quota around midnight."""

    def used(self, log: list[Hit], window_us: int, at_us: int) -> int:
        return sum(hit.units for hit in log if hit.stamp_us >= at_us - at_us % window_us)


class WeightedWindows(Right):
    """Guesses the sliding count from two calendar windows, as many gateways do."""

    def used(self, log: list[Hit], window_us: int, at_us: int) -> int:
        begin_us = at_us - at_us % window_us
        last = sum(hit.units for hit in log if begin_us - window_us <= hit.stamp_us < begin_us)
        return sum(hit.units for hit in log if hit.stamp_us >= begin_us) + int(
            last * (1 - at_us % window_us / window_us)
        )


class LyingStamps(Right):
    """Grants twice the quota, under stamps and a content that no window looks full by."""

    def fits(self, log: list[Hit], limits: Limits, cost: int, at_us: int) -> bool:
        true: list[Hit] = self.__dict__.setdefault("true", [])
        at_us = self.now_us()
        fits = super().fits(true, tuple((2 * quota, window_us) for quota, window_us in limits), cost, at_us)
        if fits:
            true.append(Hit(at_us, cost, None))
        return fits

    def stamp(self, log: list[Hit]) -> int:
        return max([self.now_us(), *(hit.stamp_us + self.retention_us for hit in log)])

    def queue(self, subject: str, log: list[Hit]) -> int:
        return 0


class Forgets(Right):
    """Evicts a log when there are too many hits."""

    def record(self, log: list[Hit], hit: Hit) -> None:
        log.append(hit)
        if hit.stamp_us % 31 == 0:
            log.clear()


MUTANTS: dict[type[Right], set[str]] = {
    MillisecondMember: {"over-quota-by-stamps", "over-quota-by-wall", "final-lost"},
    EdgeTooLate: {"refusal-unjustified"},
    EdgeTooEarly: {"over-quota-by-stamps"},
    RefusalConsumes: {"refusal-unjustified", "final-extra"},
    NoIds: {"id-twice"},
    IdsForGood: {"id-stale"},
    TrimByCount: {"over-quota-by-stamps", "final-lost"},
    RefuseEverything: {"refusal-unjustified"},
    OneLimitAfterTheOther: {"refusal-unjustified"},
    BatchDropsDuplicates: {"one-stamp-twice"},
    CostIsOne: {"over-quota-by-stamps", "final-units"},
    RefundAgain: {"refund-twice"},
    RefundOfTheOldest: {"final-lost", "final-extra"},
    RefundIsForgotten: {"refusal-unjustified", "final-extra"},
    RetryAfterTooSoon: {"retry-after-wrong"},
    RetryAfterTheWholeWindow: {"retry-after-wrong"},
    FixedWindow: {"over-quota-by-stamps"},
    WeightedWindows: {"over-quota-by-stamps"},
    LyingStamps: {"over-quota-by-wall"},
    Forgets: {"over-quota-by-stamps", "final-lost"},
    JumpsTheQueue: {"queue-jumped"},
    SlotIsOnlyTold: {"over-quota-by-stamps", "queue-jumped", "final-lost"},
    SlotTooLate: {"slot-not-first"},
    SlotHoweverFar: {"slot-too-far"},
    SlotForOneUnit: {"over-quota-by-stamps"},
    JointPartByPart: {"final-extra"},
    JointLooksAtTheFirst: {"over-quota-by-stamps"},
    JointTimeOfTheLatest: {"over-quota-by-stamps"},
    JointConsumesAgain: {"id-twice"},
}
"""What the checker has to say of each: all of these kinds of fault."""
