"""The reference: the verbs of a limiter over the pure functions of `capline.window`, one plain value a log.

It is what every store is compared with. It shares the rule with the stores' long way, and nothing with how they keep
logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.limiter.rules import Rules
from capline.window.log import Log, refund, trim
from capline.window.sliding_log import first_answer, judge, peek, step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from capline.model.clock import Clock
    from capline.model.decision import Decision
    from capline.model.policy import Policy, Rule
    from capline.model.subject import Subject

__all__ = ["Reference"]


class Reference:
    """A limiter to read rather than to run: every call walks whole logs."""

    def __init__(self, policies: Iterable[Policy], clock: Clock) -> None:
        self._rules = Rules(policies)
        self._clock = clock
        self._logs: dict[tuple[str, Subject], Log] = {}

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
    ) -> Decision:
        """Decide and record."""
        rule = self._rules.rule(policy, segment, channel)
        return self._store(
            rule, subject, *step(self._load(rule, subject), rule, cost, self._clock.now_us(), (id or "").encode())
        )

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
    ) -> Decision:
        """Take the next free instant."""
        rule = self._rules.rule(policy, segment, channel)
        wait_us = None if max_wait is None else int(max_wait * 1e6)
        done = step(
            self._load(rule, subject),
            rule,
            cost,
            self._clock.now_us(),
            slot=True,
            max_wait_us=wait_us,
            not_before_us=int(not_before * 1e6),
        )
        return self._store(rule, subject, *done)

    def peek(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Decision:
        """The answer that `decide` would give."""
        rule = self._rules.rule(policy, segment, channel)
        logs = self._load(rule, subject)
        looks = [(log, look.limits) for log, look in zip(logs, rule.looks, strict=True)]
        now_us = self._clock.now_us()
        known, horizon_us = None, 0
        if id is not None:
            horizon_us = max([now_us, *(log.floor_us for log in logs)]) - rule.looks[0].keep_us
            kept = trim(logs[0], horizon_us)
            known = next((hit for hit in kept.hits if hit.id == id.encode()), None)
        return first_answer(looks, known, cost, now_us, horizon_us) if known else peek(judge(looks, cost, now_us))

    def refund(self, policy: str, subject: Subject, stamp_us: int) -> bool:
        """Give a hit back, in the policy's log and whichever channel's log has it."""
        rule = self._rules.rule(policy, None, None)
        own = rule.looks[0].log
        log = self._logs.get((own, subject), Log())
        if stamp_us <= max(self._clock.now_us(), log.floor_us) - rule.looks[0].keep_us:
            return False
        self._logs[own, subject], done = refund(log, stamp_us)
        for name in rule.channel_logs if done else ():
            self._logs[name, subject], _ = refund(self._logs.get((name, subject), Log()), stamp_us)
        return done

    def erase(self, subject: Subject) -> None:
        """Forget the subject."""
        for key in [key for key in self._logs if key[1] == subject]:
            del self._logs[key]

    def sweep(self) -> None:
        """Forget the logs that are out of every window."""
        keep_us = {name: self._rules.keep_us(name) for name in self._rules.logs()}
        now_us = self._clock.now_us()
        for (name, subject), log in list(self._logs.items()):
            last_us = max([log.floor_us, *(hit.stamp_us for hit in log.hits)])
            if last_us + keep_us[name] <= now_us:
                del self._logs[name, subject]

    def hits(self, policy: str, subject: Subject) -> list[tuple[int, int]]:
        """(stamp, units) of every hit within the widest window, oldest first."""
        look = self._rules.rule(policy, None, None).looks[0]
        log = self._logs.get((look.log, subject), Log())
        cutoff_us = max(self._clock.now_us(), log.floor_us) - look.keep_us
        return [(hit.stamp_us, hit.units) for hit in trim(log, cutoff_us).hits]

    def _load(self, rule: Rule, subject: Subject) -> tuple[Log, ...]:
        return tuple(self._logs.get((look.log, subject), Log()) for look in rule.looks)

    def _store(self, rule: Rule, subject: Subject, logs: tuple[Log, ...], decision: Decision) -> Decision:
        for look, log in zip(rule.looks, logs, strict=True):
            if log.hits:
                self._logs[look.log, subject] = log
        return decision
