"""A rule as arguments of the scripts: what every attempt shares is packed once, when the rule is compiled."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from operator import gt

import msgspec

from capline.model.decision import Decision
from capline.model.limit import LARGEST_QUOTA, Limit
from capline.model.policy import BoundPolicy, LogLimits
from capline.model.subject import Subject
from capline.model.zone import zone_table
from capline.store.redis.io.wire import bulk
from capline.store.redis.scripting.keys import bucket_count
from capline.window.bound_log import former_readers, readers_of
from capline.window.counters import CounterReader, FixedReader, LevelReader
from capline.window.limit_reader import CalendarReader, LimitReader, QuietReader
from capline.window.reservation import log_mark

SIMPLE_BYTES, STATE_BYTES = 10, 24
"""Bytes in a reply: the instant and one row; the state of one limit."""

MOST_SHORT_QUOTA = 128
"""Of a log that can grow longer than this, scripts read single entries and not the whole value (`SHORT` in log.lua)."""

SERVER_GRACE_MS = 60_000
"""How much longer a key lives than its hits count: the server's clock may step back a little."""

_COUNTER, _SUMS = 3, 6
"""Kinds of flat.lua: the first is that of `sliding_counter`, the last that of `bucketed`."""

_RECORD, _FORMER = -2, -9
"""The `storage` of a record of reservations, and of numbers that a policy of hits kept before."""

CALLER_GRACE_MS = 86_400_000
"""The same for a caller's clock, which may run slower than the server's."""


class Family(msgspec.Struct, frozen=True, weakref=True):
    """What attempts must share to be rows of one script call: the logs, and how these are kept."""

    logs: tuple[bytes, ...]
    buckets: int
    retention_us: int
    grace_ms: int
    stamp_bytes: int
    replicas: int
    reserves: bool = False
    """Whether the last of the logs is none, but the record of reservations."""
    former: int = 0
    """How many of the logs, before that, are numbers that a policy of hits kept before."""

    @property
    def hit_logs(self) -> tuple[bytes, ...]:
        """The logs that hold hits."""
        return self.logs[: len(self.logs) - self.reserves - self.former]

    @property
    def former_logs(self) -> tuple[bytes, ...]:
        """Where the numbers of before are."""
        return self.logs[len(self.hit_logs) :][: self.former]

    @property
    def records(self) -> tuple[bytes, ...]:
        """The record of reservations, if there is one."""
        return self.logs[-1:] if self.reserves else ()


class RedisRule(msgspec.Struct):
    """A rule, compiled for the scripts."""

    rule: BoundPolicy
    family: Family
    refund_logs: tuple[bytes, ...]
    limits: tuple[Limit, ...]
    simple_bytes: int
    """The length of a reply for one row that has no record of its own."""
    widest_us: int
    limits_of: list[list[object]]
    """The limits of each log, as the scripts take them."""
    storage: list[int] | None
    """What each log keeps, as the scripts take it; None if every log keeps each hit."""
    next_forms: bool
    """Whether a value may begin a form that older releases cannot read."""
    refund_keeps: bytes
    """What each of `refund_logs` keeps, as refund.lua takes it."""
    refund_marks: bytes
    """The marks of `refund_logs` in a record of reservations, as refund.lua takes them."""
    head: list[object]
    """The terms as attempt.lua takes them, but for the zone."""
    long: bool
    """Whether a log of allowed hits may be a long one."""
    unit_terms: bytes
    """The terms as one.lua takes them, but for the terms in full."""
    terms_anywhere: bytes
    """What `terms` are without a zone."""
    short: bool
    """Whether a unit can be answered by unit.lua."""
    flat: bool
    """Whether flat.lua can."""
    decide_one: Callable[[Subject], Decision]
    ask: Callable[..., Decision] | None = None
    one_terms_anywhere: bytes = b""
    """What `one_terms` are without a zone, once they were asked for."""
    joint_terms_anywhere: bytes = b""
    """The same of `joint_terms`."""
    kept: dict[object, RedisRule] = {}
    judged: list[list[object]] | None = None
    """`limits_of` with quotas less what must stay free; None if nothing must."""
    parts: list[int] | None = None
    """The number of the policy of each log, if there are several."""
    units: list[tuple[int, int, int]] | None = None
    """Least quota, its number and widest window of each log, where there are several and all are plain."""

    def zone(self, now: bytes) -> list[int] | None:
        """The zone's offsets around now (empty: this host's clock, which is close enough: a table covers years)."""
        name = self.rule.zone
        return list(zone_table(name, int(now or time.time_ns() // 1000))) if name else None

    def one_terms(self, now: bytes) -> bytes:
        """The terms as one.lua takes them, as an argument on the wire."""
        if self.rule.zone:
            return bulk(self.unit_terms + msgspec.msgpack.encode(self.row(now)))
        if not self.one_terms_anywhere:
            full = b"" if self.short else msgspec.msgpack.encode(self.row(now))
            self.one_terms_anywhere = bulk(self.unit_terms + full)
        return self.one_terms_anywhere

    def joint_terms(self, now: bytes) -> bytes:
        """The terms as joint.lua takes them, as an argument on the wire."""
        if self.rule.zone:
            return bulk(self.unit_terms + self.terms(now))
        if not self.joint_terms_anywhere:
            self.joint_terms_anywhere = bulk(self.unit_terms + self.terms_anywhere)
        return self.joint_terms_anywhere

    def terms(self, now: bytes) -> bytes:
        """The terms that are not in `unit_terms`, as joint.lua and refund.lua take them."""
        if not self.rule.zone:
            return self.terms_anywhere
        denied, zone = self.rule.denied_units, self.zone(now)
        return _terms(self.limits_of, self.storage, denied, zone, self.next_forms, self.judged)

    def row(self, now: bytes) -> list[object]:
        """The terms as attempt.lua takes them."""
        if self.parts is not None or self.units is not None:
            head = [*self.head[:5], self.storage, self.rule.denied_units]
            return [*head, self.zone(now), self.judged, self.parts, self.units]
        if self.judged is not None:
            return [*self.head, self.zone(now), self.judged]
        return [*self.head, self.zone(now)] if self.rule.zone else self.head


def bind(rule: BoundPolicy, own_clock: bool, next_forms: bool) -> RedisRule:
    """Compile the rule, whose numbers become one value with `next_forms`; the caller sets `decide_one`."""
    logs = rule.logs
    retention_us = logs[0].retention_us
    buckets = bucket_count(rule.population) if rule.layout == "bucket" else 0
    grace_ms = CALLER_GRACE_MS if own_clock else SERVER_GRACE_MS
    # Stamps of one log lie within `retention_us` of each other, and a microsecond.
    stamp_bytes = next(width for width in (5, 6, 7) if retention_us + 2 < 256**width)
    limits = tuple(limit for log_limits in logs for limit in log_limits.limits)
    widest_us = max((limit.window_us for limit in limits), default=0)
    quotas = [limit.quota for limit in limits]
    least = min(quotas, default=0)
    place = quotas.index(least) if quotas else 0
    plain = rule.algorithm == "sliding_log" and not (rule.zone or rule.denied_units or rule.reserved or rule.former)
    kept = [units for log_limits in logs for units in log_limits.keep_free or ()]
    usable = plain and len(logs) == 1 and least > 0 and all(map(gt, quotas, kept))
    long = not buckets and max((*quotas, rule.denied_units), default=0) > MOST_SHORT_QUOTA
    readers = readers_of(rule)
    limits_of: list[list[object]] = [
        [part for reader in own for part in (reader.limit.quota, _by(reader))] for own in readers
    ]
    judged = None
    if logs[0].keep_free is not None:
        judged = [
            [part for reader, units in zip(own, of.keep_free or (), strict=True) for part in _judged(reader, units)]
            for own, of in zip(readers, logs, strict=True)
        ]
    keeps = None if rule.algorithm == "sliding_log" else [_keeps(log_limits, next_forms) for log_limits in logs]
    records: tuple[bytes, ...] = ()
    storage = keeps
    if rule.former:
        of_former: list[list[object]] = [[reader.limit.quota, _by(reader)] for reader in former_readers(rule)]
        limits_of += of_former
        storage = [*(keeps or [0] * len(logs)), *([_FORMER] * len(rule.former))]
    refund_looks = logs[:1] if keeps is None else logs
    refund_logs = (*(log_limits.log for log_limits in refund_looks), *rule.channel_logs)
    refund_keeps = [
        number
        for log_limits, own in zip(refund_looks, readers, strict=False)
        for number in (_keeps(log_limits, next_forms), *_numbers(own))
    ]
    if rule.reserved:
        records = (rule.reserved.encode(),)
        limits_of.append([log_mark(log_limits.log) for log_limits in logs])
        storage = [*(storage or [0] * len(logs)), _RECORD]
    flat, facts = (0, None) if usable else _flat(rule, readers, next_forms)
    facts = facts or [part for limit in limits for part in (limit.quota, limit.window_us)]
    life = b"%d" % (-(-retention_us // 1000) + grace_ms)
    unit_terms = struct.pack(
        f">BHBQQQBQ{len(facts) + len(kept)}Q",
        stamp_bytes,
        len(limits),
        len(life),
        retention_us,
        grace_ms,
        least if usable else 0,
        (place if usable else flat) + 32 * (judged is not None) + 64 * next_forms,
        widest_us,
        *facts,
        *kept,
    )
    unit_terms += life
    terms = _terms(limits_of, storage, rule.denied_units, None, next_forms, judged)
    return RedisRule(
        rule,
        Family(
            (*(log_limits.log.encode() for log_limits in (*logs, *rule.former)), *records),
            buckets,
            retention_us,
            grace_ms,
            stamp_bytes,
            rule.wait_replicas,
            bool(records),
            len(rule.former),
        ),
        tuple(name.encode() for name in refund_logs),
        limits,
        SIMPLE_BYTES + STATE_BYTES * len(limits),
        widest_us,
        limits_of,
        storage,
        next_forms,
        msgspec.msgpack.encode(refund_keeps) if keeps else b"",
        b"".join(log_mark(name).to_bytes(4) for name in refund_logs),
        [
            limits_of,
            least if usable else 0,
            place,
            widest_us,
            int(long),
            *(() if plain and judged is None else (storage, rule.denied_units)),
        ],
        long,
        unit_terms,
        terms,
        usable,
        usable or flat > 0,
        _unbound,
        judged=judged,
        parts=[log_limits.part for log_limits in (*logs, *rule.former)] if logs[-1].part else None,
        units=_units(logs) if plain and len(logs) > 1 else None,
    )


def _units(logs: Sequence[LogLimits]) -> list[tuple[int, int, int]] | None:
    """What unit.lua takes of each log; None where it does not apply to one."""
    units: list[tuple[int, int, int]] = []
    for log_limits in logs:
        quotas = [limit.quota for limit in log_limits.limits]
        if not quotas or not min(quotas) or not all(map(gt, quotas, log_limits.keep_free or [0] * len(quotas))):
            return None
        widest_us = max(limit.window_us for limit in log_limits.limits)
        units.append((min(quotas), quotas.index(min(quotas)), widest_us))
    return units


def _terms(
    limits_of: list[list[object]],
    keeps: list[int] | None,
    denied: int,
    zone: list[int] | None,
    next_forms: bool,
    judged: list[list[object]] | None,
) -> bytes:
    more = () if judged is None else (judged,)
    return msgspec.msgpack.encode([len(limits_of), limits_of, keeps, denied, zone, next_forms, *more])


def _flat(
    rule: BoundPolicy, readers: Sequence[Sequence[LimitReader]], next_forms: bool
) -> tuple[int, list[int] | None]:
    """The kind of flat.lua, and four numbers of each limit; 0 where it does not apply."""
    if rule.zone or rule.denied_units or rule.reserved or rule.former:
        return 0, None
    kind, numbers = 0, list[int]()
    for log_limits, part in zip(rule.logs, readers, strict=True):
        for reader in part:
            by = _by(reader)
            if isinstance(by, int) and log_limits.keeps == "sums":
                by = _SUMS, by, log_limits.grain_us
            if isinstance(by, int) or by[0] < _COUNTER or (next_forms and by[0] != _SUMS):
                return 0, None
            kind = by[0]
            numbers += (reader.limit.quota, *by[1:], 0, 0)[:4]
    return kind, numbers


def _by(reader: LimitReader) -> int | tuple[int, ...]:
    """The `by` of a limit in limit_reader.lua."""
    limit = reader.limit
    if isinstance(reader, CalendarReader):
        return 1, limit.window_us
    if isinstance(reader, QuietReader):
        return 2, reader.limit.from_us, reader.limit.until_us
    if isinstance(reader, CounterReader):
        return 3, limit.window_us, reader.tick_us, reader.ticks
    if isinstance(reader, FixedReader):
        return 5, limit.window_us
    if isinstance(reader, LevelReader):
        return 4, reader.rise, reader.fall, reader.brim, limit.window_us
    return limit.window_us


def _judged(reader: LimitReader, kept: int) -> tuple[object, ...]:
    """The limit as the scripts judge it, where so many units must stay free."""
    if isinstance(reader, LevelReader):
        reader = msgspec.structs.replace(reader, brim=reader.brim - kept * reader.rise)
    return reader.limit.quota - kept, _by(reader)


def _keeps(log_limits: LogLimits, next_forms: bool) -> int:
    """The `storage` of a log in rule.lua."""
    ids = -1 - 2 * log_limits.shared - 4 * next_forms
    return {"hits": 0, "ids": ids}.get(log_limits.keeps, log_limits.grain_us)


def _numbers(own: tuple[LimitReader, ...]) -> tuple[int, int, int, int]:
    """The most units of a log, and rise, fall and brim of its level."""
    if own and isinstance(own[0], LevelReader):
        return own[0].most_units, own[0].rise, own[0].fall, own[0].brim
    return min([reader.most_units for reader in own], default=LARGEST_QUOTA), 0, 0, 0


def _unbound(subject: Subject) -> Decision:
    raise NotImplementedError(subject)
