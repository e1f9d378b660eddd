"""What a limiter asks of an observer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from capline.model.decision import Decision
    from capline.observe.event import Decided

__all__ = ["CountsOne", "HearsFailures", "Observer"]


class Observer(Protocol):
    """Receives every call that decided something, before its caller has the answer.

    It runs on the caller's thread, or event loop, and several may call it at once: it should be quick, and safe for
    threads. What it raises is logged and counted; the decision is not affected. It does not receive calls that
    were bad input as a whole (a policy that does not exist) or were cancelled, since they decided nothing.
    """

    def decided(self, event: Decided) -> None:
        """This was decided."""
        ...


@runtime_checkable
class CountsOne(Protocol):
    """An observer that takes the commonest event as arguments, so that no `Decided` is made for it.

    Where all observers of an `AsyncLimiter` do, a single decision keeps its fast path.
    """

    def decided_one(
        self, policy: str, segment: str | None, channel: str | None, decision: Decision, seconds: float
    ) -> None:
        """One attempt was decided by the verb `decide`; as `decided` would be told."""
        ...


@runtime_checkable
class HearsFailures(Protocol):
    """An observer that is also called when one of its limiter's observers (it may be itself) raised."""

    def observer_failed(self) -> None:
        """One of them raised, once."""
        ...
