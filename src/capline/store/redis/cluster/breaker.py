"""The circuit breaker of one server: after some failures in a row calls fail at once and do not wait for a deadline.

    closed ──FAILURES in a row──▶ open ──pause is over──▶ one trial ──answer──▶ closed
                                   ▲                          │
                                   └───── no answer, a longer pause ──┘

Backoff: pauses double up to the longest, each drawn at random from its upper half, so that hosts do not all retry at
the same instant. Only a trial doubles: calls that were under way when the breaker opened fail too, and say nothing new.
"""

import random

FAILURES = 3
FIRST_S = 0.1
LONGEST_S = 5.0


class Breaker:
    """Call `blocks` before a call, `answered` or `failed` after it; times are monotonic seconds.

    Threads may share it: a race costs at most one more trial.
    """

    __slots__ = ("_pause_s", "_trying", "failures", "open_until", "why")

    def __init__(self) -> None:
        self.failures = 0
        """Failures in a row."""
        self._pause_s = FIRST_S
        self._trying = False
        self.open_until = 0.0
        """The breaker is open until this instant; 0: closed."""
        self.why = ""
        """The last failure's message."""

    def blocks(self, now: float) -> bool:
        """Whether the breaker is open. After the pause one caller gets False: its call is the trial."""
        if not self.open_until:
            return False
        if now < self.open_until:
            return True
        self._trying = True
        self.open_until = now + self._pause_s
        return False

    def answered(self) -> None:
        """The server answered, perhaps with an error."""
        if self.failures:
            self.failures, self._pause_s, self._trying, self.open_until = 0, FIRST_S, False, 0.0

    def failed(self, now: float, why: str) -> None:
        """No connection, or no answer by the deadline."""
        self.why = why
        self.failures += 1
        if self._trying:
            self._trying = False
            self._pause_s = min(self._pause_s * 2, LONGEST_S)
        elif self.open_until or self.failures < FAILURES:
            return
        self.open_until = now + self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
