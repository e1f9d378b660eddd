"""The circuit breaker of one server: after failures in a row, calls fail at once instead of each waiting its deadline.

    closed ──FAILURES in a row──▶ open ──pause is over──▶ one trial ──answer──▶ closed
                                   ▲                          │
                                   └───── no answer, a longer pause ──┘

Pauses double up to the longest, and each is drawn at random from its upper half: hosts do not come back at once.
"""

from __future__ import annotations

import random

__all__ = ["Breaker"]

FAILURES = 3
FIRST_S = 0.1
LONGEST_S = 5.0


class Breaker:
    """Asked before a call, told after it, in monotonic seconds. Threads may share it: the worst is one more trial."""

    __slots__ = ("_pause_s", "failures", "open_until", "why")

    def __init__(self) -> None:
        self.failures = 0
        """In a row, up to now."""
        self._pause_s = FIRST_S
        self.open_until = 0.0
        """Calls before this instant are not to be made; 0: closed."""
        self.why = ""
        """What the last failure was."""

    def blocks(self, now: float) -> bool:
        """Whether a call must not be made. When the pause is over, the caller who is let through is the trial."""
        if not self.open_until:
            return False
        if now < self.open_until:
            return True
        self.open_until = now + self._pause_s
        return False

    def answered(self) -> None:
        """The server answered, be it with an error."""
        if self.failures:
            self.failures, self._pause_s, self.open_until = 0, FIRST_S, 0.0

    def failed(self, now: float, why: str) -> None:
        """No connection, or no answer by the deadline."""
        self.why = why
        self.failures += 1
        if self.failures >= FAILURES:
            self.open_until = now + self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
            self._pause_s = min(self._pause_s * 2, LONGEST_S)
