"""`AsyncLimiter`: the same verbs over a store that is awaited. Every check and look-up is in `LimiterBase`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, TypeVar

from capline.limiter.base import LimiterBase
from capline.limiter.checks import check_iterable, count_of, refusal_text, seconds_us, stamp, typed
from capline.limiter.patience import Patience
from capline.limiter.records import RECORDS_A_ROUND, LoadProgress
from capline.model.attempt import check_cost
from capline.model.errors import CaplineError, InvalidValueError, LimitExceeded, StoreError
from capline.model.late import LateModule
from capline.model.subject import check_subject
from capline.store.open import open_async_store
from capline.store.protocol import AsyncStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
    from datetime import datetime

    import numpy as np
    from numpy.typing import NDArray

    from capline.limiter.columns import AttemptColumns
    from capline.limiter.explain import Explanation
    from capline.limiter.records import Loaded, LogRecord, Record
    from capline.model.attempt import Attempt
    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.limit import Limit
    from capline.model.limit_status import LimitStatus
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.protocol import Batch, CompiledRule
else:
    np = LateModule("numpy")

__all__ = ["AsyncLimiter"]

_ONE = 1
T = TypeVar("T")
ROWS_ON_THE_LOOP = 4096
"""Rows whose checks take the loop about a millisecond; with more, they go to a thread."""
MANY = ROWS_ON_THE_LOOP + 1


class AsyncLimiter(LimiterBase[AsyncStore]):
    """See `Limiter` for what each verb and option does; this one is awaited, and closed by `async with` or `close`.

    It belongs to one event loop. On a store of this machine a decision runs where it is awaited, as it takes
    microseconds; large batches run in a thread. With `segments` as the address of a publication, making it waits for
    the first fetch: on a loop that serves already, start a `SegmentWatch` in a thread and give it that.
    """

    @staticmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> AsyncStore:
        return open_async_store(url, clock, create=create)

    async def now_us(self) -> int:
        """See `Limiter.now_us`."""
        return await self._store.now_us()

    async def servers(self) -> list[ServerState]:
        """See `Limiter.servers`."""
        return await self._store.servers()

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
        """See `Limiter.decide`."""
        if limits is not None:
            return await self._under(policy, limits).decide(
                policy, subject, cost, id, segment=segment, channel=channel, zone=zone
            )
        if id is None and cost is _ONE:
            try:
                compiled = self._fast_terms.get((policy, segment, channel, zone))
                if compiled is not None:
                    if self._counts_one:
                        return await self._counted(compiled, policy, subject, segment, channel, zone)
                    return await self._store.decide(compiled, check_subject(subject), 1, 0)
            except InvalidValueError:
                if not self._hashes_long:
                    raise
            except StoreError as error:
                return self._outage.decide(self._asked(policy, subject, cost, id, segment, channel, zone), error)
            except TypeError as error:
                raise typed(error, policy, segment, channel, zone) from None
        asked = self._asked(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("decide", asked) as seen:
            denied = self._denied
            held = denied.answer(asked)
            if held is not None:
                return seen.unasked(held)
            epoch = denied.epoch()
            try:
                await self._learn(policy, asked.subject)
                decision = seen(await self._store.decide(*self._arguments(asked)))
            except StoreError as error:
                return seen(self._outage.decide(asked, error))
            self._note(asked, decision, denied, epoch)
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
            asked = self._asked(policy, subject, 1, None, segment, channel, zone)
            with self._observers.one("decide", asked).since(began) as seen:
                return seen(self._outage.decide(asked, error))
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
        """See `Limiter.peek`."""
        if limits is not None:
            return await self._under(policy, limits).peek(
                policy, subject, cost, id, segment=segment, channel=channel, zone=zone
            )
        asked = self._peeked(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("peek", asked) as seen:
            try:
                await self._learn(policy, asked.subject)
                return seen(await self._store.peek(*self._arguments(asked)))
            except StoreError as error:
                return seen(self._outage.peek(asked, error))

    async def refund(
        self,
        policy: str,
        subject: Subject,
        hit: int | None,
        cost: int = 1,
        *,
        limits: Sequence[Limit | str] | None = None,
    ) -> bool:
        """See `Limiter.refund`."""
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
        """See `Limiter.charge`."""
        asked = self._asked(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("charge", asked) as seen:
            await self._learn(policy, asked.subject)
            return seen(await self._store.charge(*self._arguments(asked)))

    async def settle(self, policy: str, subject: Subject, hit: int | None, cost: int) -> bool:
        """See `Limiter.settle`."""
        units = check_cost(cost, 0)
        if hit is None:
            return False
        subject = self._subject(subject)
        try:
            await self._learn(policy, subject)
            return await self._store.settle(self._refund_terms(policy, subject), subject, stamp(hit), units)
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
        """See `Limiter.usage`."""
        asked = self._asked(policy, subject, 0, None, segment, channel, zone, least=0)
        await self._learn(policy, asked.subject)
        return (await self._store.peek(*self._arguments(asked))).limits

    async def flush(self, policy: str) -> int:
        """See `Limiter.flush`."""
        compiled = [self._any_terms(policy)]
        subjects: set[Subject] = set()
        page = await self._store.scan(compiled)
        while True:
            subjects.update(one.subject for one in page.found if one.subject is not None)
            if page.after is None:
                break
            page = await self._store.scan(compiled, page.after)
        for subject in subjects:
            await self._store.erase(compiled, subject)
        self._denied.forget(subjects)
        return len(subjects)

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
        """See `Limiter.schedule`."""
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
        """See `Limiter.acquire`; cancelling gives the slot back, also while it is being taken.

        It waits for that refund, so a cancelled caller goes on when the store has answered.
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

    async def decide_all(self, attempts: Sequence[Attempt]) -> Joint:
        """See `Limiter.decide_all`."""
        asked = self._joint_asked(attempts)
        with self._observers.joint("decide_all", asked) as seen:
            try:
                for one in asked:
                    await self._learn(one.policy, one.subject)
                return seen(await self._store.decide_all(self._store_attempts(asked)))
            except StoreError as error:
                return seen(self._outage.joint(asked, error, consume=True))

    async def peek_all(self, attempts: Sequence[Attempt]) -> Joint:
        """See `Limiter.peek_all`."""
        asked = self._joint_asked(attempts)
        with self._observers.joint("peek_all", asked) as seen:
            try:
                for one in asked:
                    await self._learn(one.policy, one.subject)
                return seen(await self._store.peek_all(self._store_attempts(asked)))
            except StoreError as error:
                return seen(self._outage.joint(asked, error, consume=False))

    async def refund_all(self, attempts: Sequence[Attempt], hits: Sequence[int]) -> int:
        """See `Limiter.refund_all`."""
        given_back = 0
        for one, hit in self._refund_pairs(attempts, hits):
            given_back += await self.refund(one.policy, one.subject, hit, one.cost)
        return given_back

    async def decide_batch(self, attempts: Sequence[Attempt]) -> list[Decision | CaplineError]:
        """See `Limiter.decide_batch`."""
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
        """See `Limiter.decide_many`."""
        rows = count_of(subjects, "subjects")
        asked = await _aside(
            rows, partial(self._columns, policy, subjects, segment, codes, channel, cost, zone, receipt)
        )
        with self._seen_many(asked, consume=True) as seen:
            try:
                answers = await self._store.decide_many(await self._batched(asked))
            except StoreError as error:
                answers = await _aside(rows, partial(self._outage.many, asked, error, consume=True))
            seen.store_answered()
            return await _aside(rows, partial(self._spread, asked, answers, seen, consume=True))

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
        """See `Limiter.peek_many`."""
        rows = count_of(subjects, "subjects")
        asked = await _aside(rows, partial(self._columns, policy, subjects, segment, codes, channel, cost, zone))
        with self._seen_many(asked, consume=False) as seen:
            try:
                answers = await self._store.peek_many(await self._batched(asked))
            except StoreError as error:
                answers = await _aside(rows, partial(self._outage.many, asked, error, consume=False))
            seen.store_answered()
            return await _aside(rows, partial(self._spread, asked, answers, seen, consume=False))

    async def refund_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        hits: Sequence[int] | NDArray[np.integer[Any]],
        cost: int = 1,
    ) -> NDArray[np.bool_]:
        """See `Limiter.refund_many`."""
        named, stamps_us = await _aside(count_of(subjects, "subjects"), partial(self._refunds, subjects, hits))
        try:
            if self._needs_each(policy):
                given_back: list[bool] = []
                for one, at_us in zip(named, stamps_us, strict=True):
                    await self._learn(policy, one)
                    terms = self._refund_terms(policy, one)
                    given_back.append(await self._store.refund(terms, one, at_us, check_cost(cost)))
                return np.array(given_back, np.bool_)
            return await self._store.refund_many(self._any_terms(policy), named, stamps_us, check_cost(cost))
        finally:
            self._denied.forget(named)

    async def explain(
        self,
        policy: str,
        subject: Subject,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        ids: Sequence[str] = (),
    ) -> Explanation:
        """See `Limiter.explain`."""
        asked = self._asked(policy, subject, 1, None, segment, channel, zone)
        await self._learn(policy, asked.subject)
        arguments = self._arguments(asked)
        known = self._known_ids(ids)
        decision = await self._store.peek(*arguments)
        logs = await self._store.recorded(*arguments[:2])
        return self._explained(asked, subject, await self._store.now_us(), decision, logs, known)

    async def override(
        self,
        policy: str,
        subject: Subject,
        limits: Sequence[Limit | str] | None,
        *,
        effective_at: str | datetime | None = None,
        who: str | None = None,
    ) -> int:
        """See `Limiter.override`."""
        config, named = self._override_in(policy, subject)
        checked = self._override_limits(policy, limits)
        return await asyncio.to_thread(config.override, policy, named, checked, effective_at=effective_at, who=who)

    async def _learn(self, policy: str, subject: Subject) -> None:
        """Have the subject's override at hand, if its policy has any: what asks for it blocks, so in a thread."""
        overrides = self._overrides
        if policy in self._overridden and overrides is not None and not overrides.knows(policy, subject):
            await asyncio.to_thread(overrides.learn, policy, subject)

    async def _batched(self, asked: AttemptColumns) -> Batch:
        """`_batch`, in a thread where it may ask for overrides."""
        return await _aside(MANY if asked.policy in self._overridden else 0, partial(self._batch, asked))

    async def erase(self, subject: Subject) -> int:
        """See `Limiter.erase`."""
        subject = self._subject(subject)
        self._outage.forget(subject)
        try:
            for name in self._overridden:
                await self._learn(name, subject)
            return await self._store.erase(self._all_terms(subject), subject)
        finally:
            self._denied.forget((subject,))

    async def export(
        self,
        policies: Sequence[str] | None = None,
        *,
        on_fault: Callable[[CaplineError], object] | None = None,
    ) -> AsyncIterator[LogRecord]:
        """See `Limiter.export`."""
        compiled = self._terms_to_scan(policies)
        page = await self._store.scan(compiled) if compiled else None
        while page is not None:
            for record in self._exported(page.found, on_fault):
                yield record
            page = None if page.after is None else await self._store.scan(compiled, page.after)

    async def load(self, records: Iterable[Record] | AsyncIterable[Record]) -> Loaded:
        """See `Limiter.load`; the records may come from an `export`."""
        tally = LoadProgress()
        lot: list[Record] = []

        async def merge() -> None:
            tally.take(await self._store.merge(self._merges(lot, tally.loaded.records + 1)))
            lot.clear()

        if isinstance(records, AsyncIterable):
            async for record in records:
                lot.append(record)
                if len(lot) == RECORDS_A_ROUND:
                    await merge()
        else:
            for record in check_iterable(records, "records"):
                lot.append(record)
                if len(lot) == RECORDS_A_ROUND:
                    await merge()
        if lot:
            await merge()
        return tally.loaded

    async def sweep(self) -> int:
        """See `Limiter.sweep`."""
        self._outage.sweep()
        return await self._store.sweep()

    async def close(self) -> None:
        """See `Limiter.close`."""
        store = self._shut()
        if store is not None:
            if self._lookup is not None:
                await asyncio.to_thread(self._stop_following)
            await store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _aside(rows: int, work: Callable[[], T]) -> T:
    """Do the work on so many rows; in a thread if they are many, so that the loop goes on."""
    return work() if rows <= ROWS_ON_THE_LOOP else await asyncio.to_thread(work)


async def _through(task: asyncio.Task[None]) -> None:
    """Wait until the task is done, however often this wait is cancelled: the caller was cancelled already."""
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
