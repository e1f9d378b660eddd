"""What the limited clients share: everything about a call except sending it and the waiting.

    subject of the request  ->  [acquire a slot, call]  ->  answer  ->  done | the same again, later | hold back, done

The rule: when a provider answers with `Retry-After`, every host waits. One unit is recorded in the same log at the
instant that the provider named (`schedule(..., not_before=...)`), so no host gets a slot before it. If the request is
sent again, that unit is its own slot; else it is used up. If all hosts wait at least that long already, no unit is
used. Slots that were taken before the answer came stay valid.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from capline.limiter.arguments.checks import seconds_us
from capline.limiter.patience import numbered
from capline.model.errors import InvalidTypeError, InvalidValueError, StoreError, quoted
from capline.model.retry_after import wait_asked
from capline.model.subject import Subject, check_subject

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.limiter import Limiter

MOST_RETRIES = 100

_log = logging.getLogger("capline")
_R = TypeVar("_R")

# RFC 9110: the same request again has the same effect as one.
_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"})


class Terms(TypedDict, Generic[_R], total=False):
    """What a limited client takes beside its limiter and policy; `capline.middleware.httpx` says what each does."""

    subject: Subject | Callable[[_R], Subject] | None
    max_wait: float | None
    slack: float | None
    retries: int
    id: Callable[[_R], str | None] | None


class Gate(Generic[_R]):
    """The settings of a limited client, checked; and what an answer means. `_R` is the client's kind of request."""

    def __init__(
        self,
        policy: str,
        host: Callable[[_R], str],
        *,
        subject: Subject | Callable[[_R], Subject] | None = None,
        max_wait: float | None = None,
        slack: float | None = None,
        retries: int = 0,
        id: Callable[[_R], str | None] | None = None,
    ) -> None:
        for seconds, what in ((max_wait, "max_wait"), (slack, "slack")):
            if seconds is not None:
                seconds_us(seconds, what)
        if type(retries) is not int:
            raise InvalidTypeError(f"retries is a whole number, not {retries!r}")
        if not 0 <= retries <= MOST_RETRIES:
            raise InvalidValueError(f"retries is 0 to {MOST_RETRIES}, not {retries}")
        if id is not None and not callable(id):
            raise InvalidTypeError(f"id is a function of the request, which gives each its own, not {quoted(id)}")
        self.policy = policy
        self.max_wait = max_wait
        self.slack = slack
        self.retries = retries
        self._id = id
        self._subject = host if subject is None else subject if callable(subject) else check_subject(subject)

    def subject_of(self, request: _R) -> Subject:
        """Who is limited for this request."""
        subject = self._subject
        return subject(request) if callable(subject) else subject

    def turn(self, request: _R) -> Turn:
        """The request's turn, from now on."""
        return Turn(self, None if self._id is None else self._id(request))

    def sent(self, limiter: Limiter, request: _R, send: Callable[[], Any], repeatable: Callable[[int], bool]) -> Any:
        """Send the request in slots of its own; `repeatable` says whether it may be sent again after this status."""
        subject = self.subject_of(request)
        turn = self.turn(request)
        while True:
            with limiter.acquire(self.policy, subject, **turn.terms()):
                answer = send()
            if turn.is_last(answer.status_code, answer.headers, repeatable=repeatable(answer.status_code)):
                break
            answer.close()
        try:
            turn.hold(limiter, subject)
        except BaseException:
            # Nobody will read the answer; it must not hold its connection.
            answer.close()
            raise
        return answer

    async def awaited(
        self,
        limiter: AsyncLimiter,
        request: _R,
        send: Callable[[], Awaitable[Any]],
        repeatable: Callable[[int], bool],
        status: str = "status_code",
        close: Callable[[Any], Awaitable[None]] = methodcaller("aclose"),
    ) -> Any:
        """`sent`, awaited. A cancelled request gives its slot back, unless it was sent already.

        `status` is the name of an answer's status, `close` lets the connection of an answer go that nobody reads.
        """
        subject = self.subject_of(request)
        turn = self.turn(request)
        while True:
            async with limiter.acquire(self.policy, subject, **turn.terms()):
                answer = await send()
            said = getattr(answer, status)
            if turn.is_last(said, answer.headers, repeatable=repeatable(said)):
                break
            await close(answer)
        if turn.wait:
            try:
                await limiter.schedule(self.policy, subject, max_wait=turn.wait, not_before=turn.wait)
            except StoreError as error:
                turn.not_held(error)
            except BaseException:
                # Cancelled: nobody will read the answer, and it must not keep its connection.
                await close(answer)
                raise
        return answer


class Turn:
    """One request: how long the provider last asked it to wait, in seconds, and how often it was sent."""

    def __init__(self, gate: Gate[Any], id: str | None = None) -> None:
        self.wait = 0.0
        self._gate = gate
        self._id = id
        self._sent = 0

    def terms(self) -> dict[str, Any]:
        """What the slot of the next sending is acquired with; each has a slot, and an id, of its own."""
        id = None if self._id is None else numbered(self._id, self._sent)
        return {"id": id, "timeout": self._gate.max_wait, "not_before": self.wait, "slack": self._gate.slack}

    def is_last(self, status: int, headers: Mapping[str, str], *, repeatable: bool) -> bool:
        """Whether the caller gets this answer; if not, the request is sent again after `wait` seconds.

        If so, `wait` is how long all hosts are held back.
        """
        wait_s = wait_asked(status, headers)
        self.wait = wait_s or 0.0
        self._sent += 1
        longest = self._gate.max_wait
        too_long = longest is not None and self.wait > longest
        return wait_s is None or self._sent > self._gate.retries or too_long or not repeatable

    def hold(self, limiter: Limiter, subject: Subject) -> None:
        """Hold back all hosts for `wait` seconds, if the provider asked for any."""
        if self.wait:
            try:
                limiter.schedule(self._gate.policy, subject, max_wait=self.wait, not_before=self.wait)
            except StoreError as error:
                self.not_held(error)

    def not_held(self, error: StoreError) -> None:
        """Log that the hold could not be recorded; the caller gets the answer all the same."""
        _log.warning("a provider asked to wait %.0f s; other hosts do not know of it: %s", self.wait, error)


def is_safe_to_repeat(method: str, status: int, headers: Mapping[str, Any]) -> bool:
    """Whether the same request again cannot do its work twice.

    429 says that it was not done. 503 does not say so: there a method must be idempotent, or the request have a key
    that makes it so.
    """
    return status == 429 or method.upper() in _IDEMPOTENT or "Idempotency-Key" in headers  # noqa: PLR2004 - the status
