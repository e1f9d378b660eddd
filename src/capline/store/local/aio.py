"""A store on this machine, as one whose instructions are awaited.

A decision there takes microseconds, less than handing it to a thread would, so it runs where it is awaited. Batches and
sweeps run in a thread. One of them may hold the store's lock for seconds, so while any runs, all else that is awaited
goes to a thread too, and the loop goes on. A batch whose caller is cancelled runs to its end.

On lmdb two calls are not awaited and still wait for that lock where they are made: `stats`, and `compiled` for a log
that this store has not met. So does a decision while another process is in a transaction.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from capline.store.protocol import AsyncStore, Operation, Store
from capline.support.override import override

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from capline.model.policy import BoundPolicy
    from capline.store.protocol import CompiledRule

    _Awaited: TypeAlias = "Callable[Concatenate[AsyncLocalStore, _P], Coroutine[Any, Any, _T]]"

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _long(instruction: Callable[Concatenate[Store, _P], _T]) -> _Awaited[_P, _T]:
    @wraps(instruction, updated=())
    async def awaited(store: AsyncLocalStore, /, *args: _P.args, **named: _P.kwargs) -> _T:
        return await store.in_thread(getattr(store.store, instruction.__name__), *args, **named)

    return awaited


def _short(instruction: Callable[Concatenate[Store, _P], _T]) -> _Awaited[_P, _T]:
    """The instruction, here, or while a batch runs in the thread of these: batches may have taken all others."""

    @wraps(instruction, updated=())
    async def awaited(store: AsyncLocalStore, /, *args: _P.args, **named: _P.kwargs) -> _T:
        call = partial(getattr(store.store, instruction.__name__), *args, **named)
        return call() if not store.batches else await store.beside_batches(call)

    return awaited


class AsyncLocalStore(AsyncStore):
    """See the module's text, and `Store` for what each instruction does."""

    may_lose_answers = False

    def __init__(self, store: Store) -> None:
        self.store = store
        self.batches: set[asyncio.Task[Any]] = set()
        self._singles = ThreadPoolExecutor(1, "capline-single")

    async def in_thread(self, work: Callable[_P, _T], *args: _P.args, **named: _P.kwargs) -> _T:
        """Run it in a thread; the set knows of it until the thread has ended, also where the caller was cancelled."""
        task = asyncio.create_task(asyncio.to_thread(work, *args, **named))
        self.batches.add(task)
        task.add_done_callback(self.batches.discard)
        return await asyncio.shield(task)

    async def beside_batches(self, work: Callable[[], _T]) -> _T:
        """Run it in the thread that batches leave free."""
        return await asyncio.get_running_loop().run_in_executor(self._singles, work)

    @override
    def at_hand(self) -> Store | None:
        return None if self.batches else self.store

    @override
    def compiled(self, rule: BoundPolicy, /) -> CompiledRule:
        return self.store.compiled(rule)

    async def step(self, operation: Operation, /) -> Any:
        """One unit without an id has a fast path."""
        if self.batches:
            return await self.beside_batches(partial(self.store.step, operation))
        if operation.kind == "decide" and operation.cost == 1 and not operation.fingerprint:
            return operation.compiled.decide_one(operation.subject)
        return self.store.step(operation)

    joint = _short(Store.joint)
    rows = _long(Store.rows)
    columns = _long(Store.columns)
    recorded = _short(Store.recorded)
    merge = _long(Store.merge)
    scan = _long(Store.scan)
    erase = _short(Store.erase)
    sweep = _long(Store.sweep)
    servers = _short(Store.servers)
    try_write = _short(Store.try_write)
    now_us = _short(Store.now_us)

    @override
    async def filled(self, most: int, /) -> Collection[str] | None:
        call = partial(self.store.filled, most)
        return call() if not self.batches else await self.beside_batches(call)

    @override
    def stats(self) -> dict[str, int]:
        return self.store.stats()

    async def close(self) -> None:
        """Also the thread."""
        if self.batches:
            await self.beside_batches(self.store.close)
        else:
            self.store.close()
        self._singles.shutdown(wait=False)
