"""Limiters that are wrong about slots, or about several subjects: each is `right.Right` but for one mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proof.mutants.right import Answer, Hit, JointAnswer, Right

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proof.record import Part

__all__ = [
    "JointConsumesAgain",
    "JointLooksAtTheFirst",
    "JointPartByPart",
    "JointTimeOfTheLatest",
    "JumpsTheQueue",
    "SlotForOneUnit",
    "SlotHoweverFar",
    "SlotIsOnlyTold",
    "SlotTooLate",
]


class JumpsTheQueue(Right):
    """An attempt looks back only: a slot in the future is nothing to it."""

    def stamp(self, log: list[Hit]) -> int:
        now_us, taken = self.now_us(), {hit.stamp_us for hit in log}
        return next(at_us for at_us in range(now_us, now_us + len(taken) + 1) if at_us not in taken)

    def queue(self, subject: str, log: list[Hit]) -> int:
        return 0


class SlotIsOnlyTold(Right):
    """A waiter is told when to come, but its slot is not recorded."""

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Answer:
        answer = super().schedule(policy, subject, cost, max_wait_us, not_before_us)
        if answer.wait_us > 1:
            self.logs[subject] = [hit for hit in self.logs[subject] if hit.stamp_us != answer.hit]
        return answer


class SlotTooLate(Right):
    """A slot is put a little behind the instant that is free, to be sure."""

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Answer:
        answer = super().schedule(policy, subject, cost, max_wait_us, not_before_us)
        if answer.hit is None or answer.wait_us <= 1:
            return answer
        self.logs[subject][-1].stamp_us += 10
        return answer._replace(hit=answer.hit + 10, wait_us=answer.wait_us + 10)


class SlotHoweverFar(Right):
    """`max_wait` is ignored."""

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Answer:
        return super().schedule(policy, subject, cost, None, not_before_us)


class SlotForOneUnit(Right):
    """The slot is found for one unit, whatever the cost."""

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Answer:
        answer = super().schedule(policy, subject, 1, max_wait_us, not_before_us)
        for hit in self.logs[subject]:
            if hit.stamp_us == answer.hit:
                hit.units = cost
        return answer


class JointPartByPart(Right):
    """Of an attempt over several subjects the first ones consume, and stay consumed when another refuses."""

    def decide_all(self, parts: Sequence[Part]) -> JointAnswer:
        answers: list[Answer] = []
        for part in parts:
            answers.append(self.decide(*part))
            if not answers[-1].allowed:
                return JointAnswer(False, (), answers[-1].retry_after_us)
        return JointAnswer(True, tuple(answer.hit or 0 for answer in answers))


class JointLooksAtTheFirst(Right):
    """Only the first subject is asked, and all consume."""

    def decide_all(self, parts: Sequence[Part]) -> JointAnswer:
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
        latest_us = max(self.stamp(self.trimmed(subject)) for _, subject, _, _ in parts)
        for policy, subject, _, _ in parts:
            widest_us = max(window_us for _, window_us in self.policies[policy])
            log = self.logs[subject]
            log[:] = [hit for hit in log if hit.stamp_us > latest_us - widest_us]
        return super().decide_all(parts)


class JointConsumesAgain(Right):
    """A part that was allowed before is recorded once more beside new ones."""

    def decide_all(self, parts: Sequence[Part]) -> JointAnswer:
        if all(self.known(self.trimmed(subject), name) for _, subject, _, name in parts):
            return super().decide_all(parts)
        answer = super().decide_all([(policy, subject, cost, None) for policy, subject, cost, _ in parts])
        for (_, subject, _, name), stamp_us in zip(parts, answer.hits, strict=False):
            for hit in self.logs[subject]:
                if hit.stamp_us == stamp_us:
                    hit.id = name
        return answer
