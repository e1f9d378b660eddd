"""How long `acquire` retries a store that does not answer, and how late it may be for its slot.

A wait of 30 s must not fail on one call's deadline. Each try has the same id, so a retry takes no second slot. Time
spent on retries, and on slots that were missed, counts towards the caller's timeout.
"""

from __future__ import annotations

import random
import secrets
import time

from capline.limiter.checks import seconds_us
from capline.model.errors import StoreError, StoreUnavailableError, StoreUnknownError

__all__ = ["MOST_MISSED", "OUTAGE_S", "Patience"]

OUTAGE_S = 30.0
"""How long to retry if the caller set no timeout."""

MOST_MISSED = 10
"""Slots that one `acquire` may miss before it goes late: never to go would be no better."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class Patience:
    """One `acquire`: the seconds left of its timeout, and the backoff between two tries. `id` names its slot.

    `may_lose_answers`: whether the store is behind a network. Only then is an id needed, which costs some bytes.
    `slack` is how many seconds after its slot the caller may go; None for any.
    """

    def __init__(self, timeout: float | None, *, may_lose_answers: bool, slack: float | None = None) -> None:
        self._slack = None if slack is None else seconds_us(slack, "slack") / 1e6
        self._missed = 0
        self._asked = 0.0
        self.id = secrets.token_hex(12) if may_lose_answers else None
        self._timeout = timeout
        self._began = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        self._given_up = False

    def give_up(self) -> None:
        """Retry no more: the next failure is raised."""
        self._given_up = True

    def asks(self) -> None:
        """The store is about to be asked for a slot."""
        self._asked = time.monotonic()

    def is_late(self, wait: float) -> bool:
        """Whether the slot that was so many seconds away was missed by more than the slack: another is to be taken.

        The wait is counted from before the store was asked, and the slot is no earlier: no clocks are compared.
        """
        late = self._slack is not None and time.monotonic() - self._asked - wait > self._slack
        self._missed += late
        return late and self._missed <= MOST_MISSED

    def left(self) -> float | None:
        """The rest of the timeout in seconds; None if there is no timeout."""
        return None if self._timeout is None else max(0.0, self._timeout - self._waited())

    def pause(self, error: StoreError) -> float:
        """How long to wait before the next try; raises the error if that would be past the timeout."""
        if self._given_up or not isinstance(error, StoreUnavailableError | StoreUnknownError):
            raise error
        pause_s = self._pause_s * random.uniform(0.5, 1)  # noqa: S311 - so that waiting hosts do not all retry at once
        if self._waited() + pause_s > (OUTAGE_S if self._timeout is None else self._timeout):
            raise error
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s

    def not_before(self, seconds: float) -> float:
        """The rest of a wait that the caller set when it began."""
        return max(0.0, seconds - self._waited())

    def _waited(self) -> float:
        return time.monotonic() - self._began
