"""The protocol of observers."""

from typing import Protocol, runtime_checkable

from capline.model.decision import Decision
from capline.observe.event import Decided


class Observer(Protocol):
    """Receives every call that decided something, before its caller has the answer.

    It is called on the caller's thread or event loop, maybe by several at once, so it should be quick and thread-safe.
    What it raises is logged and counted; the decision is not affected. It does not receive calls that were cancelled,
    or that were bad input as a whole (like an unknown policy), since they decided nothing.
    """

    def decided(self, event: Decided) -> None:
        """Called with each event."""
        ...


@runtime_checkable
class CountsOne(Protocol):
    """An observer that takes the most common event as plain arguments, so that no `Decided` is built.

    If all observers of an `AsyncLimiter` do, a single decision keeps its fast path.
    """

    def decided_one(
        self, policy: str, segment: str | None, channel: str | None, decision: Decision, seconds: float
    ) -> None:
        """Called instead of `decided` for one attempt by the verb `decide`."""
        ...


@runtime_checkable
class HearsFailures(Protocol):
    """An observer that is also called when an observer of its limiter (maybe itself) raised."""

    def observer_failed(self) -> None:
        """Called once for each exception."""
        ...
