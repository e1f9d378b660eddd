"""`AsyncLimiter`: the same verbs, awaited.

On the stores of this machine a decision takes microseconds, less than handing it to a thread would, so it runs where it
is awaited; batches run in a thread. Every check and every look-up is `Limiter`'s own.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from capline.limiter.checks import refusal_text
from capline.limiter.limiter import DEFAULT_URL, Limiter
from capline.limiter.rules import DEFAULT_NAMESPACE
from capline.model.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from capline.limiter.explain import Explanation
    from capline.model.attempt import Attempt
    from capline.model.clock import Clock
    from capline.model.decision import Decision
    from capline.model.errors import CaplineError
    from capline.model.policy import Policy
    from capline.model.subject import Subject
    from capline.store.columns import Decisions

__all__ = ["AsyncLimiter"]


class AsyncLimiter:
    """See `Limiter` for what each verb does; this one is awaited, and closed by `async with` or `await close()`."""

    def __init__(
        self,
        url: str,
        policies: Iterable[Policy] = (),
        *,
        clock: Clock | None = None,
        on_store_error: str = "raise",
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        self._limiter = Limiter(url, policies, clock=clock, on_store_error=on_store_error, namespace=namespace)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        url: str = DEFAULT_URL,
        *,
        clock: Clock | None = None,
        on_store_error: str = "raise",
    ) -> Self:
        """See `Limiter.from_file`."""
        limiter = cls.__new__(cls)
        limiter._limiter = Limiter.from_file(path, url, clock=clock, on_store_error=on_store_error)  # noqa: SLF001 - its own class
        return limiter

    async def decide(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Decision:
        """See `Limiter.decide`."""
        return self._limiter.decide(policy, subject, cost, id, segment=segment, channel=channel)

    async def peek(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Decision:
        """See `Limiter.peek`."""
        return self._limiter.peek(policy, subject, cost, id, segment=segment, channel=channel)

    async def refund(self, policy: str, subject: Subject, hit: int | None) -> bool:
        """See `Limiter.refund`."""
        return self._limiter.refund(policy, subject, hit)

    async def schedule(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        max_wait: float | None = None,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Decision:
        """See `Limiter.schedule`."""
        return self._limiter.schedule(policy, subject, cost, id, max_wait=max_wait, segment=segment, channel=channel)

    @asynccontextmanager
    async def acquire(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the wait is known beforehand: past it nothing is taken
        segment: str | None = None,
        channel: str | None = None,
    ) -> AsyncGenerator[Decision]:
        """See `Limiter.acquire`; cancelling the wait gives the slot back."""
        slot = await self.schedule(policy, subject, cost, max_wait=timeout, segment=segment, channel=channel)
        if not slot.allowed:
            raise LimitExceeded(refusal_text(policy, subject, slot), slot)
        try:
            await asyncio.sleep(slot.wait)
        except BaseException:
            self._limiter.refund(policy, subject, slot.hit)
            raise
        yield slot

    async def decide_batch(self, attempts: Sequence[Attempt]) -> list[Decision | CaplineError]:
        """See `Limiter.decide_batch`."""
        return await asyncio.to_thread(self._limiter.decide_batch, attempts)

    async def decide_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        cost: int = 1,
        receipt: str | None = None,
    ) -> Decisions:
        """See `Limiter.decide_many`."""
        verb = partial(
            self._limiter.decide_many, segment=segment, codes=codes, channel=channel, cost=cost, receipt=receipt
        )
        return await asyncio.to_thread(verb, policy, subjects)

    async def peek_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        cost: int = 1,
    ) -> Decisions:
        """See `Limiter.peek_many`."""
        verb = partial(self._limiter.peek_many, segment=segment, codes=codes, channel=channel, cost=cost)
        return await asyncio.to_thread(verb, policy, subjects)

    async def refund_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        hits: Sequence[int] | NDArray[np.integer[Any]],
    ) -> NDArray[np.bool_]:
        """See `Limiter.refund_many`."""
        return await asyncio.to_thread(self._limiter.refund_many, policy, subjects, hits)

    async def explain(
        self,
        policy: str,
        subject: Subject,
        *,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Explanation:
        """See `Limiter.explain`."""
        return self._limiter.explain(policy, subject, segment=segment, channel=channel)

    async def erase(self, subject: Subject) -> int:
        """See `Limiter.erase`."""
        return self._limiter.erase(subject)

    async def sweep(self) -> int:
        """See `Limiter.sweep`."""
        return await asyncio.to_thread(self._limiter.sweep)

    def use(self, policies: Iterable[Policy]) -> None:
        """See `Limiter.use`."""
        self._limiter.use(policies)

    def reload(self) -> bool:
        """See `Limiter.reload`."""
        return self._limiter.reload()

    async def close(self) -> None:
        """See `Limiter.close`."""
        self._limiter.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
