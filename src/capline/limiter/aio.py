"""`AsyncLimiter`: the verbs over a store that is awaited."""

# ruff: noqa: SLF001 - its verbs are made from those of its own base

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from contextlib import AsyncContextDecorator
from itertools import count
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from capline.limiter.arguments.checks import check_iterable, fingerprint, typed
from capline.limiter.arguments.records import LoadProgress
from capline.limiter.patience import Acquisition, Wanted
from capline.limiter.steps import acquiring, awaited, named_as, run_awaited
from capline.limiter.verbs import ROWS_ON_THE_LOOP, Verbs, more_of
from capline.model.attempt import Attempt, check_cost
from capline.model.errors import CaplineError, InvalidValueError, StoreError
from capline.model.subject import check_subject
from capline.store.open import open_async_store
from capline.store.protocol import Operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence

    from capline.limiter.arguments.records import Loaded, LogRecord, Record
    from capline.limiter.policies.overrides import Unit
    from capline.limiter.steps import Steps
    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.limit import Limit
    from capline.model.subject import Subject
    from capline.store.protocol import AsyncStore, CompiledRule, Kind, Store

_ZERO, _ONE = 0, 1
SLOTS_A_TURN = 64
"""Of so many slots that are free at once one lets the event loop have its turn."""
_SLOTS = count(1)
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")
Slot = TypeVar("Slot", "Decision", "Joint")


class AwaitedSlot(AsyncContextDecorator, Generic[Slot]):
    """`AcquiredSlot` for `async with`.

    The slot is given back if the wait is cancelled.
    """

    def __init__(self, want: Wanted[Slot]) -> None:
        self._want = want

    async def __aenter__(self) -> Slot:
        if not next(_SLOTS) % SLOTS_A_TURN:
            await asyncio.sleep(0)
        wanted = self._want()
        if not isinstance(wanted, Acquisition):
            return wanted
        while True:
            # In a task of its own: a call that is cancelled half-way may have taken a slot that nobody would refund.
            taking = asyncio.create_task(run_awaited(wanted.taken()))
            try:
                slot = await asyncio.shield(taking)
                while wanted.left_us:
                    await wanted.sleep(wanted.nap())
                    taking = asyncio.create_task(run_awaited(wanted.moved(slot)))
                    slot = await asyncio.shield(taking)
            except asyncio.CancelledError as stopped:
                wanted.patience.give_up()
                await _through(asyncio.create_task(_gave_back(taking, wanted, stopped)))
                raise
            if not slot.allowed:
                raise wanted.refusal(slot)
            if not wanted.patience.is_late(slot):
                return slot
            missed = asyncio.create_task(run_awaited(wanted.given_back(slot)))
            try:
                await asyncio.shield(missed)
            except asyncio.CancelledError:
                await _through(missed)
                raise

    async def __aexit__(self, *_: object) -> None:
        return None


async def _gave_back(taking: asyncio.Future[Slot], wanted: Acquisition[Slot], stopped: BaseException) -> None:
    try:
        await run_awaited(wanted.given_back(await taking))
    except CaplineError as error:
        stopped.add_note(f"the slot was not given back: {error}")


async def _through(task: asyncio.Task[Any]) -> None:
    """Wait until the task is done, however often this wait is cancelled: the caller was cancelled already."""
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue


def _asking(
    kind: Kind, verb: Callable[Concatenate[V, P], Steps[Decision]]
) -> Callable[Concatenate[V, P], Coroutine[Any, Any, Decision]]:
    """The verb as a coroutine; at once on the store's fast path where little more than a cost is given."""
    general: Any = awaited(verb)
    more, usual = more_of(kind)

    async def call(self: Any, policy: str, subject: Subject, cost: int = 1, id: str | None = None, **named: Any) -> Any:
        answer = None
        if self._store.at_hand() is not None and (not named or (more and [*named] == [more])):
            answer = self._asked(kind, policy, subject, cost, id, named.get(more, usual))
        return (await general(self, policy, subject, cost, id, **named)) if answer is None else answer

    named_as(call, verb)
    return call  # pyright: ignore[reportReturnType] - `verb` has these parameters


def _asking_all(
    kind: Kind, verb: Callable[Concatenate[V, P], Steps[Joint]]
) -> Callable[Concatenate[V, P], Coroutine[Any, Any, Joint]]:
    """The verb over several attempts as a coroutine; at once where the store's own step is all it takes."""
    general: Any = awaited(verb)

    async def call(self: Any, attempts: Sequence[Attempt]) -> Any:
        answer = self._asked_all(self._store.at_hand(), kind, attempts)
        return (await general(self, attempts)) if answer is None else answer

    named_as(call, verb)
    return call  # pyright: ignore[reportReturnType] - `verb` has these parameters


class AsyncLimiter(Verbs):
    """`Limiter` with awaited verbs; it says what each verb and option does. Close it by `async with` or `aclose`.

    It belongs to one event loop. On a local store a decision runs on the loop, since it takes microseconds; large
    batches run in a thread. With `segments` as a publication's address the constructor blocks until the first fetch:
    on a running loop, start a `SegmentWatch` in a thread and pass that.
    """

    _store: AsyncStore  # pyright: ignore[reportIncompatibleVariableOverride] - awaited, as its verbs say

    async def decide(  # noqa: C901, PLR0912 - one way after the other
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
        keep_free: int | Sequence[int] = 0,
    ) -> Decision:
        """May the subject have `cost` units now? As `Limiter.decide`, awaited."""
        if limits is not None:
            return await self._with_limits(policy, limits).decide(
                policy, subject, cost, id, segment=segment, channel=channel, zone=zone, keep_free=keep_free
            )
        try:
            plain = segment is None and channel is None and zone is None
            key = policy if plain else (policy, segment, channel, zone)
            decision: Decision | None = None
            compiled, at_hand = self._direct.get(key), self._store.at_hand()
            if keep_free is not _ZERO and compiled is not None:
                compiled = self._keeping(compiled, keep_free)
            if id is None and cost is _ONE and (keep_free is _ZERO or at_hand is not None):
                if compiled is not None and at_hand is not None:
                    decision = compiled.decide_one(subject)
                elif keep_free is _ZERO and (unit := self._units.get(key)) is not None:
                    decision = await unit(subject)
            elif compiled is not None:
                ask, units, name = compiled.ask, check_cost(cost), fingerprint(id)
                if ask is not None and at_hand is not None:
                    decision = ask(subject, units, name)
                else:
                    operation = Operation("decide", compiled, check_subject(subject), units, name)
                    decision = await self._store.step(operation)
            if decision is not None:
                return decision
        except InvalidValueError:
            if not self._hashes_long:
                raise
        except StoreError as error:
            attempt = Attempt(policy, subject, cost, id, segment, channel, zone, None, keep_free)
            return self._outage.single("decide", error, self._checked(attempt))
        except TypeError as error:
            raise typed(error, policy, segment, channel, zone) from None
        attempt = Attempt(policy, subject, cost, id, segment, channel, zone, None, keep_free)
        return await run_awaited(self._decide(self._checked(attempt)))

    peek = _asking("peek", Verbs._peek)
    charge = awaited(Verbs._charge)
    settle = awaited(Verbs._settle)
    usage = awaited(Verbs._usage)
    decide_all = _asking_all("decide", Verbs._decide_all)
    peek_all = _asking_all("peek", Verbs._peek_all)
    decide_batch = awaited(Verbs._decide_batch)
    decide_many = awaited(Verbs._decide_many)
    peek_many = awaited(Verbs._peek_many)
    refund_many = awaited(Verbs._refund_many)
    refund = awaited(Verbs._refund)
    refund_all = awaited(Verbs._refund_all)
    schedule = _asking("schedule", Verbs._schedule)
    schedule_all = awaited(Verbs._schedule_all)
    move = awaited(Verbs._move)
    reserve = _asking("reserve", Verbs._reserve)
    commit = awaited(Verbs._commit)
    cancel = awaited(Verbs._cancel)
    explain = awaited(Verbs._explain)
    override = awaited(Verbs._override)
    flush = awaited(Verbs._flush)
    erase = awaited(Verbs._erase)
    sweep = awaited(Verbs._sweep)
    now_us = awaited(Verbs._now_us)
    try_write = awaited(Verbs._try_write)
    servers = awaited(Verbs._servers)

    acquire = acquiring(AwaitedSlot, Verbs._acquire)
    acquire_all = acquiring(AwaitedSlot, Verbs._acquire_all)

    async def export(
        self, policies: Sequence[str] | None = None, *, on_fault: Callable[[CaplineError], object] | None = None
    ) -> AsyncIterator[LogRecord]:
        """Every log of these policies, with the hits within the widest window. As `Limiter.export`."""
        compiled = self._rules_to_scan(policies, await self._store.filled(len(self._rules.policies)))
        page = await self._store.scan(compiled) if compiled else None
        while page is not None:
            for record in self._exported(page.found, on_fault):
                yield record
            page = None if page.after is None else await self._store.scan(compiled, page.after)

    async def load(self, records: Iterable[Record] | AsyncIterable[Record]) -> Loaded:
        """Merge past hits into the logs, as `Limiter.load`; the records may come from an `export`."""
        progress = LoadProgress()
        if isinstance(records, AsyncIterable):
            async for record in records:
                if progress.add(record):
                    await run_awaited(self._loaded(progress))
        else:
            for record in check_iterable(records, "records"):
                if progress.add(record):
                    await run_awaited(self._loaded(progress))
        await run_awaited(self._loaded(progress))
        return progress.loaded

    async def close(self) -> None:
        """Close the store; every verb raises `StoreClosedError` from then on. Safe to call twice."""
        store = self._shut()
        if store is not None:
            if self._lookup is not None:
                await asyncio.to_thread(self._stop_following)
            await store.close()

    async def aclose(self) -> None:
        """As `close`: the name that `contextlib.aclosing` and other awaited clients use."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @staticmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> AsyncStore:
        return open_async_store(url, clock, create=create)

    _run = staticmethod(run_awaited)

    def _bare(self, compiled: CompiledRule) -> Unit:
        store = self._store
        return lambda subject: store.step(Operation("decide", compiled, check_subject(subject)))

    async def _work(self, rows: int, work: Callable[[], T]) -> T:
        return work() if rows <= ROWS_ON_THE_LOOP else await asyncio.to_thread(work)

    async def _learn(self, policy: str, subject: Subject) -> None:
        overrides = self._overrides
        if policy in self._overridden and overrides is not None and not overrides.knows(policy, subject):
            await asyncio.to_thread(overrides.learn, policy, subject)

    def _at_hand(self) -> Store | None:
        return self._store.at_hand()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
