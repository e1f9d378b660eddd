"""A store on this machine, as one whose verbs are awaited.

A decision there takes microseconds, less than handing it to a thread would, so it runs where it is awaited; batches and
sweeps run in a thread, and the loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.decision import Decision, Joint
    from capline.model.errors import CaplineError
    from capline.model.policy import BoundPolicy
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.local.base import LocalRule, LocalStore
    from capline.store.protocol import Batch, Merge, Page, Recorded, StoreAttempt
    from capline.window.merge import Merged

__all__ = ["AsyncLocalStore"]


class AsyncLocalStore:
    """See the module's text, and `Store` for what each verb does."""

    may_lose_answers = False

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def compiled(self, rule: BoundPolicy) -> LocalRule:
        """See `Store`."""
        return self._store.compiled(rule)

    async def decide(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """See `Store`."""
        if cost == 1 and not fingerprint:
            return compiled.decide_one(subject)
        return self._store.decide(compiled, subject, cost, fingerprint)

    async def peek(self, compiled: LocalRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """See `Store`."""
        return self._store.peek(compiled, subject, cost, fingerprint)

    async def place(
        self,
        compiled: LocalRule,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        """See `Store`."""
        return self._store.place(compiled, subject, cost, fingerprint, max_wait_us, not_before_us)

    async def refund(self, compiled: LocalRule, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        """See `Store`."""
        return self._store.refund(compiled, subject, stamp_us, cost)

    async def decide_all(self, asks: Sequence[StoreAttempt]) -> Joint:
        """See `Store`."""
        return self._store.decide_all(asks)

    async def peek_all(self, asks: Sequence[StoreAttempt]) -> Joint:
        """See `Store`."""
        return self._store.peek_all(asks)

    async def decide_batch(self, asks: Sequence[StoreAttempt]) -> list[Decision | CaplineError]:
        """See `Store`."""
        return await asyncio.to_thread(self._store.decide_batch, asks)

    async def decide_many(self, batch: Batch) -> Decisions:
        """See `Store`."""
        return await asyncio.to_thread(self._store.decide_many, batch)

    async def peek_many(self, batch: Batch) -> Decisions:
        """See `Store`."""
        return await asyncio.to_thread(self._store.peek_many, batch)

    async def refund_many(
        self, compiled: LocalRule, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        """See `Store`."""
        return await asyncio.to_thread(self._store.refund_many, compiled, subjects, stamps_us, cost)

    async def recorded(self, compiled: LocalRule, subject: Subject) -> list[list[Recorded]]:
        """See `Store`."""
        return self._store.recorded(compiled, subject)

    async def merge(self, asks: Sequence[Merge]) -> list[Merged | CaplineError]:
        """See `Store`."""
        return await asyncio.to_thread(self._store.merge, asks)

    async def scan(self, compiled: Sequence[LocalRule], after: Any = None) -> Page:
        """See `Store`."""
        return await asyncio.to_thread(self._store.scan, compiled, after)

    async def erase(self, compiled: Sequence[LocalRule], subject: Subject) -> int:
        """See `Store`."""
        return self._store.erase(compiled, subject)

    async def sweep(self) -> int:
        """See `Store`."""
        return await asyncio.to_thread(self._store.sweep)

    def stats(self) -> dict[str, int]:
        """See `Store`."""
        return self._store.stats()

    async def now_us(self) -> int:
        """See `Store`."""
        return self._store.now_us()

    async def close(self) -> None:
        """See `Store`."""
        self._store.close()
