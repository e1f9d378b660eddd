"""Attempts over several subjects: all or nothing, and a refusal that is justified by one part at least.

A part that was allowed is judged as any attempt on its log. A refusal is the answer to all parts, with the retry_after
of the part that is blocked longest: so at least one log must justify it, and at least one its retry_after. A slot is
one instant in all logs, and the first free one in at least one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proof.checker.events import Attempt
    from proof.checker.report import Report

__all__ = ["Joints"]


class Joints:
    """What each log says of its parts, until all are known."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[bool | None, Attempt]] = {}
        self._said: dict[str, list[tuple[Attempt, bool, bool]]] = {}
        self._placed: dict[str, list[tuple[Attempt, bool]]] = {}

    def note(self, attempts: Iterable[Attempt]) -> None:
        """The answers of one log."""
        for attempt in attempts:
            if attempt.joint is not None:
                self._answers.setdefault(attempt.joint, {}).setdefault(attempt.allowed, attempt)

    def judged(self, attempt: Attempt, *, due: bool, right: bool) -> None:
        """Whether the log of this part had to refuse it, and told the right time."""
        if attempt.joint is not None:
            self._said.setdefault(attempt.joint, []).append((attempt, due, right))

    def placed(self, attempt: Attempt, *, first: bool) -> None:
        """Whether the slot of this part is the first that was free in its log."""
        if attempt.joint is not None:
            self._placed.setdefault(attempt.joint, []).append((attempt, first))

    def check(self, report: Report) -> None:
        """Once all logs were judged."""
        for answers in self._answers.values():
            if True in answers and False in answers:
                report.add("joint-torn", answers[False].line, f"line {answers[True].line} is another part, and allowed")
        for placed in self._placed.values():
            if len({attempt.hit for attempt, _ in placed}) > 1:
                report.add("joint-torn", placed[0][0].line, "one slot has several instants")
            elif not any(first for _, first in placed):
                detail = f"in each of {len(placed)} logs a sooner one was free"
                report.add("slot-not-first", placed[0][0].line, detail)
        for said in self._said.values():
            attempt = said[0][0]
            if not any(due for _, due, _ in said):
                detail = f"{len(said)} parts, and each of them fitted all the time"
                report.add("refusal-unjustified", attempt.line, detail)
            elif not any(right for _, _, right in said):
                detail = f"a retry_after of {attempt.retry_after_us} us fits no instant of any part"
                report.add("retry-after-wrong", attempt.line, detail)
