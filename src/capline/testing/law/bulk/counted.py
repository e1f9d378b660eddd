"""Random histories of joint attempts, ids, slots and stepping clocks, judged by the counting oracle."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from capline.model.attempt import Attempt
from capline.model.clock import ManualClock
from capline.model.errors import IdConflictError
from capline.testing.oracle import Oracle
from capline.testing.setting import SECOND, StoreSetting

COUNTED: dict[str, dict[str, Any]] = {
    "a": {"limits": ["3/10s"]},
    "b": {"limits": ["4/10s", "9/60s"], "channels": {"push": ["2/10s"]}},
    "c": {"limits": ["12/10s"], "algorithm": "bucketed", "granularity": "2s"},
    "d": {"limits": ["5/30s"], "log": "a"},
}
STEPS_US = (0, 0, 0, 1, SECOND, 3 * SECOND, 10 * SECOND - 2, 10 * SECOND, 15 * SECOND, -1, -4 * SECOND, -9 * SECOND)


class CountedLaw(StoreSetting):
    """The checks."""

    @pytest.mark.parametrize("seed", range(2))
    def test_a_random_history_is_what_counting_says(self, seed: int) -> None:
        policies = [self.policy(name, **options) for name, options in COUNTED.items()]
        subjects = (1, 2) if self.layout == "bucket" else ("{s}:1", "{s}:2")
        draw = random.Random(seed)  # noqa: S311 - the same history every time
        history = History(self.limiter(*policies), self.clock, Oracle(policies), draw, subjects)
        for _ in range(150):
            history.step()
        assert history.joint > 20
        assert history.refused > 10


class History:
    """Makes random calls of a limiter; the oracle judges each answer. `subjects` are decided in one step."""

    def __init__(
        self, limiter: Any, clock: ManualClock, oracle: Oracle, draw: random.Random, subjects: Sequence[str | int]
    ) -> None:
        self._limiter = limiter
        self._clock = clock
        self._oracle = oracle
        self._draw = draw
        self._subjects = subjects
        self._hits: list[tuple[Attempt, int]] = []
        self.joint = self.refused = 0

    def step(self) -> None:
        """Let the clock step, ahead or back, and call once."""
        draw = self._draw
        self._clock.advance_us(draw.choice(STEPS_US))
        chance = draw.random()
        if chance < 0.4:
            self._together()
        elif chance < 0.75:
            for _ in range(draw.choice((1, 1, 1, 4))):
                self._alone(self._attempt())
        elif chance < 0.83:
            attempt = msgspec.structs.replace(self._attempt(), id=None)
            slot = self._limiter.schedule(
                attempt.policy, attempt.subject, attempt.cost, channel=attempt.channel, max_wait=draw.choice((0, 5, 20))
            )
            self._oracle.scheduled(attempt, self._clock.now_us(), slot)
        elif chance < 0.93 and self._hits:
            attempt, hit = draw.choice(self._hits[-9:])
            done = self._limiter.refund(attempt.policy, attempt.subject, hit, attempt.cost)
            self._oracle.refunded(attempt.policy, attempt.subject, hit, done=done)
        elif chance < 0.95:
            subject = draw.choice(self._subjects)
            self._limiter.erase(subject)
            self._oracle.erased(subject)
        else:
            policy, subject = draw.choice(("a", "b")), draw.choice(self._subjects)
            held = [(hit.stamp_us, hit.units) for hit in self._limiter.explain(policy, subject).hits]
            self._oracle.holds(policy, subject, self._clock.now_us(), held)

    def _attempt(self, policy: str | None = None, subject: str | int | None = None) -> Attempt:
        draw = self._draw
        policy = policy or draw.choice(("a", "a", "b", "c", "d"))
        channel = draw.choice((None, "push")) if policy == "b" else None
        cost, name = draw.choice((1, 1, 1, 2)), draw.choice((None, None, "x", "y", "z"))
        return Attempt(policy, draw.choice(self._subjects) if subject is None else subject, cost, name, channel=channel)

    def _alone(self, attempt: Attempt) -> None:
        verb, judge = self._limiter.decide, self._oracle.decided
        if self._draw.random() < 0.2:
            verb, judge = self._limiter.peek, self._oracle.peeked
        try:
            answer = verb(attempt.policy, attempt.subject, attempt.cost, attempt.id, channel=attempt.channel)
        except IdConflictError:
            return
        judge(attempt, self._clock.now_us(), answer)
        self.refused += not answer.allowed
        if answer.hit is not None:
            self._hits.append((attempt, answer.hit))

    def _together(self) -> None:
        """One attempt over logs that differ; often of an id that one of them may know."""
        logs = [(policy, subject) for policy in ("a", "b", "c") for subject in self._subjects]
        parts = [self._attempt(*log) for log in self._draw.sample(logs, self._draw.choice((2, 2, 3)))]
        try:
            answer = self._limiter.decide_all(parts)
        except IdConflictError:
            return
        self._oracle.decided_all(parts, self._clock.now_us(), answer)
        self.joint += answer.allowed
        self.refused += not answer.allowed
        self._hits += zip(parts, answer.hits, strict=False)
