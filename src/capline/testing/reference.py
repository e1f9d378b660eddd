"""The reference: the verbs of a limiter over the pure functions of `capline.window`, one plain value a log.

Every store is compared with it. It shares the general rule with the stores of this machine, but not how they keep logs.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack, cast

import msgspec

from capline.limiter.arguments.checks import fingerprint
from capline.limiter.policies.rules import Rules
from capline.model.attempt import Attempt
from capline.model.clock import Clock
from capline.model.decision import Decision, Joint
from capline.model.policy import BoundPolicy, LogLimits, Policy
from capline.model.subject import Subject
from capline.window.bound_log import BoundLog, draft_logs, former_readers
from capline.window.carry import NumberRow, carry_hits, carry_numbers, rows_of, take_over
from capline.window.charge import charge, refund, settle
from capline.window.joint import joint, joint_slot
from capline.window.log import NEVER, Draft, Log, trim
from capline.window.reservation import Pending, commit, end_and_carry, forget, reserve, take_along
from capline.window.rule import Slot, attempt, move, peek


class _Opened:
    """The logs of an attempt, what is pending once they are kept, its rows, and whether anything was taken over."""

    def __init__(self, rule: BoundPolicy, logs: list[BoundLog], pending: list[Pending]) -> None:
        self.rule, self.logs, self.pending, self.took = rule, logs, pending, False
        self.rows: list[NumberRow] = []

    @property
    def drafts(self) -> list[Draft]:
        drafts: list[Any] = [bound.log for bound in self.logs]
        return drafts


class _Whole(Draft):
    """A draft that keeps what has aged, and knows up to when it need not: `aged_us`."""

    aged_us = NEVER

    def trim(self, cutoff_us: int) -> None:
        self.aged_us = max(self.aged_us, cutoff_us)


class Names(TypedDict, total=False):
    """What an attempt may name beside its policy and its subject."""

    segment: str | None
    channel: str | None
    zone: str | None
    keep_free: int | Sequence[int]


class Reference:
    """A limiter written to be read: every call walks whole logs.

    `keeps_rows` if all numbers of a policy are one value, as with `forms=next`; else each has a log of its own. With
    `trims_late` it keeps hits that have aged, which count again under a wider window, until `forget_as` says that a
    store has forgotten them.
    """

    def __init__(
        self, policies: Iterable[Policy], clock: Clock, *, keeps_rows: bool = False, trims_late: bool = False
    ) -> None:
        self._rules = Rules(policies)
        self._clock = clock
        self._logs: dict[tuple[str, Subject], Log] = {}
        self._pending: dict[tuple[str, Subject], list[Pending]] = {}
        self._keeps_rows = keeps_rows
        self._rows: dict[tuple[str, Subject], list[NumberRow]] = {}
        self._trims_late = trims_late
        self._aged_us: dict[tuple[str, Subject], int] = {}

    def use(self, policies: Iterable[Policy]) -> None:
        """Put other policies in force."""
        self._rules = Rules(policies, before=self._rules)

    def aged(self, policy: str) -> list[Subject]:
        """Whose log of this policy has hits that a store may have forgotten: see `forget_as`."""
        log = self._rules.rule(*self._rules.any_names(policy)).logs[0].log
        oldest = ((key, us, self._logs[key].hits[:1]) for key, us in self._aged_us.items() if key[0] == log)
        return [key[1] for key, us, hits in oldest if hits and hits[0].stamp_us <= us]

    def forget_as(self, policy: str, subject: Subject, read: list[tuple[int, int]]) -> None:
        """Forget aged hits of the policy's own log, the oldest first, until `hits` are what a store reads.

        Only what was older than every window when something was recorded, under whatever policy that was.
        """
        key = self._rules.rule(*self._rules.any_names(policy)).logs[0].log, subject
        for hit in self._logs[key].hits:
            if hit.stamp_us > self._aged_us[key] or self.hits(policy, subject)[0] == read:
                return
            self._logs[key] = trim(self._logs[key], hit.stamp_us)

    def decide(
        self, policy: str, subject: Subject, cost: int = 1, id: str | None = None, **names: Unpack[Names]
    ) -> Decision:
        """Decide and record."""
        return self._attempt(self._rule(policy, names), subject, cost, id)

    def schedule(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        *,
        max_wait: float | None = None,
        not_before: float = 0,
        **names: Unpack[Names],
    ) -> Decision:
        """Take the next free instant."""
        return self._attempt(self._rule(policy, names), subject, cost, None, _slot(max_wait, not_before))

    def move(
        self,
        policy: str,
        subject: Subject,
        stamp_us: int,
        id: str | None = None,
        *,
        not_before: float = 0,
        **names: Unpack[Names],
    ) -> Decision:
        """Move a slot to an earlier instant that has become free."""
        opened = self._open(self._rule(policy, names), subject, 1)
        decision = move(opened.logs, stamp_us, self._clock.now_us(), fingerprint(id), round(not_before * 1e6))
        self._keep(subject, opened)
        return decision

    def peek(
        self, policy: str, subject: Subject, cost: int = 1, id: str | None = None, **names: Unpack[Names]
    ) -> Decision:
        """The answer that `decide` would give."""
        logs = self._open(self._rule(policy, names), subject, cost).logs
        return peek(logs, self._clock.now_us(), fingerprint(id))

    def charge(
        self, policy: str, subject: Subject, cost: int, id: str | None = None, **names: Unpack[Names]
    ) -> Decision:
        """Record whatever the limits say."""
        opened = self._open(self._rule(policy, names), subject, cost)
        decision = charge(opened.logs, self._clock.now_us(), fingerprint(id))
        self._keep(subject, opened)
        return decision

    def settle(self, policy: str, subject: Subject, stamp_us: int, cost: int) -> bool:
        """Give a hit what it really cost, in the policy's log and whichever other has it."""
        return self._change(policy, subject, stamp_us, cost, lambda logs, now_us: settle(logs, stamp_us, now_us))

    def refund(self, policy: str, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        """Give a hit back, in the policy's log and whichever other has it."""
        return self._change(policy, subject, stamp_us, cost, lambda logs, now_us: refund(logs, stamp_us, cost, now_us))

    def _change(
        self, policy: str, subject: Subject, stamp_us: int, cost: int, change: Callable[[list[BoundLog], int], bool]
    ) -> bool:
        opened = self._open(self._with_every_log(policy, subject), subject, cost, carries=False)
        done = change(opened.logs, self._clock.now_us())
        take_along(opened.logs)
        forget(opened.logs, opened.pending, stamp_us)
        self._keep(subject, opened)
        return done

    def reserve(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        ttl: float = 60,
        **names: Unpack[Names],
    ) -> Decision:
        """Decide and record a hit that ends by itself."""
        opened = self._open(self._rule(policy, names), subject, cost)
        decision = reserve(opened.logs, opened.pending, self._clock.now_us(), round(ttl * 1e6), fingerprint(id))
        self._keep(subject, opened)
        return decision

    def commit(self, policy: str, subject: Subject, stamp_us: int) -> bool:
        """Make a reserved hit an ordinary one."""
        rule = self._rules.rule(*self._rules.any_names(policy))
        log, now_us = rule.logs[0].log, self._clock.now_us()
        _, bound_logs = draft_logs(
            [self._logs.get((log, subject), Log()), *[Log()] * (len(rule.logs) - 1)], rule, 1, now_us
        )
        return commit(bound_logs[0], self._pending.setdefault((log, subject), []), stamp_us, now_us)

    def decide_all(self, attempts: Sequence[Attempt]) -> Joint:
        """One attempt over several subjects, all or nothing."""
        return self._joint(attempts, joint)

    def schedule_all(
        self, attempts: Sequence[Attempt], *, max_wait: float | None = None, not_before: float = 0
    ) -> Joint:
        """Take the next free instant of all logs, or none."""
        return self._joint(attempts, partial(joint_slot, slot=_slot(max_wait, not_before)))

    def _joint(self, attempts: Sequence[Attempt], step: Callable[..., tuple[Decision, list[int]]]) -> Joint:
        rules = [self._rules.rule(*part.names).keeping(part.keep_free) for part in attempts]
        opened = [self._open(rule, part.subject, part.cost) for rule, part in zip(rules, attempts, strict=True)]
        parts = [part.logs for part in opened]
        decision, hits = step(parts, self._clock.now_us(), [fingerprint(part.id) for part in attempts])
        for request, part in zip(attempts, opened, strict=True):
            self._keep(request.subject, part)
        return Joint.of(decision, hits, _binds(parts))

    def erase(self, subject: Subject) -> None:
        """Forget the subject."""
        for of_logs in (self._logs, self._pending, self._rows, self._aged_us):
            for key in [key for key in of_logs if key[1] == subject]:
                del of_logs[key]

    def sweep(self) -> None:
        """Forget the logs that are out of every window."""
        now_us = self._clock.now_us()
        for (name, subject), log in list(self._logs.items()):
            last_us = max([log.high_water_us, *(hit.stamp_us for hit in log.hits)])
            if last_us + self._rules.retention_us(name) <= now_us:
                del self._logs[name, subject]
                self._aged_us.pop((name, subject), None)
        for (name, subject), rows in list(self._rows.items()):
            last_us = max(max(row.log.high_water_us, row.log.last_us()) for row in rows)
            if last_us + self._rules.retention_us(name) <= now_us:
                del self._rows[name, subject]

    def hits(self, policy: str, subject: Subject) -> list[list[tuple[int, int]]]:
        """(stamp, units) of every hit within the widest window, oldest first, in each log that the policy looks at."""
        rule = self._rules.rule(*self._rules.any_names(policy))
        opened = self._open(rule, subject, 1)
        found: list[list[tuple[int, int]]] = []
        for log_limits, draft in zip(rule.logs, opened.drafts, strict=True):
            log = draft.log
            cutoff_us = max(self._clock.now_us(), log.high_water_us) - log_limits.retention_us
            found.append([(hit.stamp_us, hit.units) for hit in trim(log, cutoff_us).hits])
        return found

    def _with_every_log(self, policy: str, subject: Subject) -> BoundPolicy:
        """A rule over every log that may hold a hit of the policy, also those of channels that it has no more."""
        rule = self._rules.rule(*self._rules.any_names(policy))
        if rule.algorithm != "sliding_log":
            return rule
        beside = f"{rule.logs[0].log}/"
        known = [name for name, whose in self._logs if whose == subject]
        names = [name for name in known if name.startswith(beside) or name in rule.channel_logs]
        names = [name for name in names if name not in {log_limits.log for log_limits in rule.former}]
        channels = (LogLimits(name, (), rule.logs[0].retention_us) for name in names)
        return msgspec.structs.replace(rule, logs=(rule.logs[0], *channels))

    def _attempt(
        self, rule: BoundPolicy, subject: Subject, cost: int, id: str | None, slot: Slot | None = None
    ) -> Decision:
        opened = self._open(rule, subject, cost)
        decision = attempt(opened.logs, self._clock.now_us(), fingerprint(id), slot, rule.denied_units)
        self._keep(subject, opened)
        return decision

    def _rule(self, policy: str, names: Names) -> BoundPolicy:
        rule = self._rules.rule(policy, names.get("segment"), names.get("channel"), names.get("zone"))
        return rule.keeping(names.get("keep_free", 0))

    def _open(self, rule: BoundPolicy, subject: Subject, cost: int, *, carries: bool = True) -> _Opened:
        now_us = self._clock.now_us()
        before = [self._logs.get((log_limits.log, subject), Log()) for log_limits in rule.logs]
        logs = draft_logs(before, rule, cost, now_us)[1]
        for bound, log in zip(logs, before, strict=True):
            if self._trims_late and bound.log_limits.keeps != "ids":
                bound.log = _Whole(log)  # pyright: ignore[reportAttributeAccessIssue] - a draft has the rest of its log
        opened = _Opened(rule, logs, [])
        opened.rows = [
            NumberRow(row.reader, _copy(row.log), row.carried, row.carried_us)
            for row in self._rows.get((rule.numbers, subject), ())
        ]
        if not self._keeps_rows:
            opened.rows = [
                NumberRow(reader, cast("Any", Draft(log)))
                for log_limits, reader in zip(rule.former, former_readers(rule), strict=True)
                if (log := self._logs.get((log_limits.log, subject))) is not None
            ]
        pending = self._pending.get((rule.logs[0].log, subject), [])

        def carry() -> None:
            if logs[0].log_limits.keeps != "ids":
                if opened.rows:
                    carry_numbers(opened.rows, logs[0], now_us, _copy)
                    opened.took = True
            elif opened.rows:
                opened.took = take_over(opened.rows, logs, now_us, _empty)
            elif carries or self._keeps_rows:
                opened.took = carry_hits(logs, now_us, _empty)

        opened.pending = end_and_carry(logs, pending, now_us, _copy, carry)
        return opened

    def _keep(self, subject: Subject, opened: _Opened) -> None:
        """Keep the logs in which something was recorded, and then what is pending; and what numbers took over."""
        rule, logs, kept = opened.rule, opened.logs, opened.logs
        if any(bound.changed for bound in logs):
            self._pending[rule.logs[0].log, subject] = opened.pending
        if self._keeps_rows and logs[0].log_limits.keeps == "ids":
            kept = logs[:1]
            if opened.took or any(bound.changed for bound in logs[1:]):
                self._rows[rule.numbers, subject] = rows_of(opened.rows, logs)
        elif opened.took and logs[0].log_limits.keeps != "ids":
            logs[0].changed = True
            self._rows.pop((rule.numbers, subject), None)
            for log_limits in rule.former:
                self._logs.pop((log_limits.log, subject), None)
        for bound, draft in zip(kept, opened.drafts, strict=False):
            if bound.changed:
                key = bound.log_limits.log, subject
                self._logs[key] = draft.log
                if isinstance(draft, _Whole):
                    self._aged_us[key] = max(draft.aged_us, self._aged_us.get(key, NEVER))


def _slot(max_wait: float | None, not_before: float) -> Slot:
    return Slot(None if max_wait is None else round(max_wait * 1e6), round(not_before * 1e6))


def _empty() -> Any:
    return Draft(Log())


def _copy(draft: Any) -> Any:
    return type(draft)(draft.log)


def _binds(parts: Sequence[Sequence[BoundLog]]) -> int:
    """The number of the part whose limit binds."""
    return next((i for i, bound_logs in enumerate(parts) if any(bound.binds for bound in bound_logs)), 0)
