"""What one caller does next, at random; shared by blocking and awaited callers."""

from __future__ import annotations

import random
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from capline import Attempt
from proof.concurrency.cases import LIMITS, SUBJECTS
from proof.record import Part, wall_us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proof.concurrency.cases import Case

__all__ = ["Call", "Caller", "Then"]

MOST_CALLS = 240_000
"""Calls of all callers of a case: the checker has to read them all."""
LONGEST_SLEEP_S = 0.01
SLEEPS = 0.2
"""Share of the attempts that are sent some time after they were made."""
NEAR = (0, 1, 8, 8, 4)
"""How far ahead a slot may be: 0 or 1 us, or the window divided by this."""
LAST_SHARE = 0.2
"""The last part of a caller's time, in which some slots may be any distance ahead."""
CHARGES = 12
"""Charges of all callers of a case, two in a window: so the quota is passed, and there is room again."""
RESERVES = 0.3
"""Share of the attempts that are reservations."""
TTLS = (2, 8, 50)
"""A reservation holds for the window divided by one of these."""
COMMITS = SETTLES = 0.25
COMMITS_LATE = SETTLES_LATE = 0.02
"""Share of the grants, and of the refusals, after which one of the last hits is committed or settled: in time, late, or
twice."""
LEAVES, LEAVES_LATE = 0.3, 0.05
"""Where slots are moved: share of the grants, and of the refusals, after which one of the last is given back."""
QUEUE = 20
"""Where slots are moved, how many may wait."""
SETTLED_AT = (0, 1, 1, 2, 3)


class Call(NamedTuple):
    """One attempt on one subject or several, a slot, a charge or a reservation.

    `slot_bounds` are a slot's max_wait_us and not_before_us, `ttl_us` is how long a reservation holds.
    """

    cost: int = 1
    id: str | None = None
    slot_bounds: tuple[int | None, int] | None = None
    subjects: tuple[str, ...] = SUBJECTS[:1]
    charge: bool = False
    ttl_us: int | None = None

    @property
    def is_joint(self) -> bool:
        """Whether it is one attempt over several subjects."""
        return len(self.subjects) > 1

    def on(self, limiter: Any) -> Any:
        """Make it; what an `AsyncLimiter` returns is to be awaited."""
        if self.charge:
            return limiter.charge("p", self.subjects[0], self.cost)
        if self.ttl_us is not None:
            return limiter.reserve("p", self.subjects[0], self.cost, self.id, ttl=self.ttl_us / 1e6)
        parts = [Attempt(*part) for part in self.parts()]
        if self.slot_bounds is None:
            if self.is_joint:
                return limiter.decide_all(parts)
            return limiter.decide("p", self.subjects[0], self.cost, self.id)
        max_wait_us, not_before_us = self.slot_bounds
        bounds = {"max_wait": None if max_wait_us is None else max_wait_us / 1e6, "not_before": not_before_us / 1e6}
        if self.is_joint:
            return limiter.schedule_all(parts, **bounds)
        return limiter.schedule("p", self.subjects[0], self.cost, self.id, **bounds)

    def parts(self) -> list[Part]:
        """What is asked for in one attempt."""
        return [("p", subject, self.cost, self.id) for subject in self.subjects]

    def hits(self, answer: Any) -> list[tuple[str, int]]:
        """Whose hits an answer names."""
        hits = answer.hits if self.is_joint else () if answer.hit is None else (answer.hit,)
        return [*zip(self.subjects, hits, strict=False)]

    def record(self) -> dict[str, Any]:
        """What its record says."""
        row: dict[str, Any] = {} if self.is_joint else {"cost": self.cost, "id": self.id}
        if self.slot_bounds is not None:
            row |= {"verb": "schedule", "max_wait_us": self.slot_bounds[0], "not_before_us": self.slot_bounds[1]}
        if self.ttl_us is not None:
            row |= {"verb": "reserve", "ttl_us": self.ttl_us}
        return row | {"verb": "charge"} if self.charge else row


class Then(NamedTuple):
    """What becomes of a hit: refunded, committed, moved, or settled at this cost."""

    verb: str
    subject: str
    hit: int
    cost: int = 0

    def on(self, limiter: Any) -> Any:
        """Make it; what an `AsyncLimiter` returns is to be awaited."""
        more = (self.cost,) if self.verb == "settle" else ()
        return getattr(limiter, self.verb)("p", self.subject, self.hit, *more)


class Caller:
    """One caller, until its time is over."""

    def __init__(self, case: Case, number: int) -> None:
        self._draw = random.Random(secrets.randbits(64))
        self._quota, self._window_us = LIMITS[case.limit]
        self._slots = case.slots or case.moves
        self._moves = case.moves
        self._reservations = case.reservations
        self._settlements = case.settlements
        self._subjects = case.subjects
        self._number = number
        self._made = 0
        self._last = Call()
        self._held: list[tuple[str, int]] = []
        self._most = MOST_CALLS // case.callers
        self._end = time.monotonic() + case.seconds
        self._last_from = self._end - LAST_SHARE * case.seconds
        self._charge_every_s = case.callers * max(self._window_us / 2e6, case.seconds / CHARGES)
        first_s = self._draw.random() * self._charge_every_s
        self._charge_at = time.monotonic() + first_s if case.charges else float("inf")

    def calls(self) -> Iterator[tuple[float, Call]]:
        """How long to sleep before sending, and what; until the time is over."""
        while self._made < self._most and time.monotonic() < self._end:
            self._made += 1
            sleep_s = self._draw.random() * LONGEST_SLEEP_S if self._draw.random() < SLEEPS else 0
            yield sleep_s, self._next()

    def _next(self) -> Call:
        if time.monotonic() > self._charge_at:
            self._charge_at += self._charge_every_s
            return Call(self._draw.choice((1, self._quota // 2 + 1)), charge=True)
        chance = self._draw.random()
        if chance < 0.04 and self._last.id is not None:
            return self._last
        cost = self._draw.choice((1, 1, 2, 3)) if chance > 0.9 and self._quota > 1 else 1
        attempt_id = f"{self._number}-{self._made}" if 0.04 <= chance < 0.12 else None
        many = self._draw.randint(1, len(self._subjects))
        subjects = tuple(self._draw.sample(self._subjects, many))
        call = Call(cost, attempt_id, self._slot_bounds(), subjects, ttl_us=self._ttl_us())
        if attempt_id is not None:
            self._last = call
        return call

    def _slot_bounds(self) -> tuple[int | None, int] | None:
        """The `max_wait` and `not_before` of a slot; None for a plain decision."""
        draw, window_us = self._draw, self._window_us
        if not self._slots:
            return None
        if self._moves and draw.random() < 0.7:
            return QUEUE * window_us // self._quota, 0
        if time.monotonic() > self._last_from and draw.random() < 0.01:
            return draw.choice((None, 3 * window_us)), 0
        # Not a whole number of windows: else the free part would always be the same.
        if wall_us() * 10 // (7 * window_us) % 3 or draw.random() < 0.5:
            return None
        part = draw.choice(NEAR)
        max_wait_us = window_us // part if part > 1 else part
        return max_wait_us, draw.randrange(window_us // 8) if draw.random() < 0.1 else 0

    def _ttl_us(self) -> int | None:
        """How long a reservation holds; None for a hit that stays."""
        if not self._reservations or self._draw.random() > RESERVES:
            return None
        return self._window_us // self._draw.choice(TTLS)

    def after(self, hits: list[tuple[str, int]]) -> Then | None:
        """What to do after this answer, if anything."""
        self._held += hits
        if self._moves and self._held:
            leaves = self._draw.random() < (LEAVES if hits else LEAVES_LATE)
            return Then("refund" if leaves else "move", *self._draw.choice(self._held[-9:]))
        if self._slots or not self._held:
            return None
        if hits and self._draw.random() < 0.05:
            return Then("refund", *self._draw.choice(self._held[-3:]))
        if self._settlements and self._draw.random() < (SETTLES if hits else SETTLES_LATE):
            # Once it has other units, a retry of the attempt that was granted it is an error.
            self._last = Call()
            return Then("settle", *self._draw.choice(self._held[-3:]), self._draw.choice(SETTLED_AT))
        if self._reservations and self._draw.random() < (COMMITS if hits else COMMITS_LATE):
            return Then("commit", *self._draw.choice(self._held[-3:]))
        return None

    def hear(self, then: Then, answer: Any) -> None:
        """Where a slot is that was asked to move."""
        if then.verb == "move" and answer.hit not in (None, then.hit):
            self._held.append((then.subject, answer.hit))
