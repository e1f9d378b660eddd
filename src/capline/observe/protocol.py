"""What a limiter asks of an observer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from capline.observe.event import Decided

__all__ = ["HearsFailures", "Observer"]


class Observer(Protocol):
    """Told of every call that decided something, after it did and before its caller has the answer.

    It runs on the caller's thread, or event loop, and several may call it at once: it should be quick, and safe for
    threads. What it raises is logged and counted, and the decision goes on. A call that was bad input as a whole (a
    policy that does not exist) decided nothing, and one that was cancelled has no answer: neither is told.
    """

    def decided(self, event: Decided) -> None:
        """This was decided."""
        ...


@runtime_checkable
class HearsFailures(Protocol):
    """An observer that also wants to be told when one of its limiter's observers, be it itself, raised."""

    def observer_failed(self) -> None:
        """One of them raised, once."""
        ...
