"""What the verbs on a server share: the engine, the clock, the deadlines, and the rules that were bound."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from capline.model.errors import CaplineError
from capline.store.redis.engine import Engine, Unconfirmed
from capline.store.redis.terms import Family, RedisTerms, bind

if TYPE_CHECKING:
    from capline.model.clock import Clock
    from capline.model.policy import Rule
    from capline.store.redis.url import Settings
    from capline.store.redis.wire import Reply

__all__ = ["Session", "sound"]


class Session:
    """Of one store. Threads share it."""

    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self.engine = Engine(settings)
        self.clock = clock
        self.logs: dict[str, RedisTerms] = {}
        """Of each log that was asked about, by its name, the terms that were bound last."""
        self._families: dict[Family, Family] = {}

    def terms(self, rule: Rule) -> RedisTerms:
        """See `Store`."""
        terms = bind(rule, self.clock is not None)
        # Equal families are one object, so that rows are sorted by it at no cost.
        terms.family = self._families.setdefault(terms.family, terms.family)
        for name in terms.refund_logs:
            self.logs[name.decode()] = terms
        return terms

    def now(self) -> bytes:
        """The caller's clock as an argument; empty for the server's."""
        return b"" if self.clock is None else b"%d" % self.clock.now_us()

    def until(self) -> float:
        """When a single call has to be answered."""
        return time.monotonic() + self.engine.settings.deadline_s

    def bulk_until(self) -> float:
        """When a batch, or each step of a long work, has to be answered."""
        return time.monotonic() + self.engine.settings.bulk_deadline_s


def sound(outcome: Reply) -> Any:
    """The reply itself; raises the error that stands for it."""
    if isinstance(outcome, Unconfirmed):
        outcome = outcome.reply
    if isinstance(outcome, CaplineError):
        raise outcome
    return outcome
