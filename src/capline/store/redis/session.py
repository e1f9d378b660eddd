"""What the verbs on a server share: the router, the clock, the deadlines, and the rules that were compiled."""

import time
from typing import Any
from weakref import WeakValueDictionary

from msgspec.structs import astuple

from capline.model.clock import Clock
from capline.model.errors import CaplineError
from capline.model.policy import BoundPolicy
from capline.store.redis.cluster.router import Names, Router, UnderReplicated
from capline.store.redis.io.url import Settings
from capline.store.redis.io.wire import Reply
from capline.store.redis.scripting.compiled_rule import Family, RedisRule, bind
from capline.store.redis.scripting.keys import slot_of

CHANNELS_TAG = b"channels"


class Session:
    """Of one store. Threads share it."""

    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self.router = Router(settings)
        self.clock = clock
        self.next_forms = settings.next_forms
        # Those of rules in use: limits that come with the call have no end.
        self._families: WeakValueDictionary[tuple[object, ...], Family] = WeakValueDictionary()

    def compiled(self, rule: BoundPolicy) -> RedisRule:
        """The rule in the servers' form."""
        compiled = bind(rule, self.clock is not None, self.next_forms)
        # Equal families are one object, so that rows are sorted by it at no cost.
        compiled.family = self._families.setdefault(astuple(compiled.family), compiled.family)
        for log in [one.log for one in rule.logs if one.keeps == "hits" and "/" in one.log]:
            # A channel's: who erases may be a process that began when the policy had it no more.
            names = self.router.names = self.router.names or Names(channels_key(log), slot_of(CHANNELS_TAG))
            names.add(log.encode(), compiled.family.retention_us // 1000 + compiled.family.grace_ms)
        return compiled

    def now(self) -> bytes:
        """The caller's clock as an argument; empty for the server's."""
        return b"" if self.clock is None else b"%d" % self.clock.now_us()

    def until(self) -> float:
        """The deadline of a single call."""
        return time.monotonic() + self.router.settings.deadline_s

    def bulk_until(self) -> float:
        """The deadline of a batch, or of each step of a long job."""
        return time.monotonic() + self.router.settings.bulk_deadline_s


def channels_key(log: str) -> bytes:
    """The key of the names of all logs of channels; no log has a name that begins with a slash."""
    return b"%b:/channels:{%b}" % (log.partition(":")[0].encode(), CHANNELS_TAG)


def confirmed(outcome: Reply) -> Any:
    """The reply itself; raises it if it is an error, or if too few replicas have its writes."""
    if isinstance(outcome, UnderReplicated):
        raise outcome.error
    return unwrap(outcome)


def unwrap(outcome: Reply) -> Any:
    """The reply itself; raises it if it is an error."""
    if isinstance(outcome, UnderReplicated):
        outcome = outcome.reply
    if isinstance(outcome, CaplineError):
        raise outcome
    return outcome
