"""What the transports and the adapter share: everything about a limited call but the call and the waiting.

    subject of the request  ->  [acquire a slot, call]  ->  answer  ->  done | the same again, later | hold back, done

The rule: a provider that says "not before" is believed by every host. Its word is recorded as one unit of the same log,
placed at the instant it named: nobody anywhere is given a slot before that one (`schedule(..., not_before=...)`). Where
the request is sent again, the unit is its own slot; else it is spent. Where all are held back for as long
already, nothing is spent. Slots that were given out before the word came are not taken back.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from capline.limiter.checks import seconds_us
from capline.middleware.retry_after import retry_after
from capline.model.errors import InvalidTypeError, InvalidValueError, StoreError
from capline.model.subject import Subject, check_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from capline.limiter.limiter import Limiter
    from capline.model.decision import Decision

__all__ = ["Gate", "Turn", "is_safe_to_repeat"]

MOST_RETRIES = 100
MOST_MISSED = 10
"""Slots that one request may miss before it goes late."""

_log = logging.getLogger("capline")
_R = TypeVar("_R")
_A = TypeVar("_A", bound="Answer")

# RFC 9110: the same request again has the same effect as one.
_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"})


class Headed(Protocol):
    """What is looked at of an answer, whatever the client."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


class Answer(Headed, Protocol):
    """One that is closed at once."""

    def close(self) -> None: ...


class Gate(Generic[_R]):
    """The settings of a limited client, checked; and what an answer means. `_R` is the client's kind of request."""

    def __init__(
        self,
        policy: str,
        subject: Subject | Callable[[_R], Subject] | None,
        host: Callable[[_R], str],
        max_wait: float | None,
        slack: float | None,
        retries: int,
    ) -> None:
        for seconds, what in ((max_wait, "max_wait"), (slack, "slack")):
            if seconds is not None:
                seconds_us(seconds, what)
        if type(retries) is not int:
            raise InvalidTypeError(f"retries is a whole number, not {retries!r}")
        if not 0 <= retries <= MOST_RETRIES:
            raise InvalidValueError(f"retries is 0 to {MOST_RETRIES}, not {retries}")
        self.policy = policy
        self.max_wait = max_wait
        self.slack = slack
        self.retries = retries
        self._subject = host if subject is None else subject if callable(subject) else check_subject(subject)

    def subject_of(self, request: _R) -> Subject:
        """Who is limited for this request."""
        subject = self._subject
        return subject(request) if callable(subject) else subject

    def sent(self, limiter: Limiter, request: _R, send: Callable[[], _A], repeatable: Callable[[int], bool]) -> _A:
        """Send the request in slots of its own; `repeatable` says whether it may be sent again after this status."""
        subject = self.subject_of(request)
        turn = Turn(self)
        while True:
            with limiter.acquire(self.policy, subject, timeout=self.max_wait, not_before=turn.asks()) as slot:
                if turn.is_late(slot):
                    limiter.refund(self.policy, subject, slot.hit)
                    continue
                answer = send()
            if turn.is_last(answer, repeatable=repeatable(answer.status_code)):
                break
            answer.close()
        if turn.wait:
            try:
                limiter.schedule(self.policy, subject, max_wait=turn.wait, not_before=turn.wait)
            except StoreError as error:
                turn.not_held(error)
            except BaseException:
                # Nobody will read the answer, and it must not keep its connection.
                answer.close()
                raise
        return answer


class Turn:
    """One request on its way: how long the provider asked it to wait last, in seconds, and the retries left."""

    def __init__(self, gate: Gate[Any]) -> None:
        self.wait = 0.0
        self._gate = gate
        self._left = gate.retries
        self._missed = 0
        self._asked_at = 0.0

    def asks(self) -> float:
        """A slot is being asked for: how far away it is at least."""
        self._asked_at = time.monotonic()
        return self.wait

    def is_late(self, slot: Decision) -> bool:
        """Whether the slot was missed by more than the slack, and is to be given back for another.

        The store answered after it was asked, so the slot is no earlier than its wait from then on: no clocks are
        compared. Who is late again and again goes all the same: a request that never goes is no better.
        """
        slack = self._gate.slack
        if slack is None or time.monotonic() - self._asked_at - slot.wait <= slack or self._missed == MOST_MISSED:
            return False
        self._missed += 1
        self.wait = 0.0
        return True

    def is_last(self, answer: Headed, *, repeatable: bool) -> bool:
        """Whether this answer is the caller's; if not, the request goes again after `wait`.

        If it is, `wait` is how long all hosts are to be held back.
        """
        asked = retry_after(answer.status_code, answer.headers.get("Retry-After"), answer.headers.get("Date"))
        self.wait = asked or 0.0
        self._left -= 1
        self._missed = 0
        longest = self._gate.max_wait
        too_long = longest is not None and self.wait > longest
        return asked is None or self._left < 0 or too_long or not repeatable

    def not_held(self, error: StoreError) -> None:
        """Tell that the hold could not be recorded: the answer is handed on all the same."""
        _log.warning("a provider asked to wait %.0f s; other hosts do not know of it: %s", self.wait, error)


def is_safe_to_repeat(method: str, status: int, headers: Mapping[str, Any]) -> bool:
    """Whether the same request again cannot do its work twice.

    429 says that it was not done. 503 does not say so: there a method must be idempotent, or the request have a key
    that makes it so.
    """
    return status == 429 or method.upper() in _IDEMPOTENT or "Idempotency-Key" in headers  # noqa: PLR2004 - the status
