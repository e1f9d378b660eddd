"""An app's settings, checked, and a visit for each request: all that depends on no framework, sync or async.

    visit = gate.visit()
    refusal = run(visit.enter(request, rules))    None: let it through; else this is the answer
    ...                                           again for a route that is known only now, by its own rules
    run(visit.leave(answer))                      gives back what an answer should not count (`refund_if`)
    visit.headers()                               for whatever is answered

`enter` and `leave` are generators that yield what the limiter returned: a `Limiter`'s decision, or an `AsyncLimiter`'s
awaitable. So sync and async are one code; `run` and `run_awaited` of `limiter.steps` drive it.

The rule: the rules of one `enter` are one attempt, but for rules that share a log and differ otherwise: these come in a
later round. A refusal gives back what was consumed before, so a refused request has consumed nothing. An outage is
answered by the caller's choice, 503 or let through, never 429.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from capline.limiter.outage.outage import is_outage
from capline.limiter.steps import run_awaited
from capline.model.attempt import Attempt
from capline.model.decision import Decision, Joint
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError, StoreError, quoted
from capline.model.headers import headers_of
from capline.model.limit import QuietHours
from capline.web.answer import Refusal, outage, quota_exceeded
from capline.web.rule import Round, Rule, check_rules, log_of, rounds_of

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.limiter import Limiter
    from capline.model.headers import HeaderForm
    from capline.model.limit_status import LimitStatus

_log = logging.getLogger("capline")
LOG_EVERY_SECONDS = 60

Headers = Literal["draft-11", "legacy", "both"] | None
Outcome = Literal["allowed", "refused", "shadow-refused", "failed-open", "failed-closed"]
_ALLOWED: dict[str, Outcome] = {"fallback": "failed-open", "shadow": "shadow-refused"}
_BY_WEIGHT: tuple[Outcome, ...] = ("allowed", "failed-open", "shadow-refused", "failed-closed", "refused")
"""Of the outcomes of one request's rounds the last one of these is the request's."""
_FORMS: dict[str | None, tuple[HeaderForm, ...]] = {
    "draft-11": ("draft-11",),
    "legacy": ("legacy",),
    "both": ("draft-11", "legacy"),
    "none": (),
    None: (),
}
_ON_ERROR = ("allow", "deny")


class Options(TypedDict, total=False):
    """How an app answers, the same by every face; see `Gate`."""

    headers: Headers
    on_error: Literal["allow", "deny"]
    shadow: bool
    exempt: Iterable[str]
    on_outcome: Callable[[Outcome], object] | None


class Refused(CaplineError):  # noqa: N818 - a refusal is no fault
    """A route's own rules refused the request; the face answers with `refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"this request is answered {refusal.status}")
        self.refusal = refusal


class Gate:
    """The rules of an app and how it answers. `limiter` is of the kind that the face needs, and stays open.

    `headers`     the limits on every answer: `"draft-11"`, `"legacy"`, `"both"`, or None
    `on_error`    an outage: `"allow"` lets requests through, `"deny"` answers 503
    `shadow`      decide and count, but refuse nothing, and say nothing in headers
    `exempt`      paths that are under no rule: as they are, or all that begin so with a `*` at the end
    `on_outcome`  called with each `Outcome`, to count it
    """

    def __init__(
        self,
        limiter: Limiter | AsyncLimiter,
        kind: type[Limiter | AsyncLimiter],
        rules: Sequence[Rule] = (),
        *,
        may_await: bool = False,
        headers: Headers = "draft-11",
        on_error: Literal["allow", "deny"] = "allow",
        shadow: bool = False,
        exempt: Iterable[str] = (),
        on_outcome: Callable[[Outcome], object] | None = None,
    ) -> None:
        if not isinstance(limiter, kind):
            raise InvalidTypeError(
                f"limiter is {_article(kind.__name__)} here, not {_article(type(limiter).__name__)}; "
                f"make it by {kind.__name__}(url, policies)"
            )
        if not (headers is None or isinstance(headers, str)) or headers not in _FORMS:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidValueError(f"headers is 'draft-11', 'legacy', 'both' or None, not {quoted(headers)}")
        if on_error not in _ON_ERROR:  # pyright: ignore[reportUnnecessaryContains] - callers may be untyped
            raise InvalidValueError(f"on_error is 'allow' or 'deny', not {quoted(on_error)}")
        if type(shadow) is not bool:
            raise InvalidTypeError(f"shadow is True or False, not {quoted(shadow)}")
        if not (on_outcome is None or callable(on_outcome)):
            raise InvalidTypeError(f"on_outcome is a function of an outcome, not {quoted(on_outcome)}")
        self.limiter: Any = limiter
        self.may_await = may_await
        self.rules = check_rules(rules, limiter, may_await=may_await)
        self.forms = () if shadow else _FORMS[headers]
        self.on_error = on_error
        self.shadow = shadow
        exempt = _paths(exempt)
        self._exempt = frozenset(path for path in exempt if not path.endswith("*"))
        self._exempt_below = tuple(path[:-1] for path in exempt if path.endswith("*"))
        self.exempts = bool(exempt)
        self.on_outcome = on_outcome
        self._log_from = -float("inf")

    def is_exempt(self, path: str) -> bool:
        """Whether requests for this path are under no rule."""
        return path in self._exempt or (bool(self._exempt_below) and path.startswith(self._exempt_below))

    def check(self, *rules: Rule) -> tuple[Rule, ...]:
        """Rules of a route, beside those of all requests."""
        return check_rules(rules, self.limiter, may_await=self.may_await, beside=len(self.rules))

    def visit(self) -> Visit:
        """Begin a request."""
        return Visit(self)

    def log(self, what: str, error: StoreError) -> None:
        """Log an outage, at most once a minute."""
        now = time.monotonic()
        if now >= self._log_from:
            self._log_from = now + LOG_EVERY_SECONDS
            _log.warning("%s: %s", what, error)


class _Part(msgspec.Struct, gc=False):
    attempts: Sequence[Attempt]
    rules: Sequence[Rule]
    answer: Decision | Joint
    given_back: frozenset[int] = frozenset()
    """Which of the attempts no longer count, by place."""


class Visit:
    """What one request has asked for so far.

    `refusal` is what it is answered with, if it was refused; `may_refund` says whether an answer has to be looked at.
    `rules` are those that it was under so far, None before it was asked. `exempt` and `subject` are for faces that
    leave the visit for a route: whether its path is, and the key of a route's rule that the framework called.
    """

    __slots__ = ("_parts", "exempt", "gate", "may_refund", "refusal", "rules", "subject")

    def __init__(self, gate: Gate, *, exempt: bool = False) -> None:
        self.gate = gate
        self.exempt = exempt
        self.subject: Any = None
        self._parts: Sequence[_Part] = ()
        self.refusal: Refusal | None = None
        self.rules: tuple[Rule, ...] | None = None
        self.may_refund = False

    async def entered(self, request: Any, rules: tuple[Rule, ...]) -> Refusal | None:
        """`enter` with an `AsyncLimiter`; a first rule by itself that only awaits its decision takes 1 µs less."""
        gate = self.gate
        rule = rules[0]
        if self.rules is not None or rule.is_slow or len(rules) > 1 or gate.on_outcome is not None:
            return await run_awaited(self.enter(request, rules))
        self.rules = rules
        attempt = rule.attempt_now(request)
        if attempt is None:
            return None
        try:
            answer = await gate.limiter.decide(
                attempt.policy, attempt.subject, attempt.cost, segment=attempt.segment, channel=attempt.channel
            )
        except StoreError as error:
            await run_awaited(self._failed(error))
        else:
            part = _Part((attempt,), rules, answer)
            if answer.allowed:
                self._parts = [part]
                self.may_refund = rule.refund_if is not None
            else:
                await run_awaited(self._answered(part))
        return self.refusal

    def enter(self, request: Any, rules: Sequence[Rule]) -> Generator[Any, Any, Refusal | None]:
        """Decide under the rules that are new to it; None lets the request through, else it is answered so."""
        if self.refusal is not None:
            return self.refusal
        if self.rules:
            rules = [rule for rule in rules if rule not in self.rules]
        self.rules = (*(self.rules or ()), *rules)
        gate = self.gate
        pairs: list[tuple[Rule, Attempt]] = []
        for rule in rules:
            attempt = (yield from rule.attempt(request)) if rule.awaits else rule.attempt_now(request)
            if attempt is not None:
                pairs.append((rule, attempt))
        outcomes: list[Outcome] = []
        for together in rounds_of(pairs, gate.limiter):
            outcomes.append((yield from self._decide(together)))
            if self.refusal is not None:
                break
        if outcomes and gate.on_outcome is not None:
            gate.on_outcome(max(outcomes, key=_BY_WEIGHT.index))
        return self.refusal

    def _decide(self, round: Round) -> Generator[Any, Any, Outcome]:
        gate, attempts = self.gate, round.attempts
        try:
            if len(attempts) == 1:
                attempt = attempts[0]
                answer = yield gate.limiter.decide(
                    attempt.policy,
                    attempt.subject,
                    attempt.cost,
                    segment=attempt.segment,
                    channel=attempt.channel,
                    limits=attempt.limits,
                )
            else:
                answer = yield gate.limiter.decide_all(attempts)
        except StoreError as error:
            return (yield from self._failed(error))
        except CaplineError:
            # A later round's attempt is one that cannot be, as its cost.
            yield from self._give_back()
            raise
        return (yield from self._answered(_Part(attempts, round.rules, answer)))

    def _answered(self, part: _Part) -> Generator[Any, Any, Outcome]:
        answer = part.answer
        if answer.allowed:
            self._parts = [*self._parts, part]
            for rule in part.rules:
                if rule.refund_if is not None:
                    self.may_refund = True
            return _ALLOWED.get(answer.origin, "allowed")
        if self.gate.shadow:
            return "shadow-refused"
        yield from self._give_back()
        return self._refused(part)

    def _refused(self, part: _Part) -> Outcome:
        answer = part.answer
        if answer.origin == "fallback":
            # The limiter's own choice for an outage was to refuse.
            self.refusal = outage()
            return "failed-closed"
        self._parts = [*self._parts, part]
        limits = answer.limits if isinstance(answer, Joint) else (answer.limits,)
        binds = answer.binds if isinstance(answer, Joint) else 0
        self.refusal = quota_exceeded(part.attempts, limits, binds, answer.retry_after_us)
        return "refused"

    def _failed(self, error: StoreError) -> Generator[Any, Any, Outcome]:
        if not is_outage(error):
            raise error
        gate = self.gate
        if gate.on_error == "allow" or gate.shadow:
            gate.log("requests are let through, as limits cannot be checked", error)
            return "failed-open"
        gate.log("requests are answered 503, as limits cannot be checked", error)
        yield from self._give_back()
        self.refusal = outage()
        return "failed-closed"

    def leave(self, answer: Any) -> Generator[Any, Any, None]:
        """Give back what `refund_if` says of this answer."""
        for part in self._parts:
            if part.answer.allowed and not part.given_back:
                yield from self._refund(
                    part, [rule.refund_if is not None and rule.refund_if(answer) for rule in part.rules]
                )

    @property
    def retry_after(self) -> float | None:
        """Of a refusal: seconds until it would fit; None for never."""
        return self._parts[-1].answer.retry_after if self._parts else None

    def headers(self) -> dict[str, str]:
        """The limits that this request was under, as headers; none of an outage, of no rule, or of a shadow.

        A refusal says when to come again even where nothing is said of limits.
        """
        parts, forms = self._parts, self.gate.forms
        if not parts:
            return {}
        last = parts[-1].answer
        if len(parts) == 1 and not parts[0].given_back:
            if len(forms) == 1:
                return last.headers(forms[0])
            said = [last.headers(form) for form in forms]
        else:
            states = list(self._states())
            least = last if not last.allowed else min((part.answer for part in parts), key=attrgetter("remaining"))
            said = [
                headers_of(form, states, least.limit, allowed=last.allowed, retry_after_us=last.retry_after_us)
                for form in forms
            ]
        if not (forms or last.allowed):
            said = [headers_of("draft-11", (), None, allowed=False, retry_after_us=last.retry_after_us)]
        return said[0] if len(said) == 1 else {name: value for some in said for name, value in some.items()}

    def _states(self) -> Iterable[LimitStatus]:
        """Each limit of each subject once, as it is now.

        What was given back after it was read counts no more; what a later part has consumed of the same log does.
        """
        parts, limiter = self._parts, self.gate.limiter
        consumed = [
            (log_of(attempt, limiter), attempt.subject, attempt.cost, place in part.given_back)
            for part in parts
            for place, (attempt, hit) in enumerate(zip(part.attempts, _stamps(part.answer), strict=False))
            if hit is not None
        ]
        read = 0
        states: dict[tuple[Any, ...], LimitStatus] = {}
        for part in parts:
            answer = part.answer
            read += sum(hit is not None for hit in _stamps(answer))
            limits = answer.limits if isinstance(answer, Joint) else (answer.limits,)
            for attempt, of_attempt in zip(part.attempts, limits, strict=False):
                log, more = log_of(attempt, limiter), 0
                for number, (other, subject, cost, given_back) in enumerate(consumed):
                    if given_back == (number < read) and (other, subject) == (log, attempt.subject):
                        more += cost if given_back else -cost
                for state in of_attempt:
                    states.setdefault((attempt.subject, state.name, state.limit), _with_more(state, more))
        return states.values()

    def _give_back(self) -> Generator[Any, Any, None]:
        """Refund whatever was consumed."""
        for part in self._parts:
            if part.answer.allowed and not part.given_back:
                yield from self._refund(part, [True] * len(part.attempts))

    def _refund(self, part: _Part, which: Sequence[bool]) -> Generator[Any, Any, None]:
        for place, (attempt, hit) in enumerate(zip(part.attempts, _stamps(part.answer), strict=False)):
            if hit is None or not which[place]:
                continue
            try:
                yield self.gate.limiter.refund(
                    attempt.policy, attempt.subject, hit, attempt.cost, limits=attempt.limits
                )
            except StoreError as error:
                self.gate.log("a hit was not given back", error)
            else:
                part.given_back |= {place}


def _stamps(answer: Decision | Joint) -> Sequence[int | None]:
    return answer.hits if isinstance(answer, Joint) else (answer.hit,)


def _with_more(state: LimitStatus, more: int) -> LimitStatus:
    """The state with so many more units left, or fewer."""
    if more == 0 or isinstance(state.limit, QuietHours):
        return state
    left = state.remaining - state.past + more
    now = msgspec.structs.replace(state, remaining=max(left, 0), past=max(-left, 0))
    return now if now.used > 0 else msgspec.structs.replace(now, frees_in_us=0, whole_in_us=0)


def _paths(exempt: Iterable[str]) -> tuple[str, ...]:
    if isinstance(exempt, str):
        raise InvalidTypeError(f"exempt is a list of paths, like ['/healthz'], not {quoted(exempt)}")
    paths = tuple(exempt)
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/"):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidValueError(
                f"an exempt path begins with '/', like '/healthz' or '/static/*', not {quoted(path)}"
            )
    return paths


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"
