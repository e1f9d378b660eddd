"""Verbs over whole logs, and what opens and closes a limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from capline.limiter.base import LimiterBase
from capline.limiter.checks import check_iterable
from capline.limiter.records import LoadProgress
from capline.store.open import open_store
from capline.store.protocol import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from capline.limiter.explain import Explanation
    from capline.limiter.records import Loaded, LogRecord, Record
    from capline.model.clock import Clock
    from capline.model.errors import CaplineError
    from capline.model.limit import Limit
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject

__all__ = ["Upkeep"]


class Upkeep(LimiterBase[Store]):
    """A limiter that is opened and closed, and its verbs over whole logs."""

    @staticmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> Store:
        return open_store(url, clock, create=create)

    def now_us(self) -> int:
        """The instant that the store would decide at."""
        return self._store.now_us()

    def try_write(self) -> None:
        """Raise the `StoreError` that keeps new subjects from being recorded now, like a full disk; records nothing.

        Of the servers of a cluster it asks one.
        """
        self._store.try_write()

    def servers(self) -> list[ServerState]:
        """How each server of the store that holds logs is doing: its circuit breaker here, memory, connections.

        Empty for a store of this machine. Asks each server once, waits at most 2 s for each, and raises for none.
        """
        return self._store.servers()

    def flush(self, policy: str) -> int:
        """Forget every subject of the policy, for tests; returns how many. Policies that share its log forget them too.

        Attempts made meanwhile may stay. It reads every log of the policy, so it costs as much as `export`.
        """
        compiled = [self._any_rule(policy)]
        subjects: set[Subject] = set()
        page = self._store.scan(compiled)
        while True:
            subjects.update(one.subject for one in page.found if one.subject is not None)
            if page.after is None:
                break
            page = self._store.scan(compiled, page.after)
        for subject in subjects:
            self._store.erase(compiled, subject)
        for subject in self._with_own_logs(policy):
            if self._store.erase([self._rule_of_hits(policy, subject)], subject):
                subjects.add(subject)
        self._denied.forget(subjects)
        return len(subjects)

    def explain(
        self,
        policy: str,
        subject: Subject,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        ids: Sequence[str] = (),
    ) -> Explanation:
        """Why an attempt would be allowed or refused now: limits in force, hits that count, when each unit frees.

        A hit recorded under one of these `ids` names it: so you see which message, or which campaign, used the unit.
        """
        attempt = self._attempt(policy, subject, 1, None, segment, channel, zone)
        arguments = self._arguments(attempt)
        known = self._known_ids(ids)
        decision = self._store.peek(*arguments)
        logs = self._store.recorded(*arguments[:2])
        return self._explained(attempt, subject, self.now_us(), decision, logs, known)

    def override(
        self,
        policy: str,
        subject: Subject,
        limits: Sequence[Limit | str] | None,
        *,
        granularity: str | None = None,
        effective_at: str | datetime | None = None,
        who: str | None = None,
    ) -> int:
        """Give one subject limits of its own under a policy, or with None the policy's again; `limits` is a list.

        They replace the policy's limits, and those of its segments, in every verb; a channel's limits hold beside them,
        and the log keeps its history. `granularity` (like `"100ms"`) replaces that of a `bucketed` policy. At once
        here, elsewhere within two seconds; or at `effective_at`, an instant at least 3 seconds ahead. It is kept in the
        configuration store (`config=`); a limiter on `memory://` needs none. Returns the configuration's version. Costs
        some round trips to that store.
        """
        config, named = self._override_in(policy, subject)
        self._check_override(policy, limits, granularity)
        return config.override(policy, named, limits, granularity=granularity, effective_at=effective_at, who=who)

    def erase(self, subject: Subject) -> int:
        """Forget the subject in every policy of this limiter; returns how many logs held something."""
        subject = self._subject(subject)
        self._outage.forget(subject)
        try:
            return self._store.erase(self._all_rules(subject), subject)
        finally:
            self._denied.forget((subject,))

    def export(
        self,
        policies: Sequence[str] | None = None,
        *,
        on_fault: Callable[[CaplineError], object] | None = None,
    ) -> Iterator[LogRecord]:
        """Every log of these policies (default: of all), with the hits within the widest window; in no order.

        Decisions go on meanwhile: each log is of one instant, but not all of the same. A log may come twice; `load`
        adds it once. A log that cannot be read raises its error, or is passed to `on_fault` and left out.
        """
        compiled = self._rules_to_scan(policies)
        page = self._store.scan(compiled) if compiled else None
        while page is not None:
            yield from self._exported(page.found, on_fault)
            page = None if page.after is None else self._store.scan(compiled, page.after)

    def load(self, records: Iterable[Record]) -> Loaded:
        """Merge past hits into the logs, as if each had been recorded at its own time; returns the counts.

        Each record is one atomic step. The whole is not, but may be repeated: a known hit (by its id, or else by its
        stamp and units, one of an export by its stamp) is not added again. One without an id at the instant of a hit
        of other units is left out as `ambiguous`: two hits of one instant need ids to count as two. A bad record raises
        with its number; some thousand records before it may or may not be loaded.
        """
        progress = LoadProgress()
        for record in check_iterable(records, "records"):
            if progress.add(record):
                progress.take(self._store.merge(self._merges(progress)))
        progress.take(self._store.merge(self._merges(progress)) if progress.records else ())
        return progress.loaded

    def sweep(self) -> int:
        """Remove the logs whose every hit is out of every window; returns how many. Decisions go on meanwhile."""
        self._outage.sweep()
        return self._store.sweep(self._all_rules())

    def close(self) -> None:
        """Close the store; every verb raises `StoreClosedError` from then on. Safe to call twice."""
        store = self._shut()
        if store is not None:
            self._stop_following()
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
