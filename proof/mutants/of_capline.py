"""capline itself, in the place of a mutant: the same histories, and nothing to be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline import Attempt, Limit, Limiter, Policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proof.mutants.history import Clock
    from proof.mutants.right import Limits
    from proof.record import Part

__all__ = ["Capline"]


class Capline:
    """A limiter of capline's on any store, with a history's verbs; the policies share one log."""

    def __init__(self, url: str, clock: Clock, policies: dict[str, Limits], namespace: str = "capline") -> None:
        kept = [
            Policy(name, [Limit(quota, window_us) for quota, window_us in limits], log="log")
            for name, limits in policies.items()
        ]
        self._limiter = Limiter(url, kept, clock=clock, namespace=namespace)
        self._any = kept[0].name

    def decide(self, policy: str, subject: str, cost: int = 1, id: str | None = None) -> Any:
        return self._limiter.decide(policy, subject, cost, id)

    def decide_many(self, policy: str, subjects: Iterable[str]) -> Iterable[Any]:
        return self._limiter.decide_batch([Attempt(policy, subject) for subject in subjects])

    def schedule(self, policy: str, subject: str, cost: int, max_wait_us: int | None, not_before_us: int) -> Any:
        max_wait = None if max_wait_us is None else max_wait_us / 1e6
        return self._limiter.schedule(policy, subject, cost, max_wait=max_wait, not_before=not_before_us / 1e6)

    def decide_all(self, parts: Sequence[Part]) -> Any:
        return self._limiter.decide_all([Attempt(*part) for part in parts])

    def refund(self, subject: str, stamp_us: int) -> bool:
        return self._limiter.refund(self._any, subject, stamp_us)

    def hits(self, subject: str) -> list[tuple[int, int]]:
        return [(hit.stamp_us, hit.units) for hit in self._limiter.explain(self._any, subject).hits]

    def close(self) -> None:
        self._limiter.close()
