"""`Configuration`: policies and overrides in a store of their own; every change is a version, with its time and author.

    with Configuration("redis://127.0.0.1:6379/0") as configuration:
        configuration.set_policies([Policy("promo", ["3/day"])], who="ann")
        configuration.override("promo", "user:42", ["10/day"], who="ann")

The rule: each verb that writes is one commit on the version that it has read, or it reads again. So two who write at
once lose nothing, and nothing changes without a new version, which is all that others poll.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from capline.config.changes import MOST_PAST, Change, check_together, check_who, instant_us, limits_of, planned
from capline.config.document import document_of
from capline.config.open import open_backend
from capline.config.records import (
    OVERRIDES,
    PAST_OVERRIDES,
    PAST_POLICIES,
    POLICIES,
    Commit,
    commit_bytes,
    name_of,
    names_of,
    pending_bytes,
    read_commit,
    read_entry,
    read_past,
    totals_bytes,
    version_of,
)
from capline.config.view import View, finish
from capline.model.clock import check_clock
from capline.model.errors import (
    CaplineError,
    ConfigConflictError,
    InvalidValueError,
    StoreError,
    UnknownNameError,
    quoted,
)
from capline.model.policy import check_name
from capline.model.subject import check_subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from capline.config.backend import Backend
    from capline.config.records import Entry, Row, Totals
    from capline.model.clock import Clock
    from capline.model.limit import Limit
    from capline.model.policy import Policy
    from capline.model.subject import Subject

__all__ = ["POLL_EVERY_S", "Configuration"]

POLL_EVERY_S = 0.5
"""So a change is known everywhere within a second, and in force within two."""
CHANGES_A_COMMIT = 1000
TOLD_ONE_BY_ONE = 100
"""Overrides that a commit names; of more, others forget all that they know of the policy."""
MOST_TRIES = 1000
CACHED = 200_000

_everyone: weakref.WeakSet[Configuration] = weakref.WeakSet()


class Configuration:
    """The configuration at a URL: `lmdb:///path`, `redis://…` and its kin, or `memory://` for this object alone.

    `namespace` keeps configurations apart in one place, and is that of the logs. `clock` is the one by which changes
    with an `effective_at` come into force: a server's own for one there, else this machine's. `cached` is how many
    subjects' overrides a process keeps in mind, those who have none included.

    It reads all policies when it is made, and follows changes from `follow` on. Raises `StoreError` where the place
    does not answer then, and at each change; what it knows serves on. Threads may share it.
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
        """The version that is known here: how many commits were made."""
        return self.view.version

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies in force now, by name."""
        return {policy.name: policy for policy in self.view.policies_at(self.view.now_us())}

    def policy(self, name: str) -> Entry:
        """The last version of a policy, deleted or not; raises `UnknownNameError` for one that never was."""
        entry = self.view.entries.get(name)
        if entry is None:
            listed = ", ".join(self.policies) or "none"
            raise UnknownNameError(f"no policy {quoted(name)} in the configuration; there are: {listed}")
        return entry

    def policy_versions(self, name: str) -> list[Entry]:
        """The versions of a policy, newest first; at most 100 before the last. A value is a document, None deleted."""
        return self._versions(POLICIES, PAST_POLICIES, name_of(check_name(name, "policy")))

    def override_of(self, policy: str, subject: Subject) -> Entry | None:
        """The last version of an override, removed or not, read afresh; None where there never was one."""
        name = name_of(check_name(policy, "policy"), check_subject(subject))
        return self.view.read(OVERRIDES, [name])[0]

    def override_versions(self, policy: str, subject: Subject) -> list[Entry]:
        """The versions of an override, newest first; at most 16 before the last. A value is limits, None removed."""
        return self._versions(OVERRIDES, PAST_OVERRIDES, name_of(check_name(policy, "policy"), check_subject(subject)))

    def overrides(self, policy: str) -> Iterator[tuple[Subject, Entry]]:
        """Every override of a policy, in no order. Reads all of the store: some seconds for millions."""
        for name, row in self._backend.walk(OVERRIDES, f"{check_name(policy, 'policy')}\0".encode()):
            entry, subject = read_entry(row), names_of(name)[1]
            if subject is not None and (entry.value is not None or entry.before is not None):
                yield subject, entry

    def commits(self) -> list[Commit]:
        """The last commits, newest first; at most 1,024."""
        version = self._backend.head(0).version
        feed = self._backend.head(max(0, version - 1024)).feed or []
        return [read_commit(told) for told in reversed(feed)]

    # --- changes ----------------------------------------------------------------------------------------------

    def set_policies(
        self,
        policies: Sequence[Policy],
        *,
        who: str | None = None,
        effective_at: str | datetime | None = None,
        if_version: int | None = None,
        verb: str = "set",
    ) -> int:
        """Set these policies; others stay. One that is as it was is not a change. Returns the configuration's version.

        `effective_at` is the instant from which on they are in force, by the configuration's clock, at least 3 seconds
        ahead; at once if it is None. With `if_version` a policy must be of that version (0: never set), or
        `ConfigConflictError` is raised. A thousand policies are one commit.
        """
        changes = {name_of(one.name): Change(document_of(one), if_version) for one in policies}
        if len(changes) < len(policies):
            raise InvalidValueError("two policies have the same name; a name is one policy")
        return self._change(POLICIES, changes, who, effective_at, verb, policies)

    def delete_policy(
        self,
        name: str,
        *,
        who: str | None = None,
        effective_at: str | datetime | None = None,
        if_version: int | None = None,
    ) -> int:
        """Delete a policy; its versions and its logs stay. Else as `set_policies`."""
        if self.policy(name).value is None:
            raise UnknownNameError(f"policy {quoted(name)} is deleted already")
        return self._change(POLICIES, {name_of(name): Change(None, if_version)}, who, effective_at, "delete")

    def roll_back_policy(self, name: str, version: int, *, who: str | None = None) -> int:
        """Set a policy to what it was at a version, at once. Returns the configuration's version."""
        document = _found(self.policy_versions(name), version, f"policy {quoted(name)}").value
        return self._change(POLICIES, {name_of(name): Change(document, None)}, who, None, "rollback")

    def override(
        self,
        policy: str,
        subject: Subject,
        limits: Sequence[Limit | str] | None,
        *,
        who: str | None = None,
        effective_at: str | datetime | None = None,
        if_version: int | None = None,
    ) -> int:
        """Give one subject limits of its own under a policy, or with None the policy's again. As `set_policies`."""
        return self.override_many(policy, {subject: limits}, who=who, effective_at=effective_at, if_version=if_version)

    def override_many(
        self,
        policy: str,
        limits: Mapping[Subject, Sequence[Limit | str] | None],
        *,
        who: str | None = None,
        effective_at: str | datetime | None = None,
        if_version: int | None = None,
    ) -> int:
        """`override` for many subjects of a policy, a thousand in one commit."""
        known = self.view.entries
        held = known.get(check_name(policy, "policy"))
        if known and (held is None or (held.value is None and held.before is None)):
            raise UnknownNameError(
                f"no policy {quoted(policy)} in the configuration; there are: {', '.join(self.policies) or 'none'}"
            )
        base = None if held is None else (held.value or held.before)
        changes = {
            name_of(policy, check_subject(subject)): Change(limits_of(policy, base, own), if_version)
            for subject, own in limits.items()
        }
        return self._change(OVERRIDES, changes, who, effective_at, "override")

    def roll_back_override(self, policy: str, subject: Subject, version: int, *, who: str | None = None) -> int:
        """Set an override to what it was at a version, at once. Returns the configuration's version."""
        about = f"the override of {quoted(subject)} under policy {quoted(policy)}"
        own = _found(self.override_versions(policy, subject), version, about).value
        return self._change(OVERRIDES, {name_of(policy, subject): Change(own, None)}, who, None, "rollback")

    # --- following --------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take over now what others changed; True where something did. Raises `StoreError` in an outage."""
        return self.view.poll()

    def follow(self) -> None:
        """Follow changes from now on, in a thread that asks for the version twice a second and ends with `close`."""
        if self._backend.shared and self._follower is None and not self._closed:
            self._stop = threading.Event()
            self._follower = threading.Thread(
                target=_followed, args=(weakref.ref(self), self._stop), name="capline-config", daemon=True
            )
            self._follower.start()

    @property
    def stale_s(self) -> float:
        """Seconds for which this process has not heard of the store; 0 while it answers, or is of this process."""
        if not self._backend.shared or (self.view.error is None and self._follower is None):
            return 0.0
        silent_s = time.monotonic() - self.view.polled_s
        return silent_s if self.view.error is not None or silent_s > 4 * POLL_EVERY_S else 0.0

    def stats(self) -> dict[str, float]:
        """Figures: `up` 1 or 0, `version`, `stale_seconds`, `policies`, `overrides`, `unknown` overrides in outages."""
        return {
            "up": float(self.view.error is None),
            "version": self.version,
            "stale_seconds": self.stale_s,
            "policies": len(self.view.entries),
            "overrides": sum(one.count for one in self.view.totals.values()),
            "unknown": self.view.unknown,
        }

    def close(self) -> None:
        """Stop following, and let go. Safe to call twice."""
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
        """In a forked child, which has no other thread: follow by one of its own."""
        follows, self._follower = self._follower is not None, None
        self.view.restart_in_child()
        if follows:
            self.follow()

    # --- one commit -------------------------------------------------------------------------------------------

    def _change(
        self,
        table: str,
        changes: Mapping[bytes, Change],
        who: str | None,
        effective_at: str | datetime | None,
        verb: str,
        policies: Sequence[Policy] = (),
    ) -> int:
        author, names = check_who(who), list(changes)
        for first in range(0, len(names), CHANGES_A_COMMIT):
            lot = {name: changes[name] for name in names[first : first + CHANGES_A_COMMIT]}
            self._commit(table, lot, author, effective_at, verb, policies if not first else ())
        self.view.poll()
        return self.view.version

    def _commit(
        self,
        table: str,
        changes: Mapping[bytes, Change],
        who: str,
        effective_at: str | datetime | None,
        verb: str,
        policies: Sequence[Policy],
    ) -> None:
        token = os.urandom(8)
        for _ in range(MOST_TRIES):
            head = self._backend.head(self.view.version)
            finish(self._backend, head.pending)
            if table == POLICIES and policies:
                if self.view.version != head.version:
                    self.view.poll()
                check_together(self.view.entries, policies)
            now_us = self.view.now_us()
            effective_us = 0 if effective_at is None else instant_us(effective_at, now_us)
            plan = planned(
                table,
                changes,
                self._entries(table, list(changes)),
                self._backend,
                head.version + 1,
                now_us,
                who,
                effective_us,
            )
            if not plan.rows:
                return
            names = plan.names if len(plan.names) <= TOLD_ONE_BY_ONE else plan.policies
            commit = Commit(head.version + 1, now_us, who, verb, token, names, plan.totals)
            if self._made(head.version, commit, plan.rows, plan.totals):
                return
        raise ConfigConflictError("others change the configuration all the time; try again")

    def _made(self, expected: int, commit: Commit, rows: list[Row], totals: dict[str, Totals]) -> bool:
        told = {policy: totals_bytes(one) for policy, one in totals.items()}
        if not self._backend.commit(
            expected, commit.token, commit_bytes(commit), pending_bytes(commit.version, rows), told
        ):
            return False
        try:
            self._backend.put(rows)
            self._backend.settle(commit.version)
        except StoreError as error:
            # It is made: who polls reads it from what is pending, and somebody finishes it.
            self.view.error = error
        return True

    def _entries(self, table: str, names: list[bytes]) -> list[Entry | None]:
        return [None if row is None else read_entry(row) for row in self._backend.get(table, names)]

    def _versions(self, table: str, past: str, name: bytes) -> list[Entry]:
        self.view.poll()
        entry = self.view.read(table, [name])[0]
        row = self._backend.get(past, [name])[0]
        older = [one for one in read_past(row) if entry is not None and one.version < entry.version]
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
    """Poll until it is closed, or nobody holds it any more."""
    while not stop.wait(POLL_EVERY_S):
        configuration = of()
        if configuration is None:
            return
        with suppress(CaplineError):  # `stats` says so, and what is known serves
            configuration.view.poll()
        del configuration


def _after_fork_in_child() -> None:
    for configuration in list(_everyone):
        configuration.restart_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
