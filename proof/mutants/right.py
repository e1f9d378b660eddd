"""A right limiter, written to be read: what the wrong ones in memory are, but for one mistake each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from proof.record import Part

__all__ = ["Answer", "Hit", "JointAnswer", "Limits", "Right"]


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
