"""A rule in the form that the scripts take: what every attempt shares is packed once, when the rule is bound."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from capline.model.decision import Decision
from capline.model.limit import Limit
from capline.model.policy import Rule
from capline.model.subject import Subject
from capline.store.redis.keys import bucket_count
from capline.store.redis.wire import bulk

__all__ = ["MOST_SHORT_QUOTA", "RedisTerms", "bind"]

MOST_SHORT_QUOTA = 128
"""A log that can grow longer than this is read where it is looked at, not whole (`SHORT` in log.lua)."""

SERVER_GRACE_MS = 60_000
"""How much longer than its hits a key lives: the server's clock may step back a little."""

CALLER_GRACE_MS = 86_400_000
"""The same with a caller's clock, which may run slower than the server's."""


class Family(msgspec.Struct, frozen=True):
    """What attempts must share to be rows of one script call: the logs, and how they are kept."""

    logs: tuple[bytes, ...]
    buckets: int
    keep_us: int
    grace_ms: int
    wide: int
    replicas: int


class RedisTerms(msgspec.Struct):
    """A rule, bound."""

    rule: Rule
    family: Family
    refund_logs: tuple[bytes, ...]
    limits: tuple[Limit, ...]
    widest_us: int
    row: list[object]
    """The terms as attempt.lua takes them."""
    one: bytes
    """The terms as one.lua takes them, as an argument on the wire."""
    short: bool
    """Whether one.lua is for these terms."""
    decide_unit: Callable[[Subject], Decision]


def bind(rule: Rule, own_clock: bool) -> RedisTerms:
    """The rule's terms; the caller sets `decide_unit`."""
    looks = rule.looks
    keep_us = looks[0].keep_us
    buckets = bucket_count(rule.population) if rule.layout == "bucket" else 0
    grace_ms = CALLER_GRACE_MS if own_clock else SERVER_GRACE_MS
    # Stamps of one log lie within `keep_us` of each other, and a microsecond.
    wide = next(width for width in (5, 6, 7) if keep_us + 2 < 256**width)
    limits = tuple(limit for look in looks for limit in look.limits)
    widest_us = max((limit.window_us for limit in limits), default=0)
    quotas = [limit.quota for limit in limits]
    least = min(quotas, default=0)
    place = quotas.index(least) if quotas else 0
    usable = len(looks) == 1 and least > 0
    long = not buckets and max(quotas, default=0) > MOST_SHORT_QUOTA
    flat = [[part for limit in look.limits for part in (limit.quota, limit.window_us)] for look in looks]
    one = struct.pack(
        f">BQQQBQ{2 * len(limits)}Q",
        wide,
        keep_us,
        grace_ms,
        least,
        place + 128 * long,
        widest_us,
        *(part for limit in limits for part in (limit.quota, limit.window_us)),
    )
    return RedisTerms(
        rule,
        Family(tuple(look.log.encode() for look in looks), buckets, keep_us, grace_ms, wide, rule.wait_replicas),
        (looks[0].log.encode(), *(name.encode() for name in rule.channel_logs)),
        limits,
        widest_us,
        [flat, least if usable else 0, place, widest_us, int(long)],
        bulk(one),
        usable,
        _unbound,
    )


def _unbound(subject: Subject) -> Decision:
    raise NotImplementedError(subject)
