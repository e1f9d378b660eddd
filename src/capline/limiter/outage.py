"""Who answers while the store cannot: nobody, a fixed answer, or limits kept in this process.

The rule: an outage is the caller's choice, made beforehand, and every answer that the choice gave says so in its
`origin`. A log that is damaged, or of another version, is no outage: it does not pass, and to admit on it would be to
have no limit, so it is raised whatever the choice. What the caller did wrong (a bad name, an id with another cost, a
limiter that is closed) is none either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from capline.limiter.insurance import Insurance, Insurer
from capline.model.decision import Decision, Joint
from capline.model.errors import (
    CaplineError,
    InvalidValueError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreVersionError,
    quoted,
)
from capline.model.late import LateModule
from capline.store.columns import Decisions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from capline.limiter.columns import AttemptColumns
    from capline.limiter.rules import Rules
    from capline.model.attempt import Attempt
    from capline.model.clock import Clock
    from capline.model.subject import Subject
else:
    np = LateModule("numpy")

__all__ = ["ASK_AGAIN_US", "OutagePolicy"]

_CHOICES = ("raise", "allow", "deny")
_ALLOW = Decision(True, None, 0, 0, None, None, "fallback")
ASK_AGAIN_US = 1_000_000
"""How long to wait after an outage's refusal: nobody knows when the store answers again, and `None` would say never."""
_DENY = Decision(False, None, 0, ASK_AGAIN_US, None, None, "fallback")


def is_outage(error: CaplineError) -> TypeGuard[StoreError]:
    """Whether the store could not answer now, rather than never."""
    return isinstance(error, StoreError) and not isinstance(
        error, (StoreClosedError, StoreDamagedError, StoreVersionError)
    )


class OutagePolicy:
    """The choice for an outage. Its verbs stand in for the store's, or raise the error where that is the choice."""

    def __init__(self, choice: str | Insurance, rules: Rules, clock: Clock | None) -> None:
        self._insurer = Insurer(choice, rules, clock) if isinstance(choice, Insurance) else None
        if self._insurer is None and choice not in _CHOICES:
            raise InvalidValueError(
                f"on_store_error is one of {', '.join(_CHOICES)}, or Insurance(hosts=...), not {quoted(choice)}"
            )
        self._raises = choice == "raise"
        self._answer = _ALLOW if choice == "allow" else _DENY

    def check(self, error: StoreError) -> None:
        """Raise the error where that is the choice, or where it is no outage."""
        if self._raises or not is_outage(error):
            raise error

    def decide(self, attempt: Attempt, error: StoreError) -> Decision:
        """Stand in for `decide`."""
        self.check(error)
        return self._answer if self._insurer is None else self._insurer.decide(attempt)

    def peek(self, attempt: Attempt, error: StoreError) -> Decision:
        """Stand in for `peek`."""
        self.check(error)
        return self._answer if self._insurer is None else self._insurer.peek(attempt)

    def place(self, attempt: Attempt, max_wait_us: int | None, not_before_us: int, error: StoreError) -> Decision:
        """Stand in for `place`."""
        self.check(error)
        return self._answer if self._insurer is None else self._insurer.place(attempt, max_wait_us, not_before_us)

    def joint(self, attempts: Sequence[Attempt], error: StoreError, *, consume: bool) -> Joint:
        """Stand in for `decide_all`, or where nothing is to be consumed for `peek_all`."""
        self.check(error)
        if self._insurer is not None:
            return self._insurer.joint(attempts, consume=consume)
        return Joint.of(self._answer, (), 0)

    def item(self, attempt: Attempt, error: StoreError) -> Decision | CaplineError:
        """Stand in for one item of `decide_batch`, whose error stays in its place where the choice is to raise."""
        try:
            return self.decide(attempt, error)
        except CaplineError as refused:
            return refused

    def many(self, asked: AttemptColumns, error: StoreError, *, consume: bool) -> Decisions:
        """Stand in for `decide_many`, or where nothing is to be consumed for `peek_many`."""
        self.check(error)
        if self._insurer is not None:
            return self._insurer.many(asked, consume=consume)
        columns = Decisions.of([self._answer] * len(asked.subjects), ())
        columns.origin = self._answer.origin
        return columns

    def fix(self, asked: AttemptColumns, answers: Decisions, *, consume: bool) -> None:
        """Stand in for the store in the rows that it could not answer; they stay so where the choice is to raise."""
        failed = {row: error for row, error in answers.errors.items() if is_outage(error)}
        if self._raises or not failed:
            return
        rows = np.array(list(failed), np.intp)
        part = self.many(asked.only(rows), next(iter(failed.values())), consume=consume)
        index_from = len(answers.limits)
        answers.limits += part.limits
        answers.allowed[rows] = part.allowed
        answers.limit_index[rows] = np.where(part.limit_index < 0, -1, part.limit_index + index_from)
        answers.remaining[rows] = part.remaining
        answers.retry_after_us[rows] = part.retry_after_us
        answers.reset_after_us[rows] = part.reset_after_us
        answers.hit[rows] = part.hit
        answers.errors = {row: error for row, error in answers.errors.items() if row not in failed}
        answers.origins = {**answers.origins, **dict.fromkeys(failed, part.origin)}

    def use(self, rules: Rules) -> None:
        """Other policies are in force."""
        if self._insurer is not None:
            self._insurer.use(rules)

    def forget(self, subject: Subject) -> None:
        """The subject is erased."""
        if self._insurer is not None:
            self._insurer.forget(subject)

    def sweep(self) -> None:
        """Let go of what no window needs."""
        if self._insurer is not None:
            self._insurer.sweep()
