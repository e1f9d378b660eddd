"""What task queues share: a task has one slot, kept by its id, and comes back shortly before it.

    schedule(id=key)  ->  far away: come back `wait - early` later  |  near: sleep the rest, go  |  missed: take another

The rule: a slot is used once. A slot that was missed is given back only if the task cannot have run in it; else it is
left, and the next is taken under the next key. A task that is interrupted while it sleeps gives its slot back.
"""

import time
from collections.abc import Callable
from typing import Any, Required, TypedDict

from capline.limiter.arguments.checks import refusal_text, seconds_us
from capline.limiter.limiter import Limiter
from capline.model.attempt import check_cost
from capline.model.decision import Decision, LimitExceeded
from capline.model.errors import InvalidTypeError, StoreError, quoted
from capline.model.subject import Subject, check_subject

MOST_MISSED = 10
"""Slots that one task may miss before it goes late: never going would be no better."""


class Terms(TypedDict, total=False):
    """What a limited task takes beside its limiter and policy; see `TaskSlots`."""

    subject: Required[Subject | Callable[..., Subject]]
    cost: int | Callable[..., int]
    early: float
    late: float
    max_wait: float | None


class TaskSlots:
    """The settings of a limited task, checked.

    `limiter`   a `Limiter`, or a function that gives one: called when a task runs, so after a worker's fork
    `subject`   who is limited, or a function of the task's own arguments; `cost` alike
    `early`     how long before its slot a task is brought back, in seconds: it sleeps the rest in the worker
    `late`      how long after its slot a task may still go, in seconds
    `max_wait`  the longest that a slot may be away, in seconds (None: no bound); past it `LimitExceeded` is raised
    """

    def __init__(
        self,
        limiter: Limiter | Callable[[], Limiter],
        policy: str,
        *,
        subject: Subject | Callable[..., Subject],
        cost: int | Callable[..., int] = 1,
        early: float = 0.5,
        late: float = 0.1,
        max_wait: float | None = None,
    ) -> None:
        if not isinstance(limiter, Limiter) and not callable(limiter):
            raise InvalidTypeError(f"limiter is a Limiter, or a function that gives one, not {quoted(limiter)}")
        seconds_us(early, "early")
        seconds_us(late, "late")
        if max_wait is not None:
            seconds_us(max_wait, "max_wait")
        self._limiter = limiter
        self._policy = policy
        self._subject = subject if callable(subject) else check_subject(subject)
        self._cost = cost if callable(cost) else check_cost(cost)
        self._early, self._late, self._max_wait = early, late, max_wait

    def wait(self, key: str, arguments: tuple[Any, ...], options: dict[str, Any], *, may_have_run: bool) -> float:
        """0 once it is this task's turn; else the seconds after which the task is to come back.

        `key` is the task's id, and another for each time that the task is tried anew. `may_have_run`: whether the task
        may have been begun under this key before, as after the death of a worker.
        """
        limiter, subject, cost = self._resolved(arguments, options)
        used = 0
        for missed in range(MOST_MISSED + 1):
            id = f"{key}:{used}" if used else key
            begun = time.monotonic()
            slot = limiter.schedule(self._policy, subject, cost, id, max_wait=self._max_wait)
            if not slot.allowed:
                raise LimitExceeded(refusal_text(self._policy, subject, slot), slot)
            if slot.wait > self._early:
                return slot.wait - self._early
            goes_late = missed == MOST_MISSED or slot.origin != "store"
            if slot.late <= self._late or goes_late:
                self._sleep(limiter, subject, cost, slot)
                # Time that passed here, plus `late` by the store's clock: the two clocks are not compared.
                if time.monotonic() - begun - slot.wait + slot.late <= self._late or goes_late:
                    break
            if may_have_run and slot.late:
                used += 1
            else:
                limiter.refund(self._policy, subject, slot.hit, cost)
        return 0.0

    def go(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Wait for a slot where there is no queue to come back from."""
        limiter, subject, cost = self._resolved(arguments, options)
        with limiter.acquire(self._policy, subject, cost, timeout=self._max_wait, slack=self._late):
            pass

    def _resolved(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Limiter, Subject, int]:
        limiter = self._limiter if isinstance(self._limiter, Limiter) else self._limiter()
        subject = self._subject(*arguments, **options) if callable(self._subject) else self._subject
        cost = self._cost(*arguments, **options) if callable(self._cost) else self._cost
        return limiter, subject, cost

    def _sleep(self, limiter: Limiter, subject: Subject, cost: int, slot: Decision) -> None:
        try:
            time.sleep(slot.wait)
        except BaseException as stopped:
            try:
                limiter.refund(self._policy, subject, slot.hit, cost)
            except StoreError as error:
                stopped.add_note(f"the slot was not given back: {error}")
            raise
