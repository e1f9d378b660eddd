"""The reference: the verbs of a limiter over the pure functions of `capline.window`, one plain value a log.

Every store is compared with it. It shares the general rule with the stores of this machine, but not how they keep logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from capline.limiter.checks import fingerprint
from capline.limiter.rules import Rules
from capline.model.decision import Decision, Joint
from capline.model.policy import LogLimits
from capline.window.bound_log import draft_logs
from capline.window.carry import carry_hits
from capline.window.charge import charge
from capline.window.joint import joint, joint_slot
from capline.window.log import Draft, Log, trim
from capline.window.refund import refund, settle
from capline.window.reservation import commit, end_all, forget, reserve, take_along
from capline.window.rule import attempt, peek
from capline.window.slot import Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from capline.model.attempt import Attempt
    from capline.model.clock import Clock
    from capline.model.policy import BoundPolicy, Policy
    from capline.model.subject import Subject
    from capline.window.bound_log import BoundLog
    from capline.window.reservation import Pending

__all__ = ["Reference"]

Opened: TypeAlias = "tuple[dict[str, Draft], list[BoundLog], list[Pending]]"
"""The logs of an attempt as drafts and bound to its limits, and what is pending once they are kept."""


class Reference:
    """A limiter written to be read: every call walks whole logs."""

    def __init__(self, policies: Iterable[Policy], clock: Clock) -> None:
        self._rules = Rules(policies)
        self._clock = clock
        self._logs: dict[tuple[str, Subject], Log] = {}
        self._pending: dict[tuple[str, Subject], list[Pending]] = {}

    def use(self, policies: Iterable[Policy]) -> None:
        """Put other policies in force."""
        self._rules = Rules(policies)

    def decide(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """Decide and record."""
        return self._attempt(self._rules.rule(policy, segment, channel, zone), subject, cost, id)

    def schedule(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        *,
        max_wait: float | None = None,
        not_before: float = 0,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """Take the next free instant."""
        slot = Slot(None if max_wait is None else round(max_wait * 1e6), round(not_before * 1e6))
        return self._attempt(self._rules.rule(policy, segment, channel, zone), subject, cost, None, slot)

    def peek(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """The answer that `decide` would give."""
        _, bound_logs, _ = self._open(self._rules.rule(policy, segment, channel, zone), subject, cost)
        return peek(bound_logs, self._clock.now_us(), fingerprint(id))

    def charge(
        self,
        policy: str,
        subject: Subject,
        cost: int,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """Record whatever the limits say."""
        drafts, bound_logs, pending = self._open(self._rules.rule(policy, segment, channel, zone), subject, cost)
        decision = charge(bound_logs, self._clock.now_us(), fingerprint(id))
        self._keep(subject, drafts, bound_logs, pending)
        return decision

    def settle(self, policy: str, subject: Subject, stamp_us: int, cost: int) -> bool:
        """Give a hit what it really cost, in the policy's log and whichever other has it."""
        drafts, bound_logs, pending = self._open(self._with_every_log(policy, subject), subject, cost, carries=False)
        done = settle(bound_logs, stamp_us, self._clock.now_us())
        take_along(bound_logs)
        forget(bound_logs, pending, stamp_us)
        self._keep(subject, drafts, bound_logs, pending)
        return done

    def reserve(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        ttl: float = 60,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """Decide and record a hit that ends by itself."""
        rule = self._rules.rule(policy, segment, channel, zone)
        drafts, bound_logs, pending = self._open(rule, subject, cost)
        decision = reserve(bound_logs, pending, self._clock.now_us(), round(ttl * 1e6), fingerprint(id))
        self._keep(subject, drafts, bound_logs, pending)
        return decision

    def commit(self, policy: str, subject: Subject, stamp_us: int) -> bool:
        """Make a reserved hit an ordinary one."""
        rule = self._rules.rule(*self._rules.any_names(policy))
        own, now_us = rule.logs[0].log, self._clock.now_us()
        _, bound_logs = draft_logs(
            [self._logs.get((own, subject), Log()), *[Log()] * (len(rule.logs) - 1)], rule, 1, now_us
        )
        return commit(bound_logs[0], self._pending.setdefault((own, subject), []), stamp_us, now_us)

    def decide_all(self, attempts: Sequence[Attempt]) -> Joint:
        """One attempt over several subjects, all or nothing."""
        opened = self._open_all(attempts)
        parts = [bound_logs for _, bound_logs, _ in opened]
        decision, hits = joint(parts, self._clock.now_us(), [fingerprint(one.id) for one in attempts])
        for one, opened_one in zip(attempts, opened, strict=True):
            self._keep(one.subject, *opened_one)
        return Joint.of(decision, hits, _binds(parts))

    def schedule_all(
        self, attempts: Sequence[Attempt], *, max_wait: float | None = None, not_before: float = 0
    ) -> Joint:
        """Take the next free instant of all logs, or none."""
        slot = Slot(None if max_wait is None else round(max_wait * 1e6), round(not_before * 1e6))
        opened = self._open_all(attempts)
        parts = [bound_logs for _, bound_logs, _ in opened]
        decision, hits = joint_slot(parts, self._clock.now_us(), [fingerprint(one.id) for one in attempts], slot)
        for one, opened_one in zip(attempts, opened, strict=True):
            self._keep(one.subject, *opened_one)
        return Joint.of(decision, hits, _binds(parts))

    def refund(self, policy: str, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        """Give a hit back, in the policy's log and whichever other has it."""
        drafts, bound_logs, pending = self._open(self._with_every_log(policy, subject), subject, cost, carries=False)
        done = refund(bound_logs, stamp_us, cost, self._clock.now_us())
        take_along(bound_logs)
        forget(bound_logs, pending, stamp_us)
        self._keep(subject, drafts, bound_logs, pending)
        return done

    def erase(self, subject: Subject) -> None:
        """Forget the subject."""
        for of_logs in (self._logs, self._pending):
            for key in [key for key in of_logs if key[1] == subject]:
                del of_logs[key]

    def sweep(self) -> None:
        """Forget the logs that are out of every window."""
        now_us = self._clock.now_us()
        for (name, subject), log in list(self._logs.items()):
            last_us = max([log.high_water_us, *(hit.stamp_us for hit in log.hits)])
            if last_us + self._rules.retention_us(name) <= now_us:
                del self._logs[name, subject]

    def hits(self, policy: str, subject: Subject) -> list[list[tuple[int, int]]]:
        """(stamp, units) of every hit within the widest window, oldest first, in each log that the policy looks at."""
        rule = self._rules.rule(*self._rules.any_names(policy))
        drafts, _, _ = self._open(rule, subject, 1)
        found: list[list[tuple[int, int]]] = []
        for one in rule.logs:
            log = drafts[one.log].log
            cutoff_us = max(self._clock.now_us(), log.high_water_us) - one.retention_us
            found.append([(hit.stamp_us, hit.units) for hit in trim(log, cutoff_us).hits])
        return found

    def _with_every_log(self, policy: str, subject: Subject) -> BoundPolicy:
        """A rule over every log that may hold a hit of the policy, also those of channels that it has no more."""
        rule = self._rules.rule(*self._rules.any_names(policy))
        if rule.algorithm != "sliding_log":
            return rule
        beside = f"{rule.logs[0].log}/"
        names = [name for name, whose in self._logs if whose == subject and name.startswith(beside)]
        channels = (LogLimits(name, (), rule.logs[0].retention_us) for name in names)
        return msgspec.structs.replace(rule, logs=(rule.logs[0], *channels))

    def _attempt(
        self, rule: BoundPolicy, subject: Subject, cost: int, id: str | None, slot: Slot | None = None
    ) -> Decision:
        drafts, bound_logs, pending = self._open(rule, subject, cost)
        decision = attempt(bound_logs, self._clock.now_us(), fingerprint(id), slot, rule.denied_units)
        self._keep(subject, drafts, bound_logs, pending)
        return decision

    def _open_all(self, attempts: Sequence[Attempt]) -> list[Opened]:
        rules = [self._rules.rule(one.policy, one.segment, one.channel, one.zone) for one in attempts]
        return [self._open(rule, one.subject, one.cost) for rule, one in zip(rules, attempts, strict=True)]

    def _open(self, rule: BoundPolicy, subject: Subject, cost: int, *, carries: bool = True) -> Opened:
        _, bound_logs = draft_logs(
            [self._logs.get((log_limits.log, subject), Log()) for log_limits in rule.logs],
            rule,
            cost,
            self._clock.now_us(),
        )
        if carries:
            carry_hits(bound_logs, self._clock.now_us(), lambda: _draft(Log()))
        pending = self._pending.get((rule.logs[0].log, subject), [])
        pending = end_all(bound_logs, pending, self._clock.now_us(), lambda draft: draft)
        opened: list[Any] = [bound.log for bound in bound_logs]
        return {one.log: draft for one, draft in zip(rule.logs, opened, strict=True)}, bound_logs, pending

    def _keep(
        self, subject: Subject, drafts: dict[str, Draft], bound_logs: Sequence[BoundLog], pending: list[Pending]
    ) -> None:
        """Keep the logs in which something was recorded, and then what is pending."""
        for (name, draft), bound in zip(drafts.items(), bound_logs, strict=True):
            if bound.changed:
                self._logs[name, subject] = draft.log
        if any(bound.changed for bound in bound_logs):
            self._pending[next(iter(drafts)), subject] = pending


def _draft(log: Log) -> Any:
    return Draft(log)


def _binds(parts: Sequence[Sequence[BoundLog]]) -> int:
    """The number of the part whose limit binds."""
    return next((i for i, bound_logs in enumerate(parts) if any(bound.binds for bound in bound_logs)), 0)
