"""One history for every limiter in memory: a few hundred calls, on a clock that stands until it is moved.

It goes where mistakes show: several attempts in one instant, the very edge of a window and the microsecond before it,
retries of ids within the window and long after, refunds and their repetition, batches that name a subject twice, two
policies over one log, costs of several units, one attempt over several subjects. One subject's hits are never given
back, and there slots are taken too.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from proof.record import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from proof.record import Part

__all__ = ["POLICIES", "Clock", "play"]

POLICIES = {"narrow": ((3, 10_000), (5, 40_000)), "wide": ((9, 40_000),), "wider": ((400, 2_000_000),)}
"""(quota, window_us) of each limit; all over one log a subject."""
START_US = 1_700_000_000_000_000
SUBJECTS = ("a", "b")
QUEUE = "queue"
"""The subject that slots are taken of."""


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.time_us = START_US

    def now_us(self) -> int:
        """The time."""
        return self.time_us


def play(make: Callable[[Clock], Any], *, seed: int = 1, calls: int = 600) -> list[str]:
    """The records of one history; the same seed asks the same of every limiter, by the verbs of `right.Right`."""
    clock = Clock()
    recorder = Recorder(clock.now_us)
    for name, limits in POLICIES.items():
        recorder.policy(name, limits, log="log")
    player = _Player(make(clock), clock, recorder, random.Random(seed))
    together = random.Random(-1 - seed)
    for _ in range(calls):
        player.step()
        if together.random() < 0.2:
            player.step_together(together)
    for subject in (*SUBJECTS, QUEUE):
        recorder.tell(recorder.final("narrow", subject), lambda subject=subject: player.tried.hits(subject))
    return recorder.lines


class _Player:
    def __init__(self, tried: Any, clock: Clock, recorder: Recorder, draw: random.Random) -> None:
        self.tried = tried
        self._clock = clock
        self._recorder = recorder
        self._draw = draw
        self._given: list[tuple[str, int]] = []
        self._ids: list[tuple[str, str, str, int]] = []

    def step(self) -> None:
        """Let some time pass, or none, and call once."""
        draw = self._draw
        self._clock.time_us += draw.choice((0, 0, 0, 1, 900, 1000, 3000, 7000, 10_000, draw.randrange(15_000)))
        if draw.random() < 0.2 and self._given:
            self._to_an_edge()
        if draw.random() < 0.01:
            self._clock.time_us += 2_500_000
        if draw.random() < 0.3:
            self._queue()
            return
        subject, policy = draw.choice(SUBJECTS), draw.choice(("narrow", "narrow", "wide", "wider"))
        verb = draw.randrange(20)
        if verb < 12:
            self._decide(policy, subject, draw.choice((1, 1, 1, 2, 3, 4)))
        elif verb < 14:
            name = f"id {draw.random()}"
            self._ids.append((policy, subject, name, draw.choice((1, 1, 2))))
            self._decide(*self._ids[-1][:2], self._ids[-1][3], name)
        elif verb < 16 and self._ids:
            policy, subject, name, cost = self._ids[-1] if draw.random() < 0.7 else draw.choice(self._ids)
            self._decide(policy, subject, cost, name)
        elif verb < 18 and self._given:
            subject, stamp_us = self._given[-1] if draw.random() < 0.7 else draw.choice(self._given)
            note = self._recorder.change("refund", "narrow", subject, stamp_us)
            self._recorder.tell(note, lambda: self.tried.refund(subject, stamp_us))
        else:
            subjects = [draw.choice(SUBJECTS) for _ in range(4)]
            rows = [(policy, subject, 1) for subject in subjects]
            self._recorder.batch(rows, lambda: self.tried.decide_many(policy, subjects))

    def step_together(self, draw: random.Random) -> None:
        """One attempt over two or three subjects, often with an id that one of them knows."""
        parts: list[Part] = []
        for subject in draw.sample((*SUBJECTS, QUEUE), draw.choice((2, 2, 3))):
            known = [one for one in self._ids[-6:] if one[1] == subject]
            if known and draw.random() < 0.5:
                policy, _, name, cost = draw.choice(known)
                parts.append((policy, subject, cost, name))
            else:
                parts.append((draw.choice(("narrow", "wide")), subject, draw.choice((1, 1, 2)), None))
        self._recorder.tell(self._recorder.joint(parts), lambda: self.tried.decide_all(parts))

    def _decide(self, policy: str, subject: str, cost: int, attempt_id: str | None = None) -> None:
        note = self._recorder.attempt(policy, subject, cost=cost, id=attempt_id)
        answer: Any = self._recorder.tell(note, lambda: self.tried.decide(policy, subject, cost, attempt_id))
        if answer.allowed and answer.hit is not None:
            self._given.append((subject, answer.hit))

    def _queue(self) -> None:
        """An attempt, or a slot, near or far."""
        draw = self._draw
        policy, cost = draw.choice(("narrow", "narrow", "wide")), draw.choice((1, 1, 2, 3, 4))
        if draw.random() < 0.6:
            note = self._recorder.attempt(policy, QUEUE, cost=cost)
            self._recorder.tell(note, lambda: self.tried.decide(policy, QUEUE, cost))
            return
        bounds: dict[str, Any] = {
            "max_wait_us": draw.choice((0, 1, 3000, 9000, 9999, 12_000, None)),
            "not_before_us": draw.choice((0, 0, 0, 1, 2, 5000)),
        }
        note = self._recorder.attempt(policy, QUEUE, cost=cost, verb="schedule", **bounds)
        self._recorder.tell(note, lambda: self.tried.schedule(policy, QUEUE, cost, **bounds))

    def _to_an_edge(self) -> None:
        """To where a hit of late leaves a window, or a microsecond before; never back."""
        _, stamp_us = self._draw.choice(self._given[-8:])
        edge_us = stamp_us + self._draw.choice((10_000, 40_000)) - self._draw.choice((0, 0, 1))
        if self._clock.time_us <= edge_us <= self._clock.time_us + 100_000:
            self._clock.time_us = edge_us
