"""Single attempts and refunds on a server, as generators: what to send, then what the replies mean. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from capline.model.errors import CaplineError
from capline.store.redis.cluster.router import UnderReplicated
from capline.store.redis.scripting.replies import (
    NO_ROOM,
    damaged,
    one_decision,
)
from capline.store.redis.scripting.requests import (
    COMMITS,
    DECIDE,
    PEEK,
    RESERVE,
    SCHEDULE,
    SETTLES,
    Head,
    hit_call,
    one_payload,
    single_call,
)
from capline.store.redis.scripting.scripts import ONE, Call
from capline.store.redis.session import sound
from capline.window.charge import too_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from capline.model.decision import Decision
    from capline.model.subject import Subject
    from capline.store.redis.io.wire import Reply, Steps
    from capline.store.redis.scripting.compiled_rule import RedisRule
    from capline.store.redis.session import Session

__all__ = ["Verbs"]

ROWS_A_ROUND = 10_000
"""Refunds in one round trip."""


class Verbs:
    """The verbs for one subject, and refunds. Threads share it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._router = session.router

    def one(
        self,
        compiled: RedisRule,
        subject: Subject,
        mode: int,
        cost: int,
        fingerprint: int,
        slot: tuple[int, int] = (-1, 0),
    ) -> tuple[Call, int]:
        """The call that decides, peeks, takes a slot or charges for one attempt, and how many replicas must have it.

        `slot` is the most (-1: no bound) and the least us that the slot may be from now.
        """
        replicas = 0 if mode == PEEK else compiled.family.replicas
        if compiled.short and cost == 1 and not fingerprint and mode in (DECIDE, SCHEDULE):
            wish = slot if mode == SCHEDULE else None
            return Call(*one_payload(compiled, subject, self._session.now(), wish), ONE), replicas
        head = Head(compiled.family, mode, (compiled,), self._session.now(), cost, *slot)
        return single_call(head, subject, fingerprint), replicas

    def reserve_call(
        self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int, ttl_us: int
    ) -> tuple[Call, int]:
        """The call that reserves for one attempt, and how many replicas must have it."""
        head = Head(compiled.family, RESERVE, (compiled,), self._session.now(), cost, ttl_us)
        return single_call(head, subject, fingerprint), compiled.family.replicas

    def one_answer(self, outcome: Reply, compiled: RedisRule, cost: int, mode: int) -> Decision:
        """The decision in the outcome of such a call; raises its error."""
        if type(outcome) is UnderReplicated:
            decision = one_decision(outcome.reply, compiled, cost, slot=mode == SCHEDULE)
            if decision.allowed:
                raise outcome.error
            return decision
        return one_decision(sound(outcome), compiled, cost, slot=mode == SCHEDULE, peeked=mode == PEEK)

    def alone(self, call: Call, replicas: int = 0) -> Steps[Reply | CaplineError]:
        """The outcome of a single call."""
        [outcome] = yield from self._router.run([call], self._session.until(), replicas)
        return outcome

    def given_back(self, outcome: Reply, compiled: RedisRule) -> bool:
        """Whether a `refund_call` found the hit; raises its error."""
        given = sound(outcome)
        if given < 0:
            raise damaged(compiled)
        return bool(given)

    def refund_many(
        self, compiled: RedisRule, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int
    ) -> Steps[NDArray[np.bool_]]:
        """Refund many hits; raises the first error after all were tried."""
        given = np.zeros(len(subjects), np.bool_)
        failed: CaplineError | None = None
        for first in range(0, len(subjects), ROWS_A_ROUND):
            calls = [
                hit_call(compiled, subject, int(stamp), cost, self._session.now())
                for subject, stamp in zip(
                    _listed(subjects[first : first + ROWS_A_ROUND]),
                    stamps_us[first : first + ROWS_A_ROUND],
                    strict=True,
                )
            ]
            outcomes = yield from self._router.run(calls, self._session.bulk_until())
            for row, outcome in enumerate(outcomes, first):
                try:
                    given[row] = self.given_back(outcome, compiled)
                except CaplineError as error:
                    failed = failed or error
        if failed is not None:
            raise failed
        return given

    def refund_call(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int) -> Call:
        """The call that refunds one hit."""
        return hit_call(compiled, subject, stamp_us, cost, self._session.now())

    def settle_call(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int) -> tuple[Call, int]:
        """The call that settles one hit at this cost, and how many replicas must have it."""
        call = hit_call(compiled, subject, stamp_us, cost, self._session.now(), SETTLES)
        return call, compiled.family.replicas if cost else 0

    def commit_call(self, compiled: RedisRule, subject: Subject, stamp_us: int) -> tuple[Call, int]:
        """The call that commits one hit, and how many replicas must have it."""
        call = hit_call(compiled, subject, stamp_us, 1, self._session.now(), COMMITS)
        return call, compiled.family.replicas

    def committed(self, outcome: Reply, compiled: RedisRule) -> bool:
        """Whether the hit of a `commit_call` counts; raises its error, also where too few replicas have it."""
        counts = self.given_back(outcome, compiled)
        if counts and type(outcome) is UnderReplicated:
            raise outcome.error
        return counts

    def settled(self, outcome: Reply, compiled: RedisRule, cost: int) -> bool:
        """Whether a `settle_call` found the hit; raises its error, also where too few replicas have it.

        Less units wait too: a replica may lack the settlement before this one, and have fewer still.
        """
        if sound(outcome) == NO_ROOM:
            raise too_many(cost)
        return self.committed(outcome, compiled)


def _listed(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values
