"""Makes commits: each on the version that it has read; if others were faster, it reads again.

So two who write at once lose nothing, and nothing changes without a new version, which is all that others poll.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime

from capline.config.backend import Backend
from capline.config.changes import Change, Plan, check_together, check_who, later_instant_us, planned
from capline.config.records import POLICIES, Commit, commit_bytes, pending_bytes, read_entry, totals_bytes
from capline.config.view import View, finish
from capline.model.errors import ConfigConflictError, StoreError
from capline.model.policy import Policy

MOST_CHANGES = 1000
"""Changes in one commit; more make several."""
MOST_NAMED = 100
"""Overrides that a commit names; for more, others forget all that they know of the policy."""
MOST_TRIES = 1000


class Committer:
    """Commits changes of rows to a backend. `view` is then up to date; its `error` may say that others must finish."""

    def __init__(self, backend: Backend, view: View) -> None:
        self._backend = backend
        self._view = view

    def change(
        self,
        table: str,
        changes: Mapping[bytes, Change],
        who: str | None,
        effective_at: str | datetime | None,
        verb: str,
        policies: Sequence[Policy] = (),
    ) -> int:
        """Commit the changes; returns the version afterwards. `policies` are checked with those that there are."""
        author, names = check_who(who), list(changes)
        for first in range(0, len(names), MOST_CHANGES):
            chunk = {name: changes[name] for name in names[first : first + MOST_CHANGES]}
            self._commit(table, chunk, author, effective_at, verb, () if first else policies)
        self._view.poll()
        return self._view.version

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
            head = self._backend.head(self._view.version)
            finish(self._backend, head.pending)
            if table == POLICIES and policies:
                if self._view.version != head.version:
                    self._view.poll()
                check_together(self._view, policies)
            now_us = self._view.now_us()
            effective_us = 0 if effective_at is None else later_instant_us(effective_at, now_us)
            before = [None if row is None else read_entry(row) for row in self._backend.get(table, list(changes))]
            plan = planned(table, changes, before, self._backend, head.version + 1, now_us, who, effective_us)
            if not plan.rows:
                return
            names = plan.names if len(plan.names) <= MOST_NAMED else plan.policies
            commit = Commit(head.version + 1, now_us, who, verb, token, names, plan.totals)
            if self._is_made(head.version, commit, plan):
                return
        raise ConfigConflictError("others change the configuration all the time; try again")

    def _is_made(self, expected: int, commit: Commit, plan: Plan) -> bool:
        totals = {policy: totals_bytes(total) for policy, total in plan.totals.items()}
        pending = pending_bytes(commit.version, plan.rows)
        if not self._backend.commit(expected, commit.token, commit_bytes(commit), pending, totals):
            return False
        try:
            self._backend.put(plan.rows)
            self._backend.settle(commit.version)
        except StoreError as error:
            # The commit is made: others read its rows from what is pending, and finish it.
            self._view.error = error
        return True
