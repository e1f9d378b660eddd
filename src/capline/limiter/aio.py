"""`AsyncLimiter`: the same verbs over a store that is awaited. Every check and look-up is in `LimiterBase`."""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from capline.limiter.aio_reservations import AsyncReservations
from capline.limiter.checks import count_of, stamp, typed
from capline.model.attempt import check_cost
from capline.model.errors import CaplineError, InvalidValueError, StoreError
from capline.model.subject import check_subject
from capline.support.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.limiter.columns import AttemptColumns
    from capline.model.attempt import Attempt
    from capline.model.decision import Decision, Joint
    from capline.model.limit import Limit
    from capline.model.limit_status import LimitStatus
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.protocol import Batch, CompiledRule
else:
    np = LazyModule("numpy")

__all__ = ["AsyncLimiter"]

_ONE = 1
T = TypeVar("T")
ROWS_ON_THE_LOOP = 4096
"""Rows whose checks take the loop about a millisecond; with more, they go to a thread."""
MANY = ROWS_ON_THE_LOOP + 1


class AsyncLimiter(AsyncReservations):
    """`Limiter` with awaited verbs; it says what each verb and option does. Close it by `async with` or `aclose`.

    It belongs to one event loop. On a local store a decision runs on the loop, since it takes microseconds; large
    batches run in a thread. With `segments` as a publication's address the constructor blocks until the first fetch:
    on a running loop, start a `SegmentWatch` in a thread and pass that.
    """

    async def decide(  # noqa: C901, PLR0911 - the fast paths, one after the other
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
    ) -> Decision:
        """May the subject have `cost` units now? As `Limiter.decide`, awaited."""
        if limits is not None:
            return await self._under(policy, limits).decide(
                policy, subject, cost, id, segment=segment, channel=channel, zone=zone
            )
        if id is None and cost is _ONE:
            try:
                names = policy, segment, channel, zone
                compiled = self._fast_rules.get(names)
                if compiled is None and (rule_of := self._own_rules.get(names)) is not None:
                    compiled = rule_of(subject)
                if compiled is not None:
                    if self._counts_one:
                        return await self._counted(compiled, policy, subject, segment, channel, zone)
                    return await self._store.decide(compiled, check_subject(subject), 1, 0)
            except InvalidValueError:
                if not self._hashes_long:
                    raise
            except StoreError as error:
                return self._outage.decide(self._attempt(policy, subject, cost, id, segment, channel, zone), error)
            except TypeError as error:
                raise typed(error, policy, segment, channel, zone) from None
        attempt = self._attempt(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("decide", attempt) as seen:
            denied = self._denied
            held = denied.answer(attempt)
            if held is not None:
                return seen.unasked(held)
            epoch = denied.epoch()
            try:
                await self._learn(policy, attempt.subject)
                decision = seen(await self._store.decide(*self._arguments(attempt)))
            except StoreError as error:
                return seen(self._outage.decide(attempt, error))
            self._note(attempt, decision, denied, epoch)
            return decision

    async def _counted(
        self,
        compiled: CompiledRule,
        policy: str,
        subject: Subject,
        segment: str | None,
        channel: str | None,
        zone: str | None,
    ) -> Decision:
        """One unit by a compiled rule, told to observers that take it as arguments."""
        known_as = check_subject(subject)
        began = perf_counter()
        try:
            decision = await self._store.decide(compiled, known_as, 1, 0)
        except StoreError as error:
            attempt = self._attempt(policy, subject, 1, None, segment, channel, zone)
            with self._observers.one("decide", attempt).since(began) as seen:
                return seen(self._outage.decide(attempt, error))
        self._observers.decided_one(policy, segment, channel, decision, perf_counter() - began)
        return decision

    async def peek(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
    ) -> Decision:
        """What `decide` would answer; consumes nothing. As `Limiter.peek`."""
        if limits is not None:
            return await self._under(policy, limits).peek(
                policy, subject, cost, id, segment=segment, channel=channel, zone=zone
            )
        attempt = self._peek_attempt(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("peek", attempt) as seen:
            try:
                await self._learn(policy, attempt.subject)
                return seen(await self._store.peek(*self._arguments(attempt)))
            except StoreError as error:
                return seen(self._outage.peek(attempt, error))

    async def charge(
        self,
        policy: str,
        subject: Subject,
        cost: int,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """Record `cost` units, whatever the limits say. As `Limiter.charge`."""
        attempt = self._attempt(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("charge", attempt) as seen:
            await self._learn(policy, attempt.subject)
            return seen(await self._store.charge(*self._arguments(attempt)))

    async def settle(self, policy: str, subject: Subject, hit: int | None, cost: int) -> bool:
        """Give a hit that was an estimate the units that it really cost. As `Limiter.settle`."""
        units = check_cost(cost, 0)
        if hit is None:
            return False
        subject = self._subject(subject)
        try:
            await self._learn(policy, subject)
            return await self._store.settle(self._rule_of_hits(policy, subject), subject, stamp(hit), units)
        finally:
            self._denied.forget((subject,))

    async def usage(
        self,
        policy: str,
        subject: Subject,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> tuple[LimitStatus, ...]:
        """What is used and left of each limit now; consumes nothing. As `Limiter.usage`."""
        attempt = self._attempt(policy, subject, 0, None, segment, channel, zone, least=0)
        await self._learn(policy, attempt.subject)
        return (await self._store.peek(*self._arguments(attempt))).limits

    async def decide_all(self, attempts: Sequence[Attempt]) -> Joint:
        """May all of these have their cost now, or none? As `Limiter.decide_all`."""
        checked = self._joint_attempts(attempts)
        with self._observers.joint("decide_all", checked) as seen:
            try:
                for one in checked:
                    await self._learn(one.policy, one.subject)
                return seen(await self._store.decide_all(self._store_attempts(checked)))
            except StoreError as error:
                return seen(self._outage.joint(checked, error, consume=True))

    async def peek_all(self, attempts: Sequence[Attempt]) -> Joint:
        """What `decide_all` would answer; consumes nothing. As `Limiter.peek_all`."""
        checked = self._joint_attempts(attempts)
        with self._observers.joint("peek_all", checked) as seen:
            try:
                for one in checked:
                    await self._learn(one.policy, one.subject)
                return seen(await self._store.peek_all(self._store_attempts(checked)))
            except StoreError as error:
                return seen(self._outage.joint(checked, error, consume=False))

    async def decide_batch(self, attempts: Sequence[Attempt]) -> list[Decision | CaplineError]:
        """Decide attempts of any policies, in order, each by itself. As `Limiter.decide_batch`."""
        rows = count_of(attempts, "attempts")
        pending = await _aside(MANY if self._overridden else rows, partial(self._pending, attempts))
        with pending.seen as seen:
            try:
                decided = await self._store.decide_batch(pending.to_decide)
            except StoreError as error:
                self._outage.check(error)
                decided = [error] * len(pending.to_decide)
            seen.store_answered()
            return await _aside(rows, partial(self._filled, pending, decided))

    async def decide_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        zone: str | Sequence[str | None] | None = None,
        cost: int = 1,
        receipt: str | None = None,
    ) -> Decisions:
        """Decide one attempt for each subject, in order, as columns. As `Limiter.decide_many`."""
        rows = count_of(subjects, "subjects")
        columns = await _aside(
            rows, partial(self._columns, policy, subjects, segment, codes, channel, cost, zone, receipt)
        )
        with self._seen_many(columns, consume=True) as seen:
            try:
                answers = await self._store.decide_many(await self._batched(columns))
            except StoreError as error:
                answers = await _aside(rows, partial(self._outage.many, columns, error, consume=True))
            seen.store_answered()
            return await _aside(rows, partial(self._spread, columns, answers, seen, consume=True))

    async def peek_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        zone: str | Sequence[str | None] | None = None,
        cost: int = 1,
    ) -> Decisions:
        """What `decide` would answer for each subject alone, as columns; consumes nothing."""
        rows = count_of(subjects, "subjects")
        columns = await _aside(rows, partial(self._columns, policy, subjects, segment, codes, channel, cost, zone))
        with self._seen_many(columns, consume=False) as seen:
            try:
                answers = await self._store.peek_many(await self._batched(columns))
            except StoreError as error:
                answers = await _aside(rows, partial(self._outage.many, columns, error, consume=False))
            seen.store_answered()
            return await _aside(rows, partial(self._spread, columns, answers, seen, consume=False))

    async def refund_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        hits: Sequence[int] | NDArray[np.integer[Any]],
        cost: int = 1,
    ) -> NDArray[np.bool_]:
        """`refund` for many hits of one policy, in one step; `subjects[i]` had `hits[i]`."""
        named, stamps_us = await _aside(count_of(subjects, "subjects"), partial(self._refunds, subjects, hits))
        try:
            if self._needs_each(policy):
                given_back: list[bool] = []
                for one, at_us in zip(named, stamps_us, strict=True):
                    await self._learn(policy, one)
                    compiled = self._rule_of_hits(policy, one)
                    given_back.append(await self._store.refund(compiled, one, at_us, check_cost(cost)))
                return np.array(given_back, np.bool_)
            return await self._store.refund_many(self._any_rule(policy), named, stamps_us, check_cost(cost))
        finally:
            self._denied.forget(named)

    async def _batched(self, columns: AttemptColumns) -> Batch:
        """`_batch`, in a thread where it may ask for overrides."""
        return await _aside(MANY if columns.policy in self._overridden else 0, partial(self._batch, columns))


async def _aside(rows: int, work: Callable[[], T]) -> T:
    """Do work over so many rows; in a thread above `ROWS_ON_THE_LOOP`, so that the loop is not blocked."""
    return work() if rows <= ROWS_ON_THE_LOOP else await asyncio.to_thread(work)
