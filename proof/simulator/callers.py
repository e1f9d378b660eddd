"""What callers ask, by the seed, and what is recorded of it for `proof.checker`.

An answer is recorded as it came. A call that ends with `StoreUnknownError` may have run, or may run yet, as its bytes
may be on their way. `StoreUnavailableError` promises that nothing was recorded: such a call leaves no record, so a hit
of it shows as one that nobody was granted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from capline import Attempt
from capline.model.errors import StoreUnavailableError, StoreUnknownError
from proof.checker.events import FOREVER_US
from proof.record import part_of

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from capline import AsyncLimiter
    from proof.record import Recorder
    from proof.simulator.clock import SimulatedLoop

__all__ = ["Caller", "Told"]

TTLS_US = (60_000, 300_000, 900_000)
DEADLINE_S = 0.25
GRACE_S = 0.1
"""How much later than its deadline an answer may come: replies that are there are still read, and refunds sent."""


@dataclass
class Told:
    """What all callers were told."""

    recorder: Recorder
    answers: int = 0
    unknown: int = 0
    unavailable: int = 0
    late: list[str] = field(default_factory=list[str])
    strange: list[str] = field(default_factory=list[str])
    """Errors that no caller should see: neither unknown nor unavailable."""

    open_refund: bool = False
    """A refund may still be on its way: it may take away what a retry with the same id is granted meanwhile."""

    def no_answer(self, who: str, error: Exception) -> None:
        """A call ended with this."""
        if isinstance(error, StoreUnavailableError):
            self.unavailable += 1
        else:
            self.unknown += 1
        if not isinstance(error, (StoreUnknownError, StoreUnavailableError)):
            self.strange.append(f"{who}: {error!r}")
        if "may not have been given back" in str(error) and "or an earlier one" not in str(error):
            self.open_refund = True


class Caller:
    """One of the tasks that share a limiter."""

    def __init__(
        self,
        name: str,
        limiter: AsyncLimiter,
        subjects: Sequence[str | int],
        verbs: Sequence[str],
        told: Told,
        draw: random.Random,
        tell: Callable[[str], None],
    ) -> None:
        self._name = name
        self._limiter = limiter
        self._subjects = subjects
        self._verbs = verbs
        self._told = told
        self._draw = draw
        self._tell = tell
        self._made = 0
        self._held: list[tuple[str | int, int, int]] = []
        self._last: tuple[str | int, int, str] | None = None
        self._last_joint: list[Attempt] | None = None

    async def go_on(self, calls: int) -> None:
        """Ask so many times."""
        for _ in range(calls):
            await asyncio.sleep(self._draw.uniform(0.0, 0.12))
            self._made += 1
            await getattr(self, self._draw.choice(self._verbs))()

    async def decide(self) -> None:
        """One unit, or more, without an id."""
        await self._attempt(self._subject(), self._draw.choice((1, 1, 1, 2)), None)

    async def named(self) -> None:
        """With an id; at times once more the same."""
        if self._last is None or self._draw.random() < 0.6:
            self._last = self._subject(), self._draw.choice((1, 1, 2)), f"{self._name}-{self._made}"
        await self._attempt(*self._last)

    async def schedule(self) -> None:
        """A slot in the near future."""
        subject, max_wait_us = self._subject(), self._draw.choice((0, 50_000, 400_000, 2_000_000))
        more = {"verb": "schedule", "max_wait_us": max_wait_us}
        call = self._limiter.schedule("p", subject, max_wait=max_wait_us / 1e6)
        await self._answer([{"policy": "p", "subject": subject, "cost": 1, "id": None, **more}], call, _one)

    async def reserve(self) -> None:
        """A hit that ends by itself, soon or after a while, unless it is committed."""
        subject, ttl_us = self._subject(), self._draw.choice(TTLS_US)
        row = {"policy": "p", "subject": subject, "cost": 1, "id": None, "verb": "reserve", "ttl_us": ttl_us}
        await self._answer([row], self._limiter.reserve("p", subject, ttl=ttl_us / 1e6), _one)

    async def refund(self) -> None:
        """Give something back, at times twice."""
        await self._change("refund")

    async def commit(self) -> None:
        """Keep what may be reserved: in time, late, or twice."""
        await self._change("commit")

    async def settle(self) -> None:
        """Give a hit more units, or fewer, or as many."""
        # Once it has other units, a retry of the attempt that was granted it is an error.
        self._last = None
        await self._change("settle", self._draw.choice((1, 1, 2, 3)))

    async def move(self) -> None:
        """Ask whether a slot may go earlier."""
        await self._change("move")

    async def _change(self, verb: str, units: int = 0) -> None:
        """Do this with one of the last hits."""
        if not self._held:
            return
        subject, stamp_us, cost = self._draw.choice(self._held[-4:])
        more = {"refund": (cost,), "settle": (units,)}.get(verb, ())
        call = partial(getattr(self._limiter, verb), "p", subject, stamp_us, *more)
        try:
            note = self._told.recorder.change(verb, "p", subject, stamp_us, units)
            done: Any = await self._told.recorder.tell_later(note, call)
            self._tell(f"{self._name} {verb} of {stamp_us} of {subject} {units or ''}: {done}")
            if verb == "move" and done.hit not in (None, stamp_us):
                self._held.append((subject, done.hit, cost))
        except Exception as error:  # noqa: BLE001 - a wrong engine raises anything
            self._told.no_answer(self._name, error)
            self._tell(f"{self._name} {verb} of {stamp_us} of {subject}: {error}")

    async def batch(self) -> None:
        """A few at once, some with an id."""
        asked = [
            Attempt("p", self._subject(), 1, f"{self._name}-{self._made}-{i}" if self._draw.random() < 0.3 else None)
            for i in range(self._draw.randint(2, 5))
        ]
        await self._answer([_row(one) for one in asked], self._limiter.decide_batch(asked), list[Any])

    async def joint(self) -> None:
        """All of several subjects, or none; at times once more the same."""
        if self._last_joint is None or self._draw.random() < 0.6:
            named = self._draw.random() < 0.7
            chosen = self._draw.sample(list(self._subjects), self._draw.randint(2, len(self._subjects)))
            self._last_joint = [
                Attempt("p", subject, 1, f"{self._name}-{self._made}-{subject}" if named else None)
                for subject in chosen
            ]
        asked = self._last_joint
        self._made += 1
        name = f"{self._name}-{self._made}"

        def rows_of(answer: Any) -> list[Any]:
            return [part_of(answer, number) for number in range(len(asked))]

        rows = [_row(one) | {"joint": name} for one in asked]
        await self._answer(rows, self._limiter.decide_all(asked), rows_of, len(asked) + 1)
        if self._told.open_refund:
            self._last_joint, self._told.open_refund = None, False

    # --- recording ------------------------------------------------------------------------------------------------

    def _subject(self) -> str | int:
        return self._draw.choice(self._subjects)

    async def _attempt(self, subject: str | int, cost: int, attempt_id: str | None) -> None:
        row = {"policy": "p", "subject": subject, "cost": cost, "id": attempt_id}
        await self._answer([row], self._limiter.decide("p", subject, cost, attempt_id), _one)

    async def _answer(
        self, rows: list[dict[str, Any]], call: Awaitable[Any], rows_of: Callable[[Any], list[Any]], deadlines: int = 1
    ) -> None:
        """Await the answer, record that of each row, and see whether it came in time."""
        loop: SimulatedLoop = asyncio.get_running_loop()  # pyright: ignore[reportAssignmentType] - the simulation's
        asked_us = loop.now_us()
        try:
            answers = rows_of(await call)
        except Exception as error:  # noqa: BLE001 - as above
            answers = [error] * len(rows)
        answered_us = loop.now_us()
        what = ", ".join(f"{row['subject']} x{row['cost']} {row['id'] or ''}".rstrip() for row in rows)
        if answered_us - asked_us > (deadlines * DEADLINE_S + GRACE_S) * 1e6:
            self._told.late.append(f"{self._name} [{what}]: after {(answered_us - asked_us) / 1e3:.0f} ms")
        for row, answer in zip(rows, answers, strict=True):
            self._tell(f"{self._name} asked at {asked_us % 10**9} for {what}: {_said(answer)}")
            self._record(row, asked_us, answered_us, answer)

    def _record(self, row: dict[str, Any], asked_us: int, answered_us: int, answer: Any) -> None:
        told = self._told
        if isinstance(answer, Exception):
            told.no_answer(self._name, answer)
            if not isinstance(answer, StoreUnavailableError):
                told.recorder.outcome(row, asked_us, FOREVER_US, None, answer)
        else:
            told.answers += 1
            told.recorder.outcome(row, asked_us, answered_us, answer)
            if answer.hit is not None:
                self._held.append((row["subject"], answer.hit, row["cost"]))


def _one(answer: Any) -> list[Any]:
    return [answer]


def _row(one: Attempt) -> dict[str, Any]:
    return {"policy": "p", "subject": one.subject, "cost": one.cost, "id": one.id}


def _said(answer: Any) -> str:
    if isinstance(answer, Exception):
        return f"{type(answer).__name__}: {answer}"
    return f"allowed at {answer.hit}" if answer.allowed else f"refused for {answer.retry_after_us} us"
