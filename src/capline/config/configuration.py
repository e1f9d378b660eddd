"""`Configuration`: policies and overrides in a store of their own; every change is a version, with its time and author.

    with Configuration("redis://127.0.0.1:6379/0") as configuration:
        configuration.set_policies([Policy("promo", ["3/day"])], who="ann")
        configuration.override("promo", "user:42", ["10/day"], who="ann")

The verbs; `commits` makes each change, `view` has what is known here. A thread polls for the changes of others.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Self

from capline.config.changes import MOST_PAST, Change, check_reason, later_instant_us, own_of
from capline.config.commits import Committer
from capline.config.document import document_of
from capline.config.open import open_backend
from capline.config.records import (
    KEYED,
    OVERRIDES,
    PAST_OVERRIDES,
    PAST_POLICIES,
    POLICIES,
    is_override,
    name_of,
    names_of,
    read_commit,
    read_entry,
    read_past,
    read_totals,
    version_of,
)
from capline.config.view import View
from capline.model.clock import check_clock
from capline.model.errors import CaplineError, InvalidValueError, PolicyError, UnknownNameError, listed, quoted
from capline.model.policy import check_name
from capline.model.subject import check_subject, is_keyed, subject_text
from capline.support.system import at_fork

if TYPE_CHECKING:
    from datetime import datetime

    from capline.config.backend import Backend
    from capline.config.records import Commit, Entry
    from capline.model.clock import Clock
    from capline.model.limit import Limit
    from capline.model.policy import Policy
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject

POLL_EVERY_S = 0.5
"""Makes a change known everywhere within a second, and in force within two."""
CACHED = 200_000

_everyone: weakref.WeakSet[Configuration] = weakref.WeakSet()


class Configuration:
    """The configuration at a URL: `lmdb:///path`, `redis://…` (and the other URLs of servers), or `memory://`.

    `namespace` is that of the logs; one store may hold several. `clock` decides when a change with an `effective_at`
    comes into force; left out, the server's own clock or this machine's. `cached` is the number of subjects whose
    overrides (or lack of one) a process keeps in memory.

    Reads all policies when it is made; call `follow` to follow later changes. Raises `StoreError` where the store does
    not answer then, or at a change; in an outage it serves what it knows. Threads may share it.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "capline",
        clock: Clock | None = None,
        cached: int = CACHED,
        create: bool = True,
    ) -> None:
        self.namespace = check_name(namespace, "namespace")
        self._backend: Backend = open_backend(url, namespace, create=create)
        self.view = View(self._backend, None if clock is None else check_clock(clock), cached)
        self._committer = Committer(self._backend, self.view)
        self._follower: threading.Thread | None = None
        self._stop = threading.Event()
        self._closed = False
        try:
            self.view.poll()
        except BaseException:
            self._backend.close()
            raise
        _everyone.add(self)

    # --- what is there ----------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version that is known here: the number of commits."""
        return self.view.version

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies in force now, by name."""
        return self.view.policies_at(self.view.now_us())

    def policy(self, name: str) -> Entry:
        """The last version of a policy, deleted or not; raises `UnknownNameError` if there never was one."""
        entry = self.view.entries.get(name)
        if entry is None:
            raise self._unknown(name)
        return entry

    def policy_versions(self, name: str) -> list[Entry]:
        """The versions of a policy, newest first; at most 101. A value is a document, or None where it was deleted."""
        return self._versions(POLICIES, PAST_POLICIES, name_of(check_name(name, "policy")))

    def override_of(self, policy: str, subject: Subject) -> Entry | None:
        """The last version of an override, removed or not, read from the store; None if there never was one."""
        name = name_of(check_name(policy, "policy"), check_subject(subject))
        return self.view.read(OVERRIDES, [name])[0]

    def override_versions(self, policy: str, subject: Subject) -> list[Entry]:
        """The versions of an override, newest first; at most 17. A value is limits, or None where it was removed."""
        return self._versions(OVERRIDES, PAST_OVERRIDES, name_of(check_name(policy, "policy"), check_subject(subject)))

    def overrides(self, policy: str, after: Subject | None = None) -> Iterator[tuple[Subject, Entry]]:
        """Every override of a policy, in an order of the store's own; those that come after a subject."""
        last = b"" if after is None else name_of(policy, check_subject(after))
        for name, row in self._backend.overrides(check_name(policy, "policy"), last):
            subject = names_of(name)[1]
            if subject is not None and is_override(row):
                yield subject, read_entry(row)

    def overrides_page(
        self, policy: str, after: Subject | None, most: int | None
    ) -> tuple[list[tuple[Subject, Entry]], str | None]:
        """At most so many of `overrides`; and the text of the subject after which there are more, else None.

        Those that ended are left out. It ends where as many are found as there are: a policy without any costs one
        command.
        """
        held = self._backend.totals([check_name(policy, "policy")])
        count = read_totals(held[policy]).count if policy in held else 0
        listed = [*islice(self.overrides(policy, after), count if most is None else min(count, most + 1))]
        now_us = self.view.now_us()
        page = [each for each in listed[:most] if each[1].value is not None or each[1].at(now_us) is not None]
        return page, subject_text(listed[most - 1][0]) if most is not None and len(listed) > most else None

    def commits(self, before: int | None = None, most: int = 1024) -> list[Commit]:
        """At most so many of the last 1,024 commits, newest first: those before a version, or all."""
        version = self._backend.head(0).version
        head = self._backend.head(max(0, version - 1024))
        feed = (head.feed or [])[::-1]  # a version each
        first = 0 if before is None else max(0, head.version + 1 - before)
        return [read_commit(told) for told in feed[first : first + most]]

    # --- changes ----------------------------------------------------------------------------------------------

    def set_policies(
        self,
        policies: Sequence[Policy],
        *,
        who: str | None = None,
        effective_at: str | datetime | None = None,
        if_version: int | None = None,
        verb: str = "set",
        reason: str = "",
    ) -> int:
        """Set these policies; others stay, and an equal one is not a change. Returns the configuration's version.

        They come into force at `effective_at`, by the configuration's clock and at least 3 seconds ahead; None is at
        once. `if_version` is the version that each must have (0: never set), else `ConfigConflictError` is raised. A
        commit holds up to a thousand policies, and says the `reason` behind its verb.
        """
        changes = {name_of(policy.name): Change(document_of(policy), if_version) for policy in policies}
        if len(changes) < len(policies):
            raise InvalidValueError("two policies have the same name; a name is one policy")
        told = f"{verb}: {check_reason(reason)}" if reason else verb
        return self._committer.change(POLICIES, changes, who, effective_at, told, policies)

    def delete_policy(
        self,
        name: str,
        *,
        who: str | None = None,
        effective_at: str | datetime | None = None,
        if_version: int | None = None,
    ) -> int:
        """Delete a policy; its versions and logs stay. Otherwise like `set_policies`."""
        last = self.policy(name)
        if last.value is None and last.at(self.view.now_us()) is None:
            raise UnknownNameError(f"policy {quoted(name)} is deleted already")
        return self._committer.change(POLICIES, {name_of(name): Change(None, if_version)}, who, effective_at, "delete")

    def roll_back_policy(self, name: str, version: int, *, who: str | None = None) -> int:
        """Set a policy back to an earlier version, at once. Returns the configuration's version."""
        document = _found(self.policy_versions(name), version, f"policy {quoted(name)}").value
        return self._committer.change(POLICIES, {name_of(name): Change(document, None)}, who, None, "rollback")

    def override(
        self,
        policy: str,
        subject: Subject,
        limits: Sequence[Limit | str] | None,
        *,
        granularity: str | None = None,
        who: str | None = None,
        effective_at: str | datetime | None = None,
        until: str | datetime | None = None,
        if_version: int | None = None,
    ) -> int:
        """Give one subject its own limits under a policy; None removes them. Otherwise like `set_policies`.

        `granularity` is how long one sum of the subject spans under a `bucketed` policy; None is the policy's. With
        `until`, an instant at least 3 seconds ahead, they hold at once and end then: what the subject had before, or
        was to have, holds again. Give it or `effective_at`, not both.
        """
        spans = {} if granularity is None else {subject: granularity}
        return self.override_many(
            *(policy, {subject: limits}),
            granularity=spans,
            who=who,
            effective_at=effective_at,
            until=until,
            if_version=if_version,
        )

    def override_many(
        self,
        policy: str,
        limits: Mapping[Subject, Sequence[Limit | str] | None],
        *,
        granularity: Mapping[Subject, str] | None = None,
        who: str | None = None,
        effective_at: str | datetime | None = None,
        until: str | datetime | None = None,
        if_version: int | None = None,
    ) -> int:
        """`override` for many subjects of a policy, up to a thousand in one commit; `granularity` by subject.

        Raises `PolicyError` for a subject in the clear where limiters have a `subject_key`: none would find it. All are
        checked before the first is set; in an outage on the way those of the first commits stay.
        """
        entries = self.view.entries
        held = entries.get(check_name(policy, "policy"))
        if entries and (held is None or (held.value is None and held.before is None)):
            raise self._unknown(policy)
        base = None if held is None else (held.value or held.before)
        if until is not None and effective_at is not None:
            raise InvalidValueError("give effective_at, from when the limits hold, or until, when they end; not both")
        until_us = 0 if until is None else later_instant_us(until, self.view.now_us(), "until")
        changes = {
            name_of(policy, check_subject(subject)): Change(
                own_of(policy, base, wanted, (granularity or {}).get(subject)), if_version, until_us
            )
            for subject, wanted in limits.items()
        }
        self._check_keyed([subject for subject, wanted in limits.items() if wanted is not None])
        return self._committer.change(OVERRIDES, changes, who, effective_at, "override")

    def roll_back_override(self, policy: str, subject: Subject, version: int, *, who: str | None = None) -> int:
        """Set an override back to an earlier version, at once. Returns the configuration's version.

        Of a version whose instant is still ahead the limits until then come back too.
        """
        about = f"the override of {quoted(subject)} under policy {quoted(policy)}"
        entry = _found(self.override_versions(policy, subject), version, about)
        change = Change(entry.value, None)
        if entry.effective_us > self.view.now_us():
            change = Change(entry.before, None, entry.effective_us, entry.value)
        self._check_keyed([] if entry.value is change.value is None else [subject])
        return self._committer.change(OVERRIDES, {name_of(policy, subject): change}, who, None, "rollback")

    def mark_keyed(self) -> None:
        """Remember for good that limiters of this namespace have a `subject_key`: subjects in the clear are refused."""
        table, name, _ = KEYED
        if self._backend.get(table, [name])[0] is None:
            self._backend.put([KEYED])

    def _check_keyed(self, subjects: Sequence[Subject]) -> None:
        plain = next((subject for subject in subjects if not is_keyed(subject)), None)
        table, name, _ = KEYED
        if plain is not None and self._backend.get(table, [name])[0] is not None:
            raise PolicyError(
                f"the limiters of namespace {self.namespace!r} have a subject_key, so none finds an override of "
                f"{quoted(plain)}: set it by the override() of a limiter that has the key"
            )

    # --- following --------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read the changes of others now; True if there were any. Raises `StoreError` in an outage."""
        return self.view.poll()

    def follow(self) -> None:
        """Follow changes from now on, in a thread that polls the version twice a second until `close`."""
        if self._backend.shared and self._follower is None and not self._closed:
            self._stop = threading.Event()
            self._follower = threading.Thread(
                target=_followed, args=(weakref.ref(self), self._stop), name="capline-config", daemon=True
            )
            self._follower.start()

    @property
    def stale_s(self) -> float:
        """Seconds since the store last answered; 0 while it answers, and for a store in this process."""
        if not self._backend.shared or (self.view.error is None and self._follower is None):
            return 0.0
        silent_s = time.monotonic() - self.view.polled_s
        return silent_s if self.view.error is not None or silent_s > 4 * POLL_EVERY_S else 0.0

    def stats(self) -> dict[str, float]:
        """Figures: `up` (1 or 0), `version`, `stale_seconds`, `policies`, `overrides`, `unknown` (unread ones)."""
        now_us = self.view.now_us()
        return {
            "up": float(self.view.error is None),
            "version": self.version,
            "stale_seconds": self.stale_s,
            "policies": len(self.view.entries),
            "overrides": sum(total.count_at(now_us) for total in self.view.totals.copy().values()),
            "unknown": self.view.unknown,
        }

    def servers(self) -> list[ServerState]:
        """How each server of the store is doing, as `Limiter.servers`; empty for a store of this machine.

        Asks each once, waits at most 2 s for each, and raises for none.
        """
        return self._backend.servers()

    def close(self) -> None:
        """Stop following and close the store. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        follower, self._follower = self._follower, None
        if follower is not None and follower is not threading.current_thread():
            follower.join()
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restart_in_child(self) -> None:
        """Called in a forked child, where no other thread runs: starts a follower of its own."""
        follows, self._follower = self._follower is not None, None
        self.view.restart_in_child()
        if follows:
            self.follow()

    def _unknown(self, policy: str) -> UnknownNameError:
        return UnknownNameError(f"no policy {quoted(policy)} in the configuration; there are: {listed(self.policies)}")

    def _versions(self, table: str, past: str, name: bytes) -> list[Entry]:
        self.view.poll()
        entry = self.view.read(table, [name])[0]
        row = self._backend.get(past, [name])[0]
        older = [old for old in read_past(row) if entry is not None and old.version < entry.version]
        if row is not None and entry is not None and version_of(row) > entry.version:
            older = older[:-1]
        return [] if entry is None else [entry, *reversed(older[-MOST_PAST[table] :])]


def _found(versions: list[Entry], version: int, about: str) -> Entry:
    for entry in versions:
        if entry.version == version:
            return entry
    listed = ", ".join(str(entry.version) for entry in versions[:10]) or "none"
    raise InvalidValueError(f"{about} has no version {quoted(version)}; it has: {listed}")


def _followed(of: weakref.ref[Configuration], stop: threading.Event) -> None:
    """Poll until it is closed or garbage-collected."""
    while not stop.wait(POLL_EVERY_S):
        configuration = of()
        if configuration is None:
            return
        with suppress(CaplineError):  # shown by `stats`; what is known still serves
            configuration.view.poll()
        del configuration


def _after_fork_in_child() -> None:
    for configuration in list(_everyone):
        configuration.restart_in_child()


at_fork(after_in_child=_after_fork_in_child)
