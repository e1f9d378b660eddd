"""What one process knows of a configuration: all policies, and the overrides that were looked up.

    poll     reads the head; if its version moved, changed policies are read again and changed overrides forgotten
    own      the override of one subject: from the cache, or from the backend with its pending rows

The rule: a row that was read before a change is never cached after it. So each poll that finds a change starts a new
epoch, and a row that was read in an earlier epoch is returned but not cached.

While the backend does not answer, the view serves what it knows. A subject whose override was never read then has the
policy's limits, and only the poll waits for the backend.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from capline.config.backend import Backend, Head
from capline.config.cache import MISSING, OverrideCache, OwnLimits, Recent, Timed
from capline.config.document import own_facts, policy_of
from capline.config.records import (
    OVERRIDES,
    POLICIES,
    Entry,
    Totals,
    name_of,
    names_of,
    read_commit,
    read_entry,
    read_pending,
    read_totals,
    version_of,
)
from capline.model.clock import Clock
from capline.model.errors import CaplineError, StoreDamagedError, StoreError
from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.model.subject import Subject

READ_AT_ONCE = 1000


class View:
    """See the module's text. Threads may share it; `changed` is called after each poll that found something.

    It gets the names of the policies that the poll was about. Calls come in the order of the versions.
    """

    def __init__(self, backend: Backend, clock: Clock | None, most_cached: int) -> None:
        self._backend = backend
        self._clock = clock
        self._ahead_us = 0
        self._polling = threading.RLock()
        self._lock = threading.Lock()
        self._epoch = 0
        self._cache = OverrideCache(most_cached)
        self._kinds: WeakValueDictionary[tuple[str | None, ...], OwnLimits] = WeakValueDictionary()
        self._overlay: dict[tuple[str, bytes], bytes] = {}
        self._unsettled: dict[int, float] = {}
        self.version = -1
        self.entries: dict[str, Entry] = {}
        """The policies, by name; the values of each entry are a `Policy` or None."""
        self.sharing: dict[str, set[str]] = {}
        """By log: the names of the policies that have it, or had it since this was opened."""
        self.totals: dict[str, Totals] = {}
        self.error: StoreError | None = None
        """Why the last poll failed; None when it did not."""
        self.polled_s = time.monotonic()
        """When a poll last succeeded, on the monotonic clock."""
        self.unknown = 0
        """How often an override was not known because the backend did not answer."""
        self.changed: list[Callable[[Iterable[str]], object]] = []

    def now_us(self) -> int:
        """The instant by which changes come into force: the caller's clock, or the backend's.

        A server's is measured at each poll, and right by half a round trip, whatever the clock of this host says.
        """
        return time.monotonic_ns() // 1000 + self._ahead_us if self._clock is None else self._clock.now_us()

    # --- policies ---------------------------------------------------------------------------------------------

    def policies_at(self, now_us: int) -> dict[str, Policy]:
        """The policies in force then, by name."""
        found = ((name, entry.at(now_us)) for name, entry in sorted(self.entries.copy().items()))
        return {name: policy for name, policy in found if policy is not None}

    # --- overrides --------------------------------------------------------------------------------------------

    def recent(self, policy: str) -> Recent:
        """The cache of a policy's overrides, for a fast path."""
        return self._cache.of(policy)

    def own(self, policy: str, subject: Subject) -> OwnLimits | None:
        """The override of a checked subject; None if it has none, or it is not known."""
        return self.owns(policy, (subject,))[0]

    def knows(self, policy: str, subjects: Sequence[Subject]) -> bool:
        """Whether `owns` would answer without asking the backend."""
        recent = self._cache.of(policy)
        return self.error is not None or all(subject in recent.young or subject in recent.old for subject in subjects)

    def owns(self, policy: str, subjects: Sequence[Subject]) -> list[OwnLimits | None]:
        """`own` for many; reads those that are not cached, a thousand in a round trip."""
        recent = self._cache.of(policy)
        young, old = recent.young, recent.old
        found: list[Any] = [young.get(subject, MISSING) for subject in subjects]
        missing: list[int] = []
        for at, cached in enumerate(found):
            if type(cached) is OwnLimits or cached is None:
                continue
            if cached is MISSING:
                cached = old.get(subjects[at], MISSING)  # noqa: PLW2901 - it is the same subject's
                if cached is MISSING:
                    missing.append(at)
                    continue
                with self._lock:
                    # Only if no poll has forgotten it meanwhile.
                    if subjects[at] in recent.old:
                        self._cache.put(policy, subjects[at], cached)
            found[at] = self._in_force(cached)
        for first in range(0, len(missing), READ_AT_ONCE):
            self._read(policy, subjects, found, missing[first : first + READ_AT_ONCE])
        return found

    def _read(self, policy: str, subjects: Sequence[Subject], found: list[Any], rows: list[int]) -> None:
        if self.error is not None:
            self._not_known(found, rows)
            return
        with self._lock:
            epoch = self._epoch
        try:
            entries = self.read(OVERRIDES, [name_of(policy, subjects[at]) for at in rows])
        except StoreDamagedError:
            raise  # not an outage: nothing may be decided on it
        except StoreError as error:
            self.error = error
            self._not_known(found, rows)
            return
        now_us = self.now_us()
        for at, entry in zip(rows, entries, strict=True):
            if entry is None:
                cached = None
            elif entry.effective_us > now_us:
                cached = Timed(entry)
            else:
                cached = self._limits_of(entry.value)
            with self._lock:
                if epoch == self._epoch:
                    self._cache.put(policy, subjects[at], cached)
            found[at] = self._in_force(cached)

    def _not_known(self, found: list[Any], rows: list[int]) -> None:
        self.unknown += len(rows)
        for at in rows:
            found[at] = None

    def _in_force(self, cached: Any) -> OwnLimits | None:
        return self._limits_of(cached.entry.at(self.now_us())) if type(cached) is Timed else cached

    def _limits_of(self, value: Any) -> OwnLimits | None:
        if value is None:
            return None
        facts = own_facts(value)
        texts, granularity = facts["limits"], facts.get("granularity")
        key = (granularity, *texts)
        limits = self._kinds.get(key)
        if limits is None:
            try:
                limits = self._kinds[key] = OwnLimits(tuple(Limit.parse(text) for text in texts), granularity)
            except CaplineError as error:
                raise StoreDamagedError(f"an override in the configuration store cannot be read: {error}") from None
        return limits

    def restart_in_child(self) -> None:
        """In a forked child: new locks, since a thread of the parent may hold the old ones."""
        self._polling, self._lock = threading.RLock(), threading.Lock()

    # --- what changes -----------------------------------------------------------------------------------------

    def read(self, table: str, names: Sequence[bytes]) -> list[Entry | None]:
        """Rows with the pending ones applied."""
        overlay = self._overlay
        found: list[Entry | None] = []
        for name, row in zip(names, self._backend.get(table, names), strict=True):
            newer = overlay.get((table, name))
            if newer is not None and (row is None or version_of(newer) > version_of(row)):
                row = newer  # noqa: PLW2901 - it is the same row
            found.append(None if row is None else read_entry(row))
        return found

    def poll(self) -> bool:
        """Read what changed; True if anything did. Raises `StoreError` if the backend does not answer."""
        with self._polling:
            try:
                before = time.monotonic_ns()
                head = self._backend.head(self.version)
                after = time.monotonic_ns()
                names = self._take(head)
            except StoreError as error:
                self.error = error
                raise
            self._ahead_us = head.now_us - (before + after) // 2000
            self.error, self.polled_s = None, time.monotonic()
            if names is not None:
                for changed in list(self.changed):
                    changed(names)
        return names is not None

    def _take(self, head: Head) -> Iterable[str] | None:
        """Take over what is new; the policies that it is about, None where nothing is."""
        pending = [read_pending(told) for told in head.pending]
        self._settle_late([version for version, _ in pending])
        overlay: dict[tuple[str, bytes], bytes] = {}
        for _, rows in sorted(pending):
            overlay.update({(table, name): row for table, name, row in rows})
        moved = head.version != self.version
        with self._lock:
            if moved or overlay != self._overlay:
                self._epoch += 1
                self._overlay = overlay
        if not moved:
            return None
        if self.version < 0 or head.feed is None or len(head.feed) != head.version - self.version:
            names = self._load()
        else:
            names = self._follow(head.feed)
        self.version = head.version
        return names

    def _load(self) -> Iterable[str]:
        """Read everything but overrides. The next poll reads what is committed meanwhile."""
        totals = {policy: read_totals(row) for policy, row in self._backend.totals().items()}
        rows = dict(self._backend.policies())
        for (table, name), row in self._overlay.items():
            if table == POLICIES and (name not in rows or version_of(row) > version_of(rows[name])):
                rows[name] = row
        entries = {names_of(name)[0]: with_policies(names_of(name)[0], read_entry(row)) for name, row in rows.items()}
        about = {**self.entries, **self.totals, **entries, **totals}
        self.totals, self.entries, self.sharing = totals, entries, {}
        self._note_logs(entries.items())
        with self._lock:
            self._cache.clear()
        return about

    def _note_logs(self, entries: Iterable[tuple[str, Entry]]) -> None:
        for name, entry in entries:
            for policy in filter(None, (entry.value, entry.before)):
                self.sharing.setdefault(policy.log, set()).add(name)

    def _follow(self, feed: list[bytes]) -> Iterable[str]:
        commits = [read_commit(told) for told in feed]
        changes = [change for commit in commits for change in commit.changes]
        names = list(dict.fromkeys(change.policy for change in changes if _is_policy(change)))
        if names:
            rows = self.read(POLICIES, [name_of(name) for name in names])
            fresh = {name: with_policies(name, row) for name, row in zip(names, rows, strict=True) if row is not None}
            self._note_logs(fresh.items())
            self.entries.update(fresh)
        again: dict[str, list[Subject]] = {}
        totals = {policy: of for commit in commits for policy, of in commit.totals.items()}
        totals |= {policy: read_totals(row) for policy, row in self._backend.totals([*totals]).items()}
        with self._lock:
            self.totals.update(totals)
            for policy, subject, _ in (change for change in changes if not _is_policy(change)):
                recent = self._cache.of(policy)
                if subject is not None and (subject in recent.young or subject in recent.old):
                    again.setdefault(policy, []).append(subject)
                self._cache.forget(policy, subject)
        for policy, subjects in again.items():  # now, as the backend may be away when they are asked for
            self.owns(policy, subjects)
        return {*names, *totals}

    def _settle_late(self, versions: list[int]) -> None:
        """Finish commits that have been pending for long: their author may have been killed.

        A process that may only read leaves that to others: it reads the pending rows as they are.
        """
        now_s = time.monotonic()
        self._unsettled = {version: self._unsettled.get(version, now_s) for version in versions}
        late = [version for version, since_s in self._unsettled.items() if now_s - since_s > LATE_S]
        if late:
            with suppress(StoreError):
                finish(self._backend, self._backend.head(self.version).pending)


LATE_S = 2.0
"""How long a commit may be pending before another process finishes it."""


def finish(backend: Backend, pending: list[bytes]) -> None:
    """Write the pending rows to their tables."""
    for version, rows in sorted(read_pending(told) for told in pending):
        backend.put(rows)
        backend.settle(version)


def with_policies(name: str, entry: Entry) -> Entry:
    """The entry with policies instead of documents."""
    try:
        return msgspec.structs.replace(
            entry,
            value=None if entry.value is None else policy_of(name, entry.value),
            before=None if entry.before is None else policy_of(name, entry.before),
        )
    except CaplineError as error:
        raise StoreDamagedError(f"the configuration store has a policy that cannot be used: {error}") from None


def _is_policy(changed: Any) -> bool:
    return changed.subject is None and not changed.many
