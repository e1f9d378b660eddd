"""A store on this machine, as one whose verbs are awaited.

A decision there takes microseconds, less than handing it to a thread would, so it runs where it is awaited. Batches and
sweeps run in a thread. One of them may hold the store's lock for seconds, so while any runs, every other verb that is
awaited goes to a thread too, and the loop goes on. A batch whose caller is cancelled runs to its end.

On lmdb two calls are not awaited and still wait for that lock where they are made: `stats`, and `compiled` for a log
that this store has not met. So does a decision while another process is in a transaction.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from capline.store.protocol import AsyncStore
from capline.support.override import override

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.decision import Decision, Joint
    from capline.model.errors import CaplineError
    from capline.model.policy import BoundPolicy
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.local.base import LocalStore
    from capline.store.local.transaction import LocalRule
    from capline.store.protocol import Batch, Merge, Page, StoreAttempt
    from capline.window.log import Hit
    from capline.window.merge import Merged

__all__ = ["AsyncLocalStore"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class AsyncLocalStore(AsyncStore):
    """See the module's text, and `Store` for what each verb does."""

    may_lose_answers = False

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._batches: set[asyncio.Task[Any]] = set()
        self._singles = ThreadPoolExecutor(1, "capline-single")

    async def _batch(self, verb: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Run it in a thread; the set knows of it until the thread has ended, also where the caller was cancelled."""
        task = asyncio.create_task(asyncio.to_thread(verb, *args, **named))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)
        return await asyncio.shield(task)

    async def _single(self, verb: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Run it here, or while a batch runs in the thread of these verbs: batches may have taken all others."""
        if not self._batches:
            return verb(*args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._singles, partial(verb, *args, **named))

    @override
    def compiled(self, rule: BoundPolicy) -> LocalRule:
        return self._store.compiled(rule)

    @override
    async def decide(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        if cost == 1 and not fingerprint and not self._batches:
            return compiled.decide_one(subject)
        return await self._single(self._store.decide, compiled, subject, cost, fingerprint)

    @override
    async def peek(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return await self._single(self._store.peek, compiled, subject, cost, fingerprint)

    @override
    async def charge(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return await self._single(self._store.charge, compiled, subject, cost, fingerprint)

    @override
    async def settle(self, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int) -> bool:
        return await self._single(self._store.settle, compiled, subject, stamp_us, cost)

    @override
    async def reserve(
        self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int, ttl_us: int
    ) -> Decision:
        return await self._single(self._store.reserve, compiled, subject, cost, fingerprint, ttl_us)

    @override
    async def commit(self, compiled: LocalRule, subject: Subject, stamp_us: int) -> bool:
        return await self._single(self._store.commit, compiled, subject, stamp_us)

    @override
    async def schedule(
        self,
        compiled: LocalRule,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        return await self._single(
            self._store.schedule, compiled, subject, cost, fingerprint, max_wait_us, not_before_us
        )

    @override
    async def refund(self, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        return await self._single(self._store.refund, compiled, subject, stamp_us, cost)

    @override
    async def decide_all(self, attempts: Sequence[StoreAttempt]) -> Joint:
        return await self._single(self._store.decide_all, attempts)

    @override
    async def peek_all(self, attempts: Sequence[StoreAttempt]) -> Joint:
        return await self._single(self._store.peek_all, attempts)

    @override
    async def schedule_all(
        self, attempts: Sequence[StoreAttempt], max_wait_us: int | None, not_before_us: int = 0
    ) -> Joint:
        return await self._single(self._store.schedule_all, attempts, max_wait_us, not_before_us)

    @override
    async def decide_batch(self, attempts: Sequence[StoreAttempt]) -> list[Decision | CaplineError]:
        return await self._batch(self._store.decide_batch, attempts)

    @override
    async def decide_many(self, batch: Batch) -> Decisions:
        return await self._batch(self._store.decide_many, batch)

    @override
    async def peek_many(self, batch: Batch) -> Decisions:
        return await self._batch(self._store.peek_many, batch)

    @override
    async def refund_many(
        self, compiled: LocalRule, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        return await self._batch(self._store.refund_many, compiled, subjects, stamps_us, cost)

    @override
    async def recorded(self, compiled: LocalRule, subject: Subject) -> list[list[Hit]]:
        return await self._single(self._store.recorded, compiled, subject)

    @override
    async def merge(self, attempts: Sequence[Merge]) -> list[Merged | CaplineError]:
        return await self._batch(self._store.merge, attempts)

    @override
    async def scan(self, compiled: Sequence[LocalRule], after: Any = None) -> Page:
        return await self._batch(self._store.scan, compiled, after)

    @override
    async def erase(self, compiled: Sequence[LocalRule], subject: Subject) -> int:
        return await self._single(self._store.erase, compiled, subject)

    @override
    async def sweep(self, compiled: Sequence[LocalRule], /) -> int:
        return await self._batch(self._store.sweep, compiled)

    @override
    def stats(self) -> dict[str, int]:
        return self._store.stats()

    @override
    async def servers(self) -> list[ServerState]:
        return self._store.servers()

    @override
    async def try_write(self) -> None:
        await self._single(self._store.try_write)

    @override
    async def now_us(self) -> int:
        return self._store.now_us()

    @override
    async def close(self) -> None:
        await self._single(self._store.close)
        self._singles.shutdown(wait=False)
