"""Reservations: hits that end by themselves unless they are committed; as awaited by `AsyncLimiter`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.limiter.aio_slots import AsyncSlots
from capline.limiter.checks import stamp, ttl_us
from capline.model.errors import StoreError

if TYPE_CHECKING:
    from capline.model.decision import Decision
    from capline.model.subject import Subject

__all__ = ["AsyncReservations"]


class AsyncReservations(AsyncSlots):
    """A limiter's verbs for callers that may die between the decision and the deed."""

    async def reserve(
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
        """Decide, with a hit that holds for `ttl` seconds unless it is committed. As `Limiter.reserve`."""
        self._rules.check_reserves(policy)
        holds_us = ttl_us(ttl)
        attempt = self._attempt(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("reserve", attempt) as seen:
            try:
                await self._learn(policy, attempt.subject)
                return seen(await self._store.reserve(*self._arguments(attempt), holds_us))
            except StoreError as error:
                return seen(self._outage.decide(attempt, error))

    async def commit(self, policy: str, subject: Subject, hit: int | None) -> bool:
        """Keep the reserved hit; False once it has expired or was given back. As `Limiter.commit`."""
        self._rules.check_reserves(policy)
        if hit is None:
            return False
        subject = self._subject(subject)
        await self._learn(policy, subject)
        return await self._store.commit(self._rule_of_hits(policy, subject), subject, stamp(hit))

    async def cancel(self, policy: str, subject: Subject, hit: int | None) -> bool:
        """Give the reserved hit back; True once, False after. As `Limiter.cancel`."""
        self._rules.check_reserves(policy)
        return await self.refund(policy, subject, hit)
