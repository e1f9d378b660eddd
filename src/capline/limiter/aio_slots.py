"""Slots: taken, waited for and given back; as awaited by `AsyncLimiter`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from capline.limiter.checks import refusal_text, seconds_us, stamp
from capline.limiter.patience import Patience
from capline.model.attempt import check_cost
from capline.model.errors import CaplineError, LimitExceeded, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from capline.model.attempt import Attempt
    from capline.model.decision import Decision
    from capline.model.limit import Limit
    from capline.model.subject import Subject

from capline.limiter.aio_upkeep import AsyncUpkeep

__all__ = ["AsyncSlots"]


class AsyncSlots(AsyncUpkeep):
    """A limiter's verbs that take an instant to come, or give a hit back."""

    async def refund(
        self,
        policy: str,
        subject: Subject,
        hit: int | None,
        cost: int = 1,
        *,
        limits: Sequence[Limit | str] | None = None,
    ) -> bool:
        """Refund the hit that a decision named; True once, False after. As `Limiter.refund`."""
        if limits is not None:
            return await self._under(policy, limits).refund(policy, subject, hit, cost)
        if hit is None:
            return False
        subject = self._subject(subject)
        try:
            await self._learn(policy, subject)
            return await self._store.refund(self._refund_terms(policy, subject), subject, stamp(hit), check_cost(cost))
        finally:
            self._denied.forget((subject,))

    async def refund_all(self, attempts: Sequence[Attempt], hits: Sequence[int]) -> int:
        """Refund every hit of a `decide_all`; returns how many were refunded."""
        given_back = 0
        for one, hit in self._refund_pairs(attempts, hits):
            given_back += await self.refund(one.policy, one.subject, hit, one.cost)
        return given_back

    async def schedule(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        max_wait: float | None = None,
        not_before: float = 0,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """Take the next free slot: `wait` seconds from now. As `Limiter.schedule`."""
        max_wait_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
        not_before_us = seconds_us(not_before, "not_before")
        asked = self._asked(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("schedule", asked) as seen:
            try:
                await self._learn(policy, asked.subject)
                return seen(await self._store.place(*self._arguments(asked), max_wait_us, not_before_us))
            except StoreError as error:
                return seen(self._outage.place(asked, max_wait_us, not_before_us, error))

    @asynccontextmanager
    async def acquire(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the wait is known beforehand: past it nothing is taken
        not_before: float = 0,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> AsyncGenerator[Decision]:
        """`schedule`, then sleep until the slot, as `Limiter.acquire`.

        Cancelling gives the slot back, also while it is being taken. It waits for that refund, so a
        cancelled caller goes on when the store has answered.
        """
        patience = Patience(timeout, may_lose_answers=self._store.may_lose_answers)
        # In a task of its own: a call that is cancelled half-way may have taken a slot that nobody would refund.
        taking = asyncio.create_task(
            self._take_slot(
                policy,
                subject,
                cost,
                patience,
                not_before=not_before,
                segment=segment,
                channel=channel,
                zone=zone,
            )
        )
        try:
            slot = await asyncio.shield(taking)
            if slot.allowed:
                await asyncio.sleep(slot.wait)
        except asyncio.CancelledError as stopped:
            patience.give_up()
            await _through(asyncio.create_task(self._give_back(policy, subject, cost, taking, stopped)))
            raise
        if not slot.allowed:
            raise LimitExceeded(refusal_text(policy, subject, slot), slot)
        yield slot

    async def _take_slot(
        self, policy: str, subject: Subject, cost: int, patience: Patience, *, not_before: float, **names: str | None
    ) -> Decision:
        while True:
            try:
                return await self.schedule(
                    policy,
                    subject,
                    cost,
                    patience.id,
                    max_wait=patience.left(),
                    not_before=patience.not_before(not_before),
                    **names,
                )
            except StoreError as error:
                await asyncio.sleep(patience.pause(error))

    async def _give_back(
        self, policy: str, subject: Subject, cost: int, taking: asyncio.Task[Decision], stopped: BaseException
    ) -> None:
        try:
            slot = await taking
            await self.refund(policy, subject, slot.hit, cost)
        except CaplineError as error:
            stopped.add_note(f"the slot was not given back: {error}")


async def _through(task: asyncio.Task[None]) -> None:
    """Wait until the task is done, however often this wait is cancelled: the caller was cancelled already."""
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
