"""A limiter whose attempts a service decides: it sends names, and knows no policy.

A rule is "compiled" to the attempt's names, which `over_http.store` sends; all else is as in `Verbs`. `LimiterBase`
makes a limiter of these classes where its URL is that of a service.
"""

# ruff: noqa: ARG002, ARG004, SLF001 - what stands for another takes its arguments; verbs are made from those of a base

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import msgspec

from capline.limiter.aio import AsyncLimiter
from capline.limiter.arguments.checks import check_attempt, count_of
from capline.limiter.base import MOST_JOINT, LimiterBase
from capline.limiter.explain import Explanation
from capline.limiter.limiter import Limiter
from capline.limiter.over_http.clients import AwaitedClient, BlockingClient
from capline.limiter.over_http.exchange import Exchange, with_token
from capline.limiter.over_http.store import ServiceStore, absent
from capline.limiter.policies.deny_cache import DenyCache
from capline.limiter.policies.rules import DEFAULT_NAMESPACE, Names, Rules
from capline.limiter.steps import Steps, awaited, blocking, run, run_awaited
from capline.limiter.verbs import Verbs
from capline.model.attempt import Attempt, check_kept
from capline.model.clock import Clock
from capline.model.decision import Decision
from capline.model.errors import InvalidValueError
from capline.model.limit import Limit
from capline.model.limit_status import LimitStatus
from capline.model.policy import Policy
from capline.model.subject import Subject
from capline.observe.protocol import Observer


class _ServiceRules(Rules):
    """The service's rules, which are not known here: any name may be right, and the service says which is not."""

    def known(self, name: str, segment: str | None, channel: str | None, zone: str | None = None) -> Names:
        return name, segment, channel, zone

    def policy(self, name: str) -> NoReturn:
        raise absent("policies")

    def check_reserves(self, name: str) -> None: ...

    def can_move(self, name: str) -> bool:
        return False


class ServiceVerbs(Verbs):
    """The verbs that HTTP has; the others raise `InvalidValueError`."""

    _store: Any

    def __init__(
        self,
        url: str,
        policies: Iterable[Policy] = (),
        *,
        token: str | None = None,
        on_store_error: str = "raise",
        observers: Iterable[Observer] = (),
        long_subjects: str = "refuse",
        **others: Any,
    ) -> None:
        usual = LimiterBase.__init__.__kwdefaults__ or {}
        theirs = ["policies"] if policies else []
        theirs += [name for name, value in others.items() if name in usual and value != usual[name]]
        theirs += ["an Insurance"] if not isinstance(on_store_error, str) else []  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        if theirs:
            raise InvalidValueError(f"{', '.join(theirs)}: at a service that is the service's own; leave it out")
        url = with_token(url, token)
        super().__init__(url, on_store_error=on_store_error, observers=observers, long_subjects=long_subjects, **others)
        self._rules = _ServiceRules((), DEFAULT_NAMESPACE)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._shown_url}>"

    # --- names in place of rules --------------------------------------------------------------------------------------

    def _with_limits(self, policy: str, limits: Sequence[Limit | str]) -> NoReturn:
        raise absent("limits=")

    def _bound(self, names: Names) -> Any:
        policy, segment, channel, zone = names
        return Attempt(policy, "", segment=segment, channel=channel, zone=zone)

    def _keeping(self, compiled: Any, keep_free: int | Sequence[int]) -> Any:
        return msgspec.structs.replace(compiled, keep_free=check_kept(keep_free))

    def _any_rule(self, policy: str) -> Any:
        return self._bound((policy, None, None, None))

    def _rule_of_hits(self, policy: str, subject: Subject) -> Any:
        return self._any_rule(policy)

    def _arguments(self, attempt: Attempt) -> Any:
        return self._keeping(attempt, attempt.keep_free), attempt.subject, attempt.cost, 0

    def _defined(self, policy: str, segment: str | None, channel: str | None) -> tuple[str, str | None, str | None]:
        return policy, segment, channel

    def _joint_attempts(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        if not 1 <= count_of(attempts, "attempts") <= MOST_JOINT:
            raise InvalidValueError(f"one attempt is over 1 to {MOST_JOINT} subjects: give a list of Attempt")
        return [self._checked(check_attempt(attempt)) for attempt in attempts]

    def _note(self, attempt: Attempt, decision: Decision, denied: DenyCache, epoch: tuple[int, int]) -> None:
        """Nothing: no refusal is cached."""

    def _rules_to_scan(self, policies: Sequence[str] | None, filled: object) -> NoReturn:
        raise absent("export")

    @property
    def policies(self) -> NoReturn:
        """The policies in force are the service's."""
        raise absent("policies")

    def use(self, policies: Iterable[Policy]) -> NoReturn:
        """Replace all policies: not at a service."""
        raise absent("use")

    def beside(self, policies: Iterable[Policy], *, title: str | None = None, most_joint: int = MOST_JOINT) -> NoReturn:
        """Another limiter of these policies: not at a service."""
        raise absent("beside")

    # --- verbs --------------------------------------------------------------------------------------------------------

    def _decide(self, attempt: Attempt) -> Steps[Decision]:
        return self._attempted("decide", attempt)

    def _cancel(self, policy: str, subject: Subject, hit: int | None) -> Steps[bool]:
        kind: Any = "cancel"  # of HTTP's own: it refuses where `refund` does not
        return self._on_hit(kind, policy, subject, hit)

    def _used(self, attempt: Attempt) -> Steps[tuple[LimitStatus, ...]]:
        return (yield self._store.usage(attempt))

    def _explained(self, subject: Subject, attempt: Attempt, ids: Sequence[str]) -> Steps[Explanation]:
        if ids:
            raise absent("explain(ids=)")
        return (yield self._store.explain(attempt))

    def _written(
        self, policy: str, subject: Subject, limits: Sequence[Limit | str] | None, granularity: str | None, **when: Any
    ) -> Steps[int]:
        form: dict[str, Any] | None = None
        if limits is not None:
            form = {"limits": [*map(str, limits)], "granularity": granularity, "effective_at": when["effective_at"]}
            if when["until"] is not None:  # unknown to a service of the release before
                form["until"] = when["until"]
        elif when["effective_at"] is not None or when["until"] is not None:
            raise absent("override(None, effective_at=) or override(None, until=)")
        return (yield self._store.override(policy, self._subject(subject), form, when["who"]))


class ServiceLimiter(ServiceVerbs, Limiter):
    """`Limiter` at a service."""

    cancel = blocking(ServiceVerbs._cancel)

    @staticmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> Any:
        return ServiceStore(Exchange(url, BlockingClient), run)


class AsyncServiceLimiter(ServiceVerbs, AsyncLimiter):
    """`AsyncLimiter` at a service."""

    cancel = awaited(ServiceVerbs._cancel)

    @staticmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> Any:
        return ServiceStore(Exchange(url, AwaitedClient), run_awaited)


LIMITERS: dict[type, type] = {Limiter: ServiceLimiter, AsyncLimiter: AsyncServiceLimiter}
"""What is made at the URL of a service."""
