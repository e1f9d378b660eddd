"""Verbs over whole logs, and what opens and closes a limiter; as awaited by `AsyncLimiter`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Self

from capline.limiter.base import LimiterBase
from capline.limiter.checks import check_iterable
from capline.limiter.records import LoadProgress
from capline.store.open import open_async_store
from capline.store.protocol import AsyncStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from datetime import datetime

    from capline.limiter.explain import Explanation
    from capline.limiter.records import Loaded, LogRecord, Record
    from capline.model.clock import Clock
    from capline.model.errors import CaplineError
    from capline.model.limit import Limit
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject

__all__ = ["AsyncUpkeep"]


class AsyncUpkeep(LimiterBase[AsyncStore]):
    """A limiter that is opened and closed, and its verbs over whole logs."""

    @staticmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> AsyncStore:
        return open_async_store(url, clock, create=create)

    async def now_us(self) -> int:
        """The instant that the store would decide at."""
        return await self._store.now_us()

    async def try_write(self) -> None:
        """See `Limiter.try_write`."""
        await self._store.try_write()

    async def servers(self) -> list[ServerState]:
        """See `Limiter.servers`."""
        return await self._store.servers()

    async def flush(self, policy: str) -> int:
        """Forget every subject of the policy, for tests; returns how many. As `Limiter.flush`."""
        compiled = [self._any_rule(policy)]
        subjects: set[Subject] = set()
        page = await self._store.scan(compiled)
        while True:
            subjects.update(one.subject for one in page.found if one.subject is not None)
            if page.after is None:
                break
            page = await self._store.scan(compiled, page.after)
        for subject in subjects:
            await self._store.erase(compiled, subject)
        for subject in await asyncio.to_thread(self._with_own_logs, policy):
            await self._learn(policy, subject)
            if await self._store.erase([self._rule_of_hits(policy, subject)], subject):
                subjects.add(subject)
        self._denied.forget(subjects)
        return len(subjects)

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
        """Why an attempt would be allowed or refused now. As `Limiter.explain`."""
        attempt = self._attempt(policy, subject, 1, None, segment, channel, zone)
        await self._learn(policy, attempt.subject)
        arguments = self._arguments(attempt)
        known = self._known_ids(ids)
        decision = await self._store.peek(*arguments)
        logs = await self._store.recorded(*arguments[:2])
        return self._explained(attempt, subject, await self._store.now_us(), decision, logs, known)

    async def override(
        self,
        policy: str,
        subject: Subject,
        limits: Sequence[Limit | str] | None,
        *,
        granularity: str | None = None,
        effective_at: str | datetime | None = None,
        who: str | None = None,
    ) -> int:
        """Give one subject limits of its own, or with None the policy's again. As `Limiter.override`."""
        config, named = self._override_in(policy, subject)
        self._check_override(policy, limits, granularity)
        return await asyncio.to_thread(
            config.override, policy, named, limits, granularity=granularity, effective_at=effective_at, who=who
        )

    async def _learn(self, policy: str, subject: Subject) -> None:
        """Read the subject's override into the cache, if its policy has any; in a thread, since the read blocks."""
        overrides = self._overrides
        if policy in self._overridden and overrides is not None and not overrides.knows(policy, subject):
            await asyncio.to_thread(overrides.learn, policy, subject)

    async def erase(self, subject: Subject) -> int:
        """Forget the subject in every policy of this limiter; returns how many logs held something."""
        subject = self._subject(subject)
        self._outage.forget(subject)
        try:
            for name in self._overridden:
                await self._learn(name, subject)
            return await self._store.erase(self._all_rules(subject), subject)
        finally:
            self._denied.forget((subject,))

    async def export(
        self,
        policies: Sequence[str] | None = None,
        *,
        on_fault: Callable[[CaplineError], object] | None = None,
    ) -> AsyncIterator[LogRecord]:
        """Every log of these policies, with the hits within the widest window. As `Limiter.export`."""
        compiled = self._rules_to_scan(policies)
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
                    progress.take(await self._store.merge(self._merges(progress)))
        else:
            for record in check_iterable(records, "records"):
                if progress.add(record):
                    progress.take(await self._store.merge(self._merges(progress)))
        progress.take(await self._store.merge(self._merges(progress)) if progress.records else ())
        return progress.loaded

    async def sweep(self) -> int:
        """Remove the logs whose every hit is out of every window; returns how many."""
        self._outage.sweep()
        return await self._store.sweep(self._all_rules())

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
