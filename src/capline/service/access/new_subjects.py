"""A bound on the new subjects that a token creates in a minute, so that nobody fills the store with made-up names.

The rule: past the bound a token is refused new subjects (429, Retry-After); existing ones go on. The bound is a policy
in the same store, so workers and instances share it. A decision on an existing subject costs nothing more, one on a new
subject a second call. Requests under way when the bound is reached, batches among them, still pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from capline.limiter.policies.shadow import SHADOW
from capline.model.errors import StoreError
from capline.service.http.problems import Problem

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.model.decision import Decision, Joint
    from capline.store.columns import Decisions

NAMESPACE = "capline-service"
POLICY = "new-subjects"
_NOBODY = "nobody"
_MOST_HELD = 10_000


class NewSubjects:
    """Counts with a limiter that has the policy `POLICY`, for each token."""

    def __init__(self, limiter: AsyncLimiter, clock: Callable[[], float] = time.monotonic) -> None:
        self._limiter = limiter
        self._clock = clock
        self._full: dict[str, float] = {}
        """By token: until when it is known to have used up its bound."""

    async def check(
        self, who: str, peek: Callable[[], Awaitable[Decision]], cost: int, *, charged: bool = False
    ) -> None:
        """Raise if the token has used up its bound and this is a new subject, by what `peek` answers; see `is_new`."""
        wait_s = self._wait_s(who)
        if wait_s and is_new(await peek(), cost, charged=charged):
            raise _refused(wait_s)

    def check_many(self, who: str) -> None:
        """Raise where the token has used up its bound: a batch may have new subjects."""
        wait_s = self._wait_s(who)
        if wait_s:
            raise _refused(wait_s)

    async def created(self, who: str, count: int) -> None:
        """Record that the token created so many."""
        if not count:
            return
        quota = self._limiter.policies[POLICY].limits[0].quota  # pyright: ignore[reportAttributeAccessIssue] - a plain limit
        try:
            decision = await self._limiter.decide(POLICY, who or _NOBODY, min(count, quota))
        except StoreError:
            return  # the decision has been made: this bound is not worth its answer
        if not decision.allowed or count > quota:
            if len(self._full) >= _MOST_HELD:
                self._full.clear()
            wait_s = decision.reset_after if decision.allowed else decision.retry_after
            self._full[who] = self._clock() + (wait_s or 0)

    def _wait_s(self, who: str) -> float:
        until = self._full.get(who)
        if until is None:
            return 0
        left_s = until - self._clock()
        if left_s <= 0:
            del self._full[who]
        return max(0, left_s)


def is_new(decision: Decision, cost: int, *, charged: bool = False) -> bool:
    """Whether the log was empty before: of every limit nothing but this cost is used.

    A refusal records nothing, and so creates nobody, unless the cost is to be `charged` whatever the limits say.
    """
    if decision.limit is None:
        return False
    if not decision.allowed or decision.origin == SHADOW:
        return charged and not any(state.used for state in decision.limits)
    if decision.remaining != max(0, decision.limit.quota - cost):
        return False
    return all(state.used <= cost for state in decision.limits)


def new_parts(joint: Joint, costs: Sequence[int]) -> int:
    """How many logs of an answer over several subjects were empty before: nothing but its own cost is used."""
    return sum(
        all(state.remaining >= state.limit.quota - cost for state in states if state.limit.quota)
        for states, cost in zip(joint.limits, costs, strict=False)
        if joint.allowed and states
    )


def count_new(answers: Decisions, cost: int) -> int:
    """How many rows were allowed with nothing but this cost used, of the limit that they name."""
    columns = answers.allowed.tolist(), answers.remaining.tolist(), answers.limit_index.tolist()
    quotas = [limit.quota for limit in answers.limits]
    rows: Iterable[tuple[bool, int, int]] = zip(*columns, strict=True)
    return sum(
        allowed and at >= 0 and left == quotas[at] - cost and answers.origins.get(row) != SHADOW
        for row, (allowed, left, at) in enumerate(rows)
    )


def _refused(wait_s: float) -> Problem:
    wait = max(1, math.ceil(wait_s))
    return Problem(
        HTTPStatus.TOO_MANY_REQUESTS,
        f"this token has created as many new subjects as it may in a minute; come again in {wait} s",
        {"Retry-After": str(wait)},
    )
