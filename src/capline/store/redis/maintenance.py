"""Whole logs on a server: read, merge, scan, erase, sweep. As generators, like `steps`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import astuple

from capline.model.errors import CaplineError, StoreDamagedError, StoreError
from capline.model.policy import LOGS, NUMBERS, RESERVED
from capline.model.subject import Subject
from capline.store.protocol import Merge, Page, ScannedLog
from capline.store.redis.cluster.router import UnderReplicated
from capline.store.redis.io.url import Address
from capline.store.redis.io.wire import Exchange, NoReply, Reply, Request, ServerError, Steps, pack
from capline.store.redis.scripting.compiled_rule import Family, RedisRule
from capline.store.redis.scripting.keys import (
    bucket_count,
    field_of,
    is_bucket,
    log_of_key,
    slot_of,
    subject_of,
    tag_of,
    tag_of_key,
)
from capline.store.redis.scripting.replies import NO_ROOM, damaged
from capline.store.redis.scripting.requests import keys_of
from capline.store.redis.scripting.scripts import MERGE, SWEEP, Call
from capline.store.redis.scripting.value import ParsedLog, read_value
from capline.store.redis.session import CHANNELS_TAG, Session, channels_key, confirmed, unwrap
from capline.window.bound_log import draft_logs, former_readers
from capline.window.carry import NumberRow, carry_hits, carry_numbers, take_over
from capline.window.charge import too_many
from capline.window.log import Draft, Hit, Log
from capline.window.merge import Merged

SCAN_COUNT = 1000
KEYS_A_PAGE = 200
"""The COUNT of one SCAN; each key is a subject's log or a bucket."""

_IDS = b"/+ids"
_TIME = pack(b"TIME")
_HIT = struct.Struct(">7s7sQ")
"""A hit as merge.lua takes it."""


def recorded(session: Session, compiled: RedisRule, subject: Subject) -> Steps[list[list[Hit]]]:
    """The hits in each log of the rule within the widest window."""
    family = compiled.family
    tag = tag_of(subject, family.buckets)
    # Reservations that the policy gave up end all the same.
    ends = compiled.rule.algorithm in LOGS
    records = (_record_of(compiled),) if ends else ()
    read = (*family.hit_logs, *records, _ids_of(compiled), *family.former_logs)
    keys = keys_of(read, tag)
    slot = slot_of(tag)
    if family.buckets:
        payloads = [pack(b"HGET", key, field_of(subject)) for key in keys]
    else:
        payloads = [pack(b"GET", key) for key in keys]
    calls = [Call(slot, payload, repeatable=True) for payload in (*payloads, _TIME)]
    *values, time = yield from session.router.run(calls, session.until())
    now_us = _time_us(unwrap(time)) if session.clock is None else session.clock.now_us()
    logs = [_stored(unwrap(value), compiled) for value in values]
    former = logs[len(read) - family.former :]
    del logs[len(read) - family.former :]
    beside, pending = logs.pop(), logs.pop() if ends else None
    rows = logs[0].rows
    if rows is None and any(log.hits for log in former):
        rows = [
            NumberRow(reader, _draft(log))
            for reader, log, of in zip(former_readers(compiled.rule), former, compiled.rule.former, strict=True)
            if log.hits and of.part == 0
        ]
        logs[0], beside = ParsedLog([], 0, rows), logs[0]
    if rows is not None or compiled.rule.algorithm not in LOGS:
        logs = _taken_over(compiled, logs, beside, now_us)
    if pending is not None:
        _end_reservations(logs, pending, now_us)
        # A channel's hit has the units of the policy's own, as in rule.lua.
        units_at, part = dict[int, int](), -1
        for log, of in zip(logs, compiled.rule.logs, strict=True):
            if of.part != part:
                units_at, part = {stamp_us: units for stamp_us, units, _ in log.hits}, of.part
            else:
                log.hits[:] = [(stamp_us, units_at.get(stamp_us, units), mark) for stamp_us, units, mark in log.hits]
    return [_within(log, now_us, family.retention_us) for log in logs]


def _taken_over(compiled: RedisRule, logs: list[ParsedLog], beside: ParsedLog, now_us: int) -> list[ParsedLog]:
    """The logs, bound to the policy's numbers or to what they take over; `beside` is its log of hits, if it has any."""
    rows = logs[0].rows or []
    if logs[0].rows is not None:
        logs = [beside, *logs[1:]]
    _, bound = draft_logs(
        [Log(tuple(Hit(*hit) for hit in log.hits), log.high_water_us) for log in logs], compiled.rule, 1, now_us
    )
    if compiled.rule.algorithm in LOGS:
        if rows:
            carry_numbers(rows, bound[0], now_us, lambda log: log)
    elif rows:
        take_over(rows, bound, now_us, _empty)
    else:
        carry_hits(bound, now_us, _empty)
    drafts: list[Any] = [each.log for each in bound]
    return [ParsedLog([astuple(hit) for hit in draft.log.hits], draft.high_water_us) for draft in drafts]


def _empty() -> Any:
    return Draft(Log())


def _draft(log: ParsedLog) -> Any:
    return Draft(Log(tuple(Hit(*hit) for hit in log.hits), log.high_water_us))


def merge(session: Session, merges: Sequence[Merge]) -> Steps[list[Merged | CaplineError]]:
    """Merge past hits into logs. A merge that runs twice adds once, so it is resent until it is answered."""
    calls = [_merge_call(session, past) for past in merges]
    replicas = max([past.compiled.family.replicas for past in merges], default=0)
    outcomes = yield from session.router.run(calls, session.bulk_until(), replicas)
    return [_merged(outcome, past) for outcome, past in zip(outcomes, merges, strict=True)]


def _merge_call(session: Session, past: Merge) -> Call:
    family: Family = past.compiled.family
    tag = tag_of(past.subject, family.buckets)
    keys = keys_of(family.hit_logs, tag)
    field = field_of(past.subject) if family.buckets else b""
    numbers = (b"%d" % number for number in (family.retention_us, family.grace_ms, family.stamp_bytes))
    packed = b"".join(
        [_HIT.pack(at_us.to_bytes(7), units.to_bytes(7), name) for at_us, units, name in sorted(past.hits)]
    )
    exported = b"1" if past.exported else b""
    payload = pack(b"EVALSHA", MERGE.sha, b"%d" % len(keys), *keys, field, session.now(), *numbers, packed, exported)
    return Call(slot_of(tag), payload, MERGE, repeatable=True)


def scan(
    session: Session, all_terms: Sequence[RedisRule], after: tuple[list[Address], bytes] | None = None
) -> Steps[Page]:
    """The logs of some keys of one server; `after` is the servers that are left, and the cursor of the first."""
    [outcome] = yield from session.router.run([Call(0, _TIME, repeatable=True)], session.bulk_until())
    now_us = _time_us(unwrap(outcome)) if session.clock is None else session.clock.now_us()
    nodes, cursor = (session.router.topology.primaries(), b"0") if after is None else after
    if not nodes:
        return Page([])
    of_log = {
        log: rule
        for rule in all_terms
        for log in map(bytes.decode, (*rule.refund_logs, *rule.family.former_logs, _ids_of(rule)))
    }
    namespace = all_terms[0].family.logs[0].partition(b":")[0]
    scan = pack(b"SCAN", cursor, b"MATCH", b"%b:*:{*}" % namespace, b"COUNT", b"%d" % KEYS_A_PAGE)
    [[reply]] = yield Exchange([Request(nodes[0], scan, 1)], session.bulk_until())
    if isinstance(reply, (ServerError, NoReply)):
        raise StoreError(f"scanning {nodes[0][0]}:{nodes[0][1]}: {reply.text}; begin the scan again")
    cursor, keys = reply
    found: list[ScannedLog] = []
    kept = [
        (key, of_log[log_of_key(key)], tag)
        for key in keys
        if log_of_key(key) in of_log and (tag := tag_of_key(key)) is not None
    ]
    # By the key, not by the rule: a log of a layout that the policy had before is kept until it ages.
    single = [row for row in kept if not is_bucket(row[2])]
    calls = [Call(slot_of(tag), pack(b"GET", key), repeatable=True) for key, _, tag in single]
    outcomes = (yield from session.router.run(calls, session.bulk_until())) if calls else []
    for (key, compiled, tag), value in zip(single, outcomes, strict=True):
        found += _found(log_of_key(key), compiled, tag, [(None, value)], now_us)
    buckets = [(*row, b"0") for row in kept if is_bucket(row[2])]
    while buckets:
        calls = [
            Call(slot_of(tag), pack(b"HSCAN", key, at, b"COUNT", b"%d" % KEYS_A_PAGE), repeatable=True)
            for key, _, tag, at in buckets
        ]
        outcomes = yield from session.router.run(calls, session.bulk_until())
        left: list[tuple[bytes, RedisRule, bytes, bytes]] = []
        for (key, compiled, tag, _), scanned in zip(buckets, outcomes, strict=True):
            if isinstance(scanned, CaplineError):
                found += _found(log_of_key(key), compiled, tag, [(b"", scanned)], now_us)
                continue
            at, flat = unwrap(scanned)
            found += _found(log_of_key(key), compiled, tag, zip(flat[::2], flat[1::2], strict=True), now_us)
            if at != b"0":
                left.append((key, compiled, tag, at))
        buckets = left
    nodes = nodes[1:] if cursor == b"0" else nodes
    return Page(found, (nodes, cursor) if nodes else None)


def _record_of(compiled: RedisRule) -> bytes:
    """The record of its policy's reservations, also of those that it had before it was changed."""
    return f"{compiled.rule.logs[0].log}/{RESERVED}".encode()


def _ids_of(compiled: RedisRule) -> bytes:
    """The log of hits beside the numbers of its policy, which may keep hits now."""
    return compiled.family.logs[0] + _IDS


def erase(session: Session, all_terms: Sequence[RedisRule], subject: Subject) -> Steps[int]:
    """Forget the subject in these logs, in both layouts; where a policy waits for replicas, in theirs too.

    Also in those of channels that any process's policies on these logs had.
    """
    if not all_terms:
        return 0
    noted = Call(slot_of(CHANNELS_TAG), pack(b"HGETALL", channels_key(all_terms[0].rule.logs[0].log)), repeatable=True)
    [outcome] = yield from session.router.run([noted], session.until())
    channels: dict[bytes, list[bytes]] = {}
    for name in unwrap(outcome)[::2]:
        channels.setdefault(name.rpartition(b"/")[0], []).append(name)
    replicas = max([rule.family.replicas for rule in all_terms], default=0)
    calls: list[Call] = []
    kept = [(rule, buckets) for rule in all_terms for buckets in (0, bucket_count(rule.rule.population))]
    logs = dict.fromkeys(
        (log, buckets)
        for rule, buckets in kept
        for log in (*rule.refund_logs, *rule.family.former_logs, *channels.get(rule.family.logs[0], ()))
    )
    records = dict.fromkeys((log, buckets) for rule, buckets in kept for log in (_record_of(rule), _ids_of(rule)))
    for log, buckets in (*logs, *records):
        tag = tag_of(subject, buckets)
        [key] = keys_of([log], tag)
        payload = pack(b"HDEL", key, field_of(subject)) if buckets else pack(b"DEL", key)
        calls.append(Call(slot_of(tag), payload, repeatable=True))
    # Who finds nothing left to remove writes too: a WAIT covers what an earlier, unknown erasure has written.
    for tag in {tag_of(subject, buckets) for _, buckets in logs} if replicas else ():
        mark = b"%b:/erased:{%b}" % (all_terms[0].family.logs[0].partition(b":")[0], tag)
        calls.append(Call(slot_of(tag), pack(b"SET", mark, b"", b"PX", b"1"), repeatable=True))
    outcomes = yield from session.router.run(calls, session.until(), replicas)
    removed = [confirmed(outcome) for outcome in outcomes]
    return sum(removed[: len(logs)])


def sweep(session: Session, all_terms: Sequence[RedisRule]) -> Steps[int]:
    """Remove what is out of every window from the logs of these rules."""
    of_log = {log.decode(): rule for rule in all_terms for log in (*rule.refund_logs, _record_of(rule), _ids_of(rule))}
    yield from session.router.run([Call(0, _TIME, repeatable=True)], session.bulk_until())
    removed = 0
    for node in session.router.topology.primaries():
        cursor = b"0"
        while True:
            scan = pack(b"SCAN", cursor, b"MATCH", b"*:{*", b"COUNT", b"%d" % SCAN_COUNT)
            [[reply]] = yield Exchange([Request(node, scan, 1)], session.bulk_until())
            if isinstance(reply, (ServerError, NoReply)):
                raise StoreError(f"sweeping {node[0]}:{node[1]}: {reply.text}")
            cursor, keys = reply
            outcomes = yield from session.router.run(
                [call for key in keys if (call := _sweep_call(session, of_log, key))], session.bulk_until()
            )
            removed += sum(unwrap(outcome) for outcome in outcomes)
            if cursor == b"0":
                break
    return removed


def _sweep_call(session: Session, of_log: Mapping[str, RedisRule], key: bytes) -> Call | None:
    compiled = of_log.get(log_of_key(key))
    if compiled is None:
        return None
    family = compiled.family
    tag = key.partition(b":{")[2].removesuffix(b"}")
    hashed = b"1" if is_bucket(tag) else b"0"
    payload = pack(b"EVALSHA", SWEEP.sha, b"1", key, hashed, session.now(), b"%d" % family.retention_us)
    return Call(slot_of(tag), payload, SWEEP, repeatable=True)


def try_write(session: Session) -> Steps[None]:
    """Ask one server: it refuses the script whole where it takes no writes; without a key that does nothing."""
    call = Call(0, pack(b"EVALSHA", SWEEP.sha, b"0", b"0", b"", b"0"), SWEEP, repeatable=True)
    [outcome] = yield from session.router.run([call], session.until())
    unwrap(outcome)


def now_us(session: Session) -> Steps[int]:
    """The server's clock, or the caller's."""
    if session.clock is not None:
        return session.clock.now_us()
    [outcome] = yield from session.router.run([Call(0, _TIME, repeatable=True)], session.until())
    return _time_us(unwrap(outcome))


def _found(
    log: str, compiled: RedisRule, tag: bytes, kept: Iterable[tuple[bytes | None, Reply]], now_us: int
) -> Iterator[ScannedLog]:
    """The logs in these values, by field (None: a key of its own); logs without hits are left out."""
    for field, value in kept:
        subject = None
        try:
            if isinstance(value, CaplineError):
                raise value
            subject = subject_of(tag, field)
            stored = _stored(value, compiled)
            hits = _within(stored, now_us, compiled.family.retention_us)
        except StoreDamagedError as error:
            yield ScannedLog(log, subject, error=error)
            continue
        if subject is not None and hits:
            name = log if stored.rows is None else f"{log}/{NUMBERS}"
            yield ScannedLog(name.removesuffix(_IDS.decode()), subject, hits)


def _merged(outcome: Reply, past: Merge) -> Merged | CaplineError:
    if isinstance(outcome, CaplineError):
        return outcome
    counts: list[int] = unwrap(outcome)
    if counts[0] < 0:
        return damaged(past.compiled) if counts[0] != NO_ROOM else too_many(sum(hit[1] for hit in past.hits))
    merged = Merged(*counts)
    return outcome.error if isinstance(outcome, UnderReplicated) and merged.added + merged.known else merged


def _stored(value: bytes | None, compiled: RedisRule) -> ParsedLog:
    try:
        return read_value(value)
    except StoreDamagedError:
        raise damaged(compiled) from None


def _within(log: ParsedLog, now_us: int, retention_us: int) -> list[Hit]:
    horizon_us = max(now_us, log.high_water_us) - retention_us
    return [Hit(*hit) for hit in log.hits if hit[0] > horizon_us]


def _end_reservations(logs: Sequence[ParsedLog], record: ParsedLog, now_us: int) -> None:
    """Set the units of hits whose reservation has ended to 0; the policy's own log is the first."""
    time_us = max(now_us, logs[0].high_water_us)
    over = {stamp_us for stamp_us, holds_us, _ in record.hits if holds_us and stamp_us + holds_us <= time_us}
    for log in logs:
        log.hits[:] = [
            (stamp_us, 0, 0) if stamp_us in over else (stamp_us, units, fingerprint)
            for stamp_us, units, fingerprint in log.hits
        ]


def _time_us(reply: list[bytes]) -> int:
    return int(reply[0]) * 1_000_000 + int(reply[1])
