"""Slots: taken, waited for and given back; as awaited by `AsyncLimiter`."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from capline.limiter.aio_upkeep import AsyncUpkeep
from capline.limiter.checks import joint_refusal, refusal_text, seconds_us, stamp
from capline.limiter.patience import Patience
from capline.model.attempt import check_cost
from capline.model.decision import LimitExceeded
from capline.model.errors import CaplineError, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence

    from capline.model.attempt import Attempt
    from capline.model.decision import Decision, Joint
    from capline.model.limit import Limit
    from capline.model.subject import Subject

__all__ = ["AsyncSlots"]

Slot = TypeVar("Slot", "Decision", "Joint")


class AsyncSlots(AsyncUpkeep):
    """A limiter's verbs that take a slot in the future, or give a hit back."""

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
            return await self._store.refund(self._rule_of_hits(policy, subject), subject, stamp(hit), check_cost(cost))
        finally:
            self._denied.forget((subject,))

    async def refund_all(self, attempts: Sequence[Attempt], hits: Sequence[int]) -> int:
        """Refund every hit of a `decide_all`; returns how many were refunded."""
        given_back = 0
        for one, hit in self._refund_pairs(attempts, hits):
            given_back += await self.refund(one.policy, one.subject, hit, one.cost, limits=one.limits)
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
        limits: Sequence[Limit | str] | None = None,
    ) -> Decision:
        """Take the next free slot: `wait` seconds from now. As `Limiter.schedule`."""
        if limits is not None:
            return await self._under(policy, limits).schedule(
                policy,
                subject,
                cost,
                id,
                max_wait=max_wait,
                not_before=not_before,
                segment=segment,
                channel=channel,
                zone=zone,
            )
        max_wait_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
        not_before_us = seconds_us(not_before, "not_before")
        attempt = self._attempt(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("schedule", attempt) as seen:
            try:
                await self._learn(policy, attempt.subject)
                return seen(await self._store.schedule(*self._arguments(attempt), max_wait_us, not_before_us))
            except StoreError as error:
                return seen(self._outage.schedule(attempt, max_wait_us, not_before_us, error))

    @asynccontextmanager
    async def acquire(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the wait is known beforehand: past it nothing is taken
        not_before: float = 0,
        slack: float | None = None,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
    ) -> AsyncGenerator[Decision]:
        """`schedule`, then sleep until the slot, as `Limiter.acquire`.

        Cancelling gives the slot back, also while it is being taken. It waits for that refund, so a
        cancelled caller goes on when the store has answered.
        """
        patience = Patience(timeout, may_lose_answers=self._store.may_lose_answers, slack=slack, named=id is not None)
        slot = await _slept(
            patience,
            lambda: self.schedule(
                policy,
                subject,
                cost,
                patience.id(id),
                max_wait=patience.left(),
                not_before=patience.not_before(not_before),
                segment=segment,
                channel=channel,
                zone=zone,
                limits=limits,
            ),
            lambda slot: self.refund(policy, subject, slot.hit, cost, limits=limits),
        )
        if not slot.allowed:
            raise LimitExceeded(refusal_text(policy, subject, slot), slot)
        yield slot

    async def schedule_all(
        self, attempts: Sequence[Attempt], *, max_wait: float | None = None, not_before: float = 0
    ) -> Joint:
        """Take the next instant that is free under all of these policies. As `Limiter.schedule_all`."""
        max_wait_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
        not_before_us = seconds_us(not_before, "not_before")
        checked = self._slot_attempts(attempts)
        with self._observers.joint("schedule_all", checked) as seen:
            try:
                for one in checked:
                    await self._learn(one.policy, one.subject)
                return seen(await self._store.schedule_all(self._store_attempts(checked), max_wait_us, not_before_us))
            except StoreError as error:
                return seen(self._outage.schedule_all(checked, max_wait_us, not_before_us, error))

    @asynccontextmanager
    async def acquire_all(
        self,
        attempts: Sequence[Attempt],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as in `acquire`
        not_before: float = 0,
        slack: float | None = None,
    ) -> AsyncGenerator[Joint]:
        """`schedule_all`, then sleep until the slot, as `Limiter.acquire_all`; cancelled as `acquire`."""
        named = self._slot_attempts(attempts)[0].id is not None
        patience = Patience(timeout, may_lose_answers=self._store.may_lose_answers, slack=slack, named=named)
        slot = await _slept(
            patience,
            lambda: self.schedule_all(
                patience.named(attempts), max_wait=patience.left(), not_before=patience.not_before(not_before)
            ),
            lambda slot: self._give_back_all(attempts, slot.hits),
        )
        if not slot.allowed:
            raise joint_refusal(attempts, slot)
        yield slot

    async def _give_back_all(self, parts: Sequence[Attempt], hits: Sequence[int]) -> None:
        """Refund every hit; raises the first error after all were tried."""
        failed: StoreError | None = None
        for one, hit in zip(parts, hits, strict=False):
            try:
                await self.refund(one.policy, one.subject, hit, one.cost, limits=one.limits)
            except StoreError as error:
                failed = failed or error
        if failed is not None:
            raise failed


async def _slept(
    patience: Patience,
    take: Callable[[], Coroutine[Any, Any, Slot]],
    give_back: Callable[[Slot], Coroutine[Any, Any, object]],
) -> Slot:
    """Take a slot and sleep until it. It is given back if the wait is cancelled, or if it was missed: then another."""

    async def undo(slot: Slot) -> None:
        if patience.is_free(slot):
            await give_back(slot)

    while True:
        # In a task of its own: a call that is cancelled half-way may have taken a slot that nobody would refund.
        taking = asyncio.create_task(_patiently(patience, take))
        try:
            slot = await asyncio.shield(taking)
            if slot.allowed:
                await asyncio.sleep(slot.wait)
        except asyncio.CancelledError as stopped:
            patience.give_up()
            await _through(asyncio.create_task(_gave_back(taking, undo, stopped)))
            raise
        if not slot.allowed or not patience.is_late(slot):
            return slot
        missed = asyncio.create_task(undo(slot))
        try:
            await asyncio.shield(missed)
        except asyncio.CancelledError:
            await _through(missed)
            raise


async def _patiently(patience: Patience, take: Callable[[], Coroutine[Any, Any, Slot]]) -> Slot:
    """Call `take` until the store answers; return its slot."""
    while True:
        patience.asks()
        try:
            return await take()
        except StoreError as error:
            await asyncio.sleep(patience.pause(error))


async def _gave_back(
    taking: asyncio.Task[Slot], give_back: Callable[[Slot], Coroutine[Any, Any, object]], stopped: BaseException
) -> None:
    try:
        await give_back(await taking)
    except CaplineError as error:
        stopped.add_note(f"the slot was not given back: {error}")


async def _through(task: asyncio.Task[Any]) -> None:
    """Wait until the task is done, however often this wait is cancelled: the caller was cancelled already."""
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
