"""The answer while the store cannot give one: raise, fail open, fail closed, or limits kept in this process.

The rule: the caller chooses beforehand, and every answer by that choice says so in its `origin`. A log that is damaged,
or of another version, is no outage: it does not pass by itself, and failing open on it would mean no limit at all. So
it is raised whatever the choice. A caller's mistake (a bad name, an id with another cost, a closed limiter) is no
outage either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from capline.limiter.outage.insurance import ASK_AGAIN_US, Insurance, Insurer
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
from capline.store.columns import Decisions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from capline.config.configuration import Configuration
    from capline.limiter.arguments.columns import AttemptColumns
    from capline.limiter.policies.rules import Rules
    from capline.model.attempt import Attempt
    from capline.model.clock import Clock
    from capline.model.subject import Subject
    from capline.store.protocol import Kind, Mode
else:
    from capline.model.arrays import np

__all__ = ["ASK_AGAIN_US", "OutagePolicy"]

_CHOICES = ("raise", "allow", "deny")
_ALLOW = Decision(True, None, 0, 0, None, None, "fallback")
_DENY = Decision(False, None, 0, ASK_AGAIN_US, None, None, "fallback")


def is_outage(error: CaplineError) -> TypeGuard[StoreError]:
    """Whether the store could not answer now, but may later."""
    return isinstance(error, StoreError) and not isinstance(
        error, (StoreClosedError, StoreDamagedError, StoreVersionError)
    )


class OutagePolicy:
    """The choice for an outage. Its verbs answer in place of the store's, or raise the error if that is the choice."""

    def __init__(
        self, choice: str | Insurance, rules: Rules, clock: Clock | None, insurer: Insurer | None = None
    ) -> None:
        self._insurer = Insurer(choice, rules, clock, insurer) if isinstance(choice, Insurance) else None
        if self._insurer is None and choice not in _CHOICES:
            raise InvalidValueError(
                f"on_store_error is one of {', '.join(_CHOICES)}, or Insurance(hosts=...), not {quoted(choice)}"
            )
        self._choice, self._clock = choice, clock
        self._raises = choice == "raise"
        self._answer = _ALLOW if choice == "allow" else _DENY

    def beside(self, rules: Rules) -> OutagePolicy:
        """The same choice for other policies."""
        return OutagePolicy(self._choice, rules, self._clock, self._insurer)

    def check(self, error: StoreError) -> None:
        """Raise the error if that is the choice, or if it is no outage."""
        if self._raises or not is_outage(error):
            raise error

    def single(self, kind: Kind, error: StoreError, attempt: Attempt, **times: int | None) -> Decision:
        """Answer in place of a store's step of this kind, with such times. No charge can wait."""
        if kind == "charge":
            raise error
        self.check(error)
        return self._answer if self._insurer is None else self._insurer.single(kind, attempt, **times)

    def joint(self, kind: Kind, error: StoreError, attempts: Sequence[Attempt], **times: int | None) -> Joint:
        """Answer in place of a store's step on several logs."""
        self.check(error)
        if self._insurer is not None:
            return self._insurer.joint(kind, attempts, **times)
        return Joint.of(self._answer, (), 0)

    def item(self, attempt: Attempt, error: StoreError) -> Decision | CaplineError:
        """Answer in place of one item of `decide_batch`; if the choice is to raise, its error stays in its place."""
        try:
            return self.single("decide", error, attempt)
        except CaplineError as refused:
            return refused

    def many(self, mode: Mode, error: StoreError, checked: AttemptColumns) -> Decisions:
        """Answer in place of a store's columns."""
        self.check(error)
        if self._insurer is not None:
            return self._insurer.many(mode, checked)
        columns = Decisions.of([self._answer] * len(checked.subjects), ())
        columns.origin = self._answer.origin
        return columns

    def fix(self, mode: Mode, columns: AttemptColumns, answers: Decisions) -> None:
        """Answer the rows that the store could not answer; if the choice is to raise, they keep their errors."""
        failed = {row: error for row, error in answers.errors.items() if is_outage(error)}
        if self._raises or not failed:
            return
        rows = np.array(list(failed), np.intp)
        part = self.many(mode, next(iter(failed.values())), columns.only(rows))
        answers.put(rows, part)
        answers.errors = {row: error for row, error in answers.errors.items() if row not in failed}
        answers.origins = {**answers.origins, **dict.fromkeys(failed, part.origin)}

    def use(self, rules: Rules, config: Configuration | None, names: Iterable[str] | None = None) -> None:
        """Other policies are in force, or other overrides: of these names alone, where they are given."""
        if self._insurer is not None:
            self._insurer.use(rules, config, names)

    def forget(self, subject: Subject) -> None:
        """The subject is erased."""
        if self._insurer is not None:
            self._insurer.forget(subject)

    def sweep(self) -> None:
        """Remove what no window needs."""
        if self._insurer is not None:
            self._insurer.sweep()
