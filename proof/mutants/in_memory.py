"""A right limiter, written to be read, and wrong ones: each is the right one but for one mistake that people have made.

`MUTANTS` names each with what the checker has to say of it, at least one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from proof.record import Part

__all__ = ["MUTANTS", "Answer", "Hit", "JointAnswer", "Right"]


class Answer(NamedTuple):
    """An answer."""

    allowed: bool
    hit: int | None = None
    retry_after_us: int | None = 0
    wait_us: int = 0


class JointAnswer(NamedTuple):
    """An answer to an attempt over several subjects."""

    allowed: bool
    hits: tuple[int, ...] = ()
    retry_after_us: int | None = 0


class Hit:
    """What is recorded."""

    __slots__ = ("id", "stamp_us", "units")

    def __init__(self, stamp_us: int, units: int, attempt_id: str | None) -> None:
        self.stamp_us = stamp_us
        self.units = units
        self.id = attempt_id


Limits = tuple[tuple[int, int], ...]


class Right:
    """The rule, word for word. `policies` are limits, (quota, window_us), by name; all share a subject's one log."""

    def __init__(self, now_us: Callable[[], int], policies: dict[str, Limits]) -> None:
        self.now_us = now_us
        self.policies = policies
        self.logs: dict[str, list[Hit]] = {}
        self.floors: dict[str, int] = {}
        self.retention_us = max(window_us for limits in policies.values() for _, window_us in limits)

    def decide(self, policy: str, subject: str, cost: int = 1, id: str | None = None) -> Answer:
        """Consume, or say when."""
        answer, is_new = self.look(policy, subject, cost, id)
        if is_new and answer.hit is not None:
            self.record(self.logs[subject], Hit(answer.hit, cost, id))
            self.floor(subject, answer.hit)
        return answer

    def decide_all(self, parts: Sequence[Part]) -> JointAnswer:
        """Consume in all of these, or in none, and say when the last one of them fits."""
        answers = [self.look(*part) for part in parts]
        waits = [answer.retry_after_us for answer, _ in answers if not answer.allowed]
        if waits:
            return JointAnswer(False, (), max((us for us in waits if us), default=None) if all(waits) else None)
        for (_, subject, cost, name), (answer, is_new) in zip(parts, answers, strict=True):
            if is_new and answer.hit is not None:
                self.record(self.logs[subject], Hit(answer.hit, cost, name))
                self.floor(subject, answer.hit)
        return JointAnswer(True, tuple(answer.hit or 0 for answer, _ in answers))

    def look(self, policy: str, subject: str, cost: int, id: str | None) -> tuple[Answer, bool]:
        """What `decide` answers, and whether that is to be recorded."""
        log, limits = self.trimmed(subject), self.policies[policy]
        known = self.known(log, id)
        if known is not None:
            return Answer(True, known.stamp_us), False
        stamp_us, queue_us = self.stamp(log), self.queue(subject, log)
        if not self.fits(log, limits, cost, stamp_us):
            return self.refuse(log, limits, cost, stamp_us), False
        if queue_us > self.now_us():
            return Answer(False, None, queue_us - self.now_us()), False
        return Answer(True, stamp_us), True

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Answer:
        """The first instant behind every hit, not before it is wanted, at which it fits; or say when that is."""
        log, limits, now_us = self.trimmed(subject), self.policies[policy], self.now_us()
        first_us = max(self.stamp(log), now_us + not_before_us)
        ends_us = sorted(hit.stamp_us + window_us for hit in log for _, window_us in limits)
        for at_us in (first_us, *(end_us for end_us in ends_us if end_us > first_us)):
            if self.fits(log, limits, cost, at_us):
                if max_wait_us is not None and at_us - now_us > max_wait_us:
                    return Answer(False, None, at_us - now_us)
                self.record(log, Hit(at_us, cost, None))
                self.floor(subject, at_us)
                return Answer(True, at_us, 0, at_us - now_us)
        return Answer(False, None, None)

    def decide_many(self, policy: str, subjects: Iterable[str]) -> list[Answer]:
        """One unit for each, in order."""
        return [self.decide(policy, subject) for subject in subjects]

    def refund(self, subject: str, stamp_us: int) -> bool:
        """Give one hit back."""
        for hit in self.trimmed(subject):
            if hit.stamp_us == stamp_us and hit.units:
                hit.units, hit.id = 0, None
                return True
        return False

    def hits(self, subject: str) -> list[tuple[int, int]]:
        """What is stored."""
        return [(hit.stamp_us, hit.units) for hit in self.trimmed(subject)]

    def trimmed(self, subject: str) -> list[Hit]:
        """The log without what no window can look at."""
        log = self.logs.setdefault(subject, [])
        log[:] = [hit for hit in log if hit.stamp_us > self.now_us() - self.retention_us]
        return log

    def known(self, log: list[Hit], attempt_id: str | None) -> Hit | None:
        """The hit of this id."""
        return next((hit for hit in log if attempt_id is not None and hit.id == attempt_id), None)

    def stamp(self, log: list[Hit]) -> int:
        """The next stamp: now, or behind the newest."""
        return max([self.now_us(), *(hit.stamp_us + 1 for hit in log)])

    def queue(self, subject: str, log: list[Hit]) -> int:
        """The last slot that is taken in the future; 0: none. Hits of one instant are no queue."""
        last_us = max((hit.stamp_us for hit in log), default=0)
        return last_us if last_us > max(self.now_us(), self.floors.get(subject, 0)) else 0

    def floor(self, subject: str, stamp_us: int) -> None:
        """How far hits of one instant have gone, a microsecond each."""
        time_us = max(self.now_us(), self.floors.get(subject, 0))
        self.floors[subject] = stamp_us if stamp_us <= time_us + 1 else time_us

    def used(self, log: list[Hit], window_us: int, at_us: int) -> int:
        """Units in the window that ends at this instant."""
        return sum(hit.units for hit in log if at_us - window_us < hit.stamp_us <= at_us)

    def fits(self, log: list[Hit], limits: Limits, cost: int, at_us: int) -> bool:
        """Whether every limit has room."""
        return all(self.used(log, window_us, at_us) + cost <= quota for quota, window_us in limits)

    def record(self, log: list[Hit], hit: Hit) -> None:
        """Append."""
        log.append(hit)

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        """Say when: the first instant at which some hit has just left some window and the cost fits."""
        ends_us = sorted(hit.stamp_us + window_us for hit in log for _, window_us in limits)
        for at_us in ends_us:
            if at_us > stamp_us and self.fits(log, limits, cost, at_us):
                return Answer(False, None, at_us - self.now_us())
        return Answer(False, None, None)


class MillisecondMember(Right):
    """The hit is a member of a set, named by its stamp in milliseconds: of two in one millisecond one is lost."""

    def record(self, log: list[Hit], hit: Hit) -> None:
        """Add to the set."""
        if all(other.stamp_us // 1000 != hit.stamp_us // 1000 for other in log):
            log.append(hit)


class EdgeTooLate(Right):
    """A hit exactly as old as the window still counts."""

    def used(self, log: list[Hit], window_us: int, at_us: int) -> int:
        """From the closed end on."""
        return sum(hit.units for hit in log if at_us - window_us <= hit.stamp_us <= at_us)

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        """As documented."""
        return Right(self.now_us, self.policies).refuse(log, limits, cost, stamp_us)


class EdgeTooEarly(Right):
    """A hit one microsecond younger than the window counts no more."""

    def used(self, log: list[Hit], window_us: int, at_us: int) -> int:
        """A microsecond short."""
        return sum(hit.units for hit in log if at_us - window_us + 1 < hit.stamp_us <= at_us)


class RefusalConsumes(Right):
    """Every attempt is recorded, and then it is looked whether there are too many."""

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        """Too late."""
        answer = super().refuse(log, limits, cost, stamp_us)
        self.record(log, Hit(stamp_us, cost, None))
        return answer


class NoIds(Right):
    """A retry is a new attempt."""

    def known(self, log: list[Hit], attempt_id: str | None) -> Hit | None:
        """Never heard of it."""
        return None


class IdsForGood(Right):
    """An id is remembered for ever, so that a hit of last week answers today."""

    def decide(self, policy: str, subject: str, cost: int = 1, id: str | None = None) -> Answer:
        """By a memory of its own."""
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
        """Trim when done, as LTRIM does."""
        answer = super().decide(policy, subject, cost, id)
        del self.logs[subject][: -max(quota for quota, _ in self.policies[policy])]
        return answer


class RefuseEverything(Right):
    """Never one too many."""

    def fits(self, log: list[Hit], limits: Limits, cost: int, at_us: int) -> bool:
        """No."""
        return False

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        """Always in a second."""
        return Answer(False, None, 1_000_000)


class OneLimitAfterTheOther(Right):
    """A log for each limit, consumed as each is checked: what the second refuses, the first has consumed."""

    def decide(self, policy: str, subject: str, cost: int = 1, id: str | None = None) -> Answer:
        """Limit by limit."""
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
        """Each subject once, and its answer for every row."""
        subjects = list(subjects)
        answers = {subject: self.decide(policy, subject) for subject in dict.fromkeys(subjects)}
        return [answers[subject] for subject in subjects]


class CostIsOne(Right):
    """A cost is asked for, and one unit recorded."""

    def record(self, log: list[Hit], hit: Hit) -> None:
        """One."""
        hit.units = 1
        log.append(hit)


class RefundAgain(Right):
    """A refund that was repeated gives back another hit as well."""

    def refund(self, subject: str, stamp_us: int) -> bool:
        """Whichever is there."""
        if super().refund(subject, stamp_us):
            return True
        return any(super(RefundAgain, self).refund(subject, hit.stamp_us) for hit in self.trimmed(subject))


class RefundOfTheOldest(Right):
    """A refund lowers the count by giving back the oldest hit."""

    def refund(self, subject: str, stamp_us: int) -> bool:
        """The first in the list."""
        there = any(hit.stamp_us == stamp_us and hit.units for hit in self.trimmed(subject))
        oldest = next((hit.stamp_us for hit in self.trimmed(subject) if hit.units), None)
        return there and oldest is not None and super().refund(subject, oldest)


class RefundIsForgotten(Right):
    """A refund is answered, and nothing happens."""

    def refund(self, subject: str, stamp_us: int) -> bool:
        """Yes, yes."""
        seen: set[int] = self.__dict__.setdefault("seen", set())
        there = stamp_us not in seen and any(hit.stamp_us == stamp_us for hit in self.trimmed(subject))
        seen.add(stamp_us)
        return there


class RetryAfterTooSoon(Right):
    """A retry_after that is a microsecond short."""

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        """Rounded down."""
        answer = super().refuse(log, limits, cost, stamp_us)
        return answer._replace(retry_after_us=answer.retry_after_us and answer.retry_after_us - 1)


class RetryAfterTheWholeWindow(Right):
    """A retry_after that is always the window."""

    def refuse(self, log: list[Hit], limits: Limits, cost: int, stamp_us: int) -> Answer:
        """Safe is safe."""
        return Answer(False, None, max(window_us for _, window_us in limits))


class FixedWindow(Right):
    """Counts by the calendar: twice the quota around midnight."""

    def used(self, log: list[Hit], window_us: int, at_us: int) -> int:
        """Since the window began."""
        return sum(hit.units for hit in log if hit.stamp_us >= at_us - at_us % window_us)


class WeightedWindows(Right):
    """Guesses the sliding count from two calendar windows, as many gateways do."""

    def used(self, log: list[Hit], window_us: int, at_us: int) -> int:
        """This window's count, and a share of the last one's."""
        begin_us = at_us - at_us % window_us
        last = sum(hit.units for hit in log if begin_us - window_us <= hit.stamp_us < begin_us)
        return sum(hit.units for hit in log if hit.stamp_us >= begin_us) + int(
            last * (1 - at_us % window_us / window_us)
        )


class LyingStamps(Right):
    """Grants twice the quota, under stamps and a content that no window looks full by."""

    def fits(self, log: list[Hit], limits: Limits, cost: int, at_us: int) -> bool:
        """By a count of its own."""
        true: list[Hit] = self.__dict__.setdefault("true", [])
        at_us = self.now_us()
        fits = super().fits(true, tuple((2 * quota, window_us) for quota, window_us in limits), cost, at_us)
        if fits:
            true.append(Hit(at_us, cost, None))
        return fits

    def stamp(self, log: list[Hit]) -> int:
        """Well apart from the last one."""
        return max([self.now_us(), *(hit.stamp_us + self.retention_us for hit in log)])

    def queue(self, subject: str, log: list[Hit]) -> int:
        """Nobody waits for stamps that lie."""
        return 0


class JumpsTheQueue(Right):
    """An attempt looks back only: a slot in the future is nothing to it."""

    def stamp(self, log: list[Hit]) -> int:
        """Now, or the next microsecond that nobody has."""
        now_us, taken = self.now_us(), {hit.stamp_us for hit in log}
        return next(at_us for at_us in range(now_us, now_us + len(taken) + 1) if at_us not in taken)

    def queue(self, subject: str, log: list[Hit]) -> int:
        """None."""
        return 0


class SlotIsOnlyTold(Right):
    """Who waits is told when to come, and nobody is told of who waits."""

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Answer:
        """Nothing is kept of a slot that is not now."""
        answer = super().schedule(policy, subject, cost, max_wait_us, not_before_us)
        if answer.wait_us > 1:
            self.logs[subject] = [hit for hit in self.logs[subject] if hit.stamp_us != answer.hit]
        return answer


class SlotTooLate(Right):
    """A slot is put a little behind the instant that is free, to be sure."""

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Answer:
        """By ten microseconds."""
        answer = super().schedule(policy, subject, cost, max_wait_us, not_before_us)
        if answer.hit is None or answer.wait_us <= 1:
            return answer
        self.logs[subject][-1].stamp_us += 10
        return answer._replace(hit=answer.hit + 10, wait_us=answer.wait_us + 10)


class SlotHoweverFar(Right):
    """How long somebody would wait is not looked at."""

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Answer:
        """As if there were no bound."""
        return super().schedule(policy, subject, cost, None, not_before_us)


class SlotForOneUnit(Right):
    """The slot is found for one unit, whatever the cost."""

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Answer:
        """And the cost is recorded there."""
        answer = super().schedule(policy, subject, 1, max_wait_us, not_before_us)
        for hit in self.logs[subject]:
            if hit.stamp_us == answer.hit:
                hit.units = cost
        return answer


class JointPartByPart(Right):
    """Of an attempt over several subjects the first ones consume, and stay consumed when another refuses."""

    def decide_all(self, parts: Sequence[Part]) -> JointAnswer:
        """One after the other."""
        answers: list[Answer] = []
        for part in parts:
            answers.append(self.decide(*part))
            if not answers[-1].allowed:
                return JointAnswer(False, (), answers[-1].retry_after_us)
        return JointAnswer(True, tuple(answer.hit or 0 for answer in answers))


class JointLooksAtTheFirst(Right):
    """Only the first subject is asked, and all consume."""

    def decide_all(self, parts: Sequence[Part]) -> JointAnswer:
        """The others are charged."""
        answer = self.decide(*parts[0])
        if answer.hit is None:
            return JointAnswer(False, (), answer.retry_after_us)
        hits = [answer.hit]
        for _, subject, cost, name in parts[1:]:
            log = self.trimmed(subject)
            hits.append(self.stamp(log))
            self.record(log, Hit(hits[-1], cost, name))
            self.floor(subject, hits[-1])
        return JointAnswer(True, tuple(hits))


class JointTimeOfTheLatest(Right):
    """Hits are trimmed by the latest stamp of any of the subjects, though on one log it is far ahead: a slot."""

    def decide_all(self, parts: Sequence[Part]) -> JointAnswer:
        """By the window of each policy."""
        latest_us = max(self.stamp(self.trimmed(subject)) for _, subject, _, _ in parts)
        for policy, subject, _, _ in parts:
            widest_us = max(window_us for _, window_us in self.policies[policy])
            log = self.logs[subject]
            log[:] = [hit for hit in log if hit.stamp_us > latest_us - widest_us]
        return super().decide_all(parts)


class JointConsumesAgain(Right):
    """A part that was allowed before is recorded once more beside new ones."""

    def decide_all(self, parts: Sequence[Part]) -> JointAnswer:
        """Ids are for attempts on one subject."""
        if all(self.known(self.trimmed(subject), name) for _, subject, _, name in parts):
            return super().decide_all(parts)
        answer = super().decide_all([(policy, subject, cost, None) for policy, subject, cost, _ in parts])
        for (_, subject, _, name), stamp_us in zip(parts, answer.hits, strict=False):
            for hit in self.logs[subject]:
                if hit.stamp_us == stamp_us:
                    hit.id = name
        return answer


class Forgets(Right):
    """Evicts a log when there are too many hits."""

    def record(self, log: list[Hit], hit: Hit) -> None:
        """As a cache does."""
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
