"""Reservations: hits that end by themselves unless they are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.limiter.checks import stamp, ttl_us
from capline.limiter.slots import Slots
from capline.model.errors import StoreError

if TYPE_CHECKING:
    from capline.model.decision import Decision
    from capline.model.subject import Subject

__all__ = ["Reservations"]


class Reservations(Slots):
    """A limiter's verbs for callers that may die between the decision and the deed."""

    def reserve(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        ttl: float = 60,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """May the subject have `cost` units now? As `decide`, but the hit holds for `ttl` seconds unless committed.

        `decision.hit` names the reservation. Until `ttl` (a microsecond to a day) is over, from the hit's stamp on and
        by the store's clock, it counts as any hit does, and a `retry_after` supposes that it stays. From then on it
        counts for nobody, as if it had been refunded: its id, if it had one, is free again. The same `id` is one
        reservation: a retry gets the same hit, and the first `ttl` holds; one that `decide` recorded is
        answered too, and is no reservation. A hit that leaves the widest window before that counts no more.

        The policy has `reservations=True`; else it raises `InvalidValueError`. In an outage the answer is the one that
        `on_store_error` chose, with nothing to commit. Costs as much as a `decide` with a cost, and O(pending).
        """
        self._rules.check_reserves(policy)
        holds_us = ttl_us(ttl)
        attempt = self._attempt(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("reserve", attempt) as seen:
            try:
                return seen(self._store.reserve(*self._arguments(attempt), holds_us))
            except StoreError as error:
                return seen(self._outage.decide(attempt, error))

    def commit(self, policy: str, subject: Subject, hit: int | None) -> bool:
        """Keep the reserved hit: from now on it is an ordinary one, at its old stamp. Whether it counts.

        False, and nothing changed, once it has expired, was cancelled or has left the widest window: the caller does
        not hold it any longer, and others may have had its place. True again for one that is committed already, so
        that a commit whose answer was lost can be asked again. Raises `StoreError` in any outage.
        """
        self._rules.check_reserves(policy)
        if hit is None:
            return False
        subject = self._subject(subject)
        return self._store.commit(self._rule_of_hits(policy, subject), subject, stamp(hit))

    def cancel(self, policy: str, subject: Subject, hit: int | None) -> bool:
        """Give the reserved hit back before it expires; True once, False after. It is `refund`, of any hit."""
        self._rules.check_reserves(policy)
        return self.refund(policy, subject, hit)
