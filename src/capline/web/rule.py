"""One rule of an app: a policy, whom it limits, and what a request costs there.

    request  ->  key, cost, segment, channel, limits  ->  an attempt  |  nothing, where the key is None or the cost 0

The rule: a request must not be able to break a decision by what it sends. A key of any text has a subject: one that a
store cannot take, because it is empty, longer than 512 bytes or no UTF-8, is hashed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, TypeVar

import msgspec
from msgspec.structs import replace

from capline.model.attempt import Attempt, check_cost
from capline.model.errors import InvalidTypeError, InvalidValueError, quoted
from capline.model.policy import Policy, check_name
from capline.model.subject import Subject, check_subject, hashed_text
from capline.web import key as keys

if TYPE_CHECKING:
    from capline.limiter.checked import CheckedCalls
    from capline.model.limit import Limit

MOST_RULES = 16
"""Rules of one request, as one attempt is over at most 16 subjects."""

SHORT = 128
"""ASCII text of so many characters is a subject as it is."""

BESIDE = ".limits"
"""Ends the name of limits that a request brings, where there is a policy of its rule's name."""

R = TypeVar("R")


class Fields(TypedDict, Generic[R], total=False):
    """What a `Rule` takes beside its policy and key, the same in every face."""

    cost: int | Callable[[R], Any]
    segment: str | Callable[[R], Any] | None
    channel: str | Callable[[R], Any] | None
    limits: Sequence[Limit | str] | Callable[[R], Any] | None
    refund_if: int | Container[int] | Callable[[Any], bool] | None


class Rule:
    """A policy that requests are limited by.

    `policy`     its name
    `key`        who is limited: a subject, or a function of the request; where it returns None, the rule is skipped
    `cost`       the units of a request, or a function of it; 0 skips the rule
    `segment`, `channel`  names, or functions of the request; see `Limiter.decide`
    `limits`     limits in place of the policy's, like `["10/minute"]`, or a function of the request that returns such a
                 list, or None for the policy's own; where no policy has that name, None skips the rule. Each set of
                 limits has a history of its own, as in `Limiter.decide`
    `refund_if`  which answers do not count: a status, a collection of them (`range(500, 600)`), or a function of the
                 answer, which has a `status_code`. What was consumed is given back before the answer leaves

    The request is the framework's own; a function may be `async` in ASGI. An exception in it is the app's own: nothing
    is consumed, and the framework answers as if a view had raised it.
    """

    __slots__ = ("awaits", "channel", "cost", "is_slow", "key", "limits", "policy", "refund_if", "segment")

    FIELDS: ClassVar[tuple[str, ...]] = ("key", "cost", "segment", "channel", "limits")

    def __init__(
        self,
        policy: str,
        key: Subject | Callable[[Any], Any],
        *,
        cost: int | Callable[[Any], Any] = 1,
        segment: str | Callable[[Any], Any] | None = None,
        channel: str | Callable[[Any], Any] | None = None,
        limits: Sequence[Limit | str] | Callable[[Any], Any] | None = None,
        refund_if: int | Container[int] | Callable[[Any], bool] | None = None,
    ) -> None:
        if not isinstance(policy, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            raise InvalidTypeError(f"a rule names a policy, like Rule('ip', key.ip()), not {quoted(policy)}")
        check_made(key)
        for name, value in (("segment", segment), ("channel", channel)):
            if not (value is None or isinstance(value, str) or callable(value)):
                raise InvalidTypeError(f"{name} is a name, or a function of the request, not {quoted(value)}")
        self.policy = policy
        self.key = key if callable(key) else check_subject(key)
        self.cost = cost if callable(cost) else check_cost(cost)
        self.segment = segment
        self.channel = channel
        self.limits = limits if limits is None or callable(limits) else Policy(policy, limits).limits
        if limits is not None:
            check_name(policy + BESIDE, "policy")
            if channel is not None:
                raise InvalidValueError(
                    f"rule {policy!r}: limits that come with a request have no channels; leave one out"
                )
        self.refund_if = _refunds(refund_if)
        self.awaits = frozenset(name for name in self.FIELDS if is_async(getattr(self, name)))
        """The fields whose functions are async."""
        self.is_slow = bool(self.awaits) or limits is not None

    def __repr__(self) -> str:
        return f"Rule({self.policy!r}, {self.key!r})"

    def attempt_now(self, request: Any) -> Attempt | None:
        """The same as `attempt`, where nothing has to be awaited: some 1 µs less."""
        key, cost, segment, channel, limits = self.key, self.cost, self.segment, self.channel, self.limits
        if callable(key):
            key = key(request)
            if key is None:
                return None
            if type(key) is not str or not 0 < len(key) <= SHORT or not key.isascii():
                key = _subject_of(key)
        if callable(cost):
            cost = cost(request)
            if type(cost) is int and cost == 0:
                return None
        if callable(segment):
            segment = segment(request)
        if callable(channel):
            channel = channel(request)
        if callable(limits):
            limits = limits(request)
        return Attempt(self.policy, key, cost, None, segment, channel, None, limits)

    def attempt(self, request: Any) -> Generator[Any, Any, Attempt | None]:
        """The attempt of this request; None where the rule is skipped. Yields what has to be awaited."""
        if not self.awaits:
            return self.attempt_now(request)
        found: dict[str, Any] = {}
        for name in self.FIELDS:
            value = getattr(self, name)
            if callable(value):
                value = (yield value(request)) if name in self.awaits else value(request)
                if (name == "key" and value is None) or (name == "cost" and type(value) is int and value == 0):
                    return None
            found[name] = value
        return Attempt(self.policy, _subject_of(found.pop("key")), **found)


def check_made(key: Any) -> None:
    """Raise for `key.ip` and its kin themselves: each makes a key, so it must be called."""
    for maker, made in ((keys.ip, "ip()"), (keys.header, "header('X-Api-Key')"), (keys.joined, "joined(key.ip(), …)")):
        if key is maker:
            raise InvalidTypeError(f"key.{maker.__name__} makes a key: call it, like key.{made}")


def check_rules(rules: Sequence[Rule], limiter: CheckedCalls, *, may_await: bool, beside: int = 0) -> tuple[Rule, ...]:
    """The rules as a tuple; raises for what cannot be decided, before any request comes."""
    if isinstance(rules, (str, Rule)):
        raise InvalidTypeError(f"rules are a list of Rule, like [Rule('ip', key.ip())], not {quoted(rules)}")
    listed = tuple(rules)
    for rule in listed:
        if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            raise InvalidTypeError(f"rules are a list of Rule, like [Rule('ip', key.ip())], not {quoted(rule)}")
        if rule.limits is None:
            limiter.check_policy(rule.policy)
        policy = limiter.policies.get(rule.policy)
        if policy is not None and isinstance(rule.segment, str):
            policy.limits_for(rule.segment)
        if policy is not None and isinstance(rule.channel, str):
            policy.limits_on(rule.channel)
        if rule.awaits and not may_await:
            fields = ", ".join(sorted(rule.awaits))
            raise InvalidTypeError(f"rule {rule.policy!r}: {fields} is an async function, which only ASGI can await")
    if len(listed) + beside > MOST_RULES:
        raise InvalidValueError(f"{len(listed) + beside} rules for one request; at most {MOST_RULES}")
    return listed


class Round(msgspec.Struct, gc=False):
    """Attempts that are decided together, and of each its rule: the first, where several ask alike."""

    attempts: list[Attempt]
    rules: list[Rule]


def rounds_of(asked: Sequence[tuple[Rule, Attempt]], limiter: CheckedCalls) -> list[Round]:
    """What a request asks for, in as few rounds as hold each log at most once; none, where no rule binds it.

    Rules that ask the same of one log, with one `refund_if`, are one attempt of both
    costs; others on that log come in a later round. So two rules may have one policy, and a client that sends its
    address as its key breaks nothing.
    """
    rounds: list[Round] = []
    for rule, attempt in asked:
        bound = attempt
        if rule.limits is not None:
            bound = _beside(attempt, limiter.policies)
            if bound is None:
                continue
            log_of(bound, limiter)  # raises for what are no limits, before anything is decided
        if rounds:
            _add(rounds, rule, bound, limiter)
        else:
            rounds.append(Round([bound], [rule]))
    return rounds


def _beside(attempt: Attempt, policies: Container[str]) -> Attempt | None:
    """An attempt of a rule with `limits`, by a name that no policy has; None where nothing limits it."""
    if attempt.limits is None:
        return attempt if attempt.policy in policies else None
    return replace(attempt, policy=attempt.policy + BESIDE) if attempt.policy in policies else attempt


def log_of(attempt: Attempt, limiter: CheckedCalls) -> str:
    """The log that an attempt is decided on."""
    return limiter.log_of(attempt.policy, attempt.limits)


def _add(rounds: list[Round], rule: Rule, attempt: Attempt, limiter: CheckedCalls) -> None:
    log = log_of(attempt, limiter)
    for together in rounds:
        for place, other in enumerate(together.attempts):
            if other.subject != attempt.subject or log_of(other, limiter) != log:
                continue
            if replace(other, cost=attempt.cost) == attempt and together.rules[place].refund_if == rule.refund_if:
                together.attempts[place] = replace(other, cost=check_cost(other.cost) + check_cost(attempt.cost))
                return
            break
        else:
            together.attempts.append(attempt)
            together.rules.append(rule)
            return
    rounds.append(Round([attempt], [rule]))


def _subject_of(key: Any) -> Any:
    if not isinstance(key, str):
        return key
    try:
        return check_subject(key)
    except InvalidValueError:
        return hashed_text(key)


def _refunds(refund_if: int | Container[int] | Callable[[Any], bool] | None) -> Callable[[Any], bool] | None:
    if refund_if is None or callable(refund_if):
        if is_async(refund_if):
            raise InvalidTypeError("refund_if is a plain function of the answer, not an async one")
        return refund_if
    if isinstance(refund_if, (bool, str)) or not (isinstance(refund_if, int) or hasattr(refund_if, "__contains__")):
        raise InvalidTypeError(
            f"refund_if is a status, a collection of them or a function of the answer, not {quoted(refund_if)}"
        )
    statuses = (refund_if,) if isinstance(refund_if, int) else refund_if
    return lambda answer: answer.status_code in statuses


def is_async(value: Any) -> bool:
    """Whether calling it gives what has to be awaited."""
    return callable(value) and (
        inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None))  # noqa: B004 - its own method is looked at
    )
