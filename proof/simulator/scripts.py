"""What a script call does, decided by `capline.window` on plain logs, in the bytes that the scripts take and give.

Known are one.lua, attempt.lua, joint.lua and refund.lua for the sliding log with windows, on one log a subject, with a
record of its reservations or none, and without a receipt; another call is a `NotImplementedError`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from capline.model.errors import IdConflictError
from capline.model.limit import Limit
from capline.model.policy import BoundPolicy, LogLimits
from capline.store.redis.scripting.requests import CHANGES
from capline.store.redis.scripting.scripts import ATTEMPT, JOINT, JOINT_LOOK, LOOK, ONE, ONE_LOOK, REFUND
from capline.window.bound_log import draft_logs
from capline.window.charge import refund, settle
from capline.window.joint import joint
from capline.window.log import NEVER, Draft, Hit, Log
from capline.window.reservation import Pending, commit, end_all, ended, forget, pending_in, reserve, take_along
from capline.window.rule import Slot, attempt, move, peek

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from capline.model.decision import Decision
    from capline.model.limit_status import LimitStatus
    from capline.window.bound_log import BoundLog

__all__ = ["SCRIPTS", "Logs", "held", "run_script"]

SCRIPTS = {script.sha: script for script in (ONE, ONE_LOOK, ATTEMPT, LOOK, JOINT, JOINT_LOOK, REFUND)}

Logs = dict[bytes, dict[bytes, Log]]
"""What a server holds: of each key the log of each field; a key of its own has one without a name."""

_DECIDE, _PEEK, _PLACE, _RESERVE, _MOVE = 0, 1, 2, 4, 5
_RECORD_ALONE = [[0, -2], 0]
"""What attempt.lua is told of a sliding log and its record of reservations, and of refusals."""
_REFUSED, _ALLOWED, _CONFLICT, _KNOWN = 0, 1, 2, 4
_NO_LIMIT, _ELSEWHERE, _NO_STAMP = 255, 255, 1 << 60
_TERMS = struct.Struct(">BHBQQQBQ")
_ASKED = struct.Struct(">Qqq")
_RECORD = struct.Struct(">BBQQQ")


class _Row(NamedTuple):
    """One attempt as a call has it."""

    key: bytes
    field: bytes
    limits: tuple[Limit, ...]
    retention_us: int
    cost: int = 1
    fingerprint: int = 0
    record: bytes = b""
    """The key of its record of reservations."""


def held(log: Log, record: Log, now_us: int) -> list[tuple[int, int]]:
    """The stamp and the units of each hit, as they count now."""
    over = {entry.stamp_us for entry in ended(_pending(record), max(now_us, log.high_water_us))}
    return [(hit.stamp_us, 0 if hit.stamp_us in over else hit.units) for hit in log.hits]


def run_script(sha: bytes, keys: Sequence[bytes], args: Sequence[bytes], logs: Logs, now_us: int) -> Any:
    """The call's reply; `logs` are changed in place."""
    if sha in (ONE.sha, ONE_LOOK.sha):
        return _one(keys, args, logs, now_us)
    if sha in (ATTEMPT.sha, LOOK.sha):
        return _attempts(keys, args, logs, now_us)
    if sha in (JOINT.sha, JOINT_LOOK.sha):
        return _joint(keys, args, logs, now_us)
    if sha == REFUND.sha:
        return _of_hit(keys, args, logs, now_us)
    raise NotImplementedError(f"script {sha!r} is not simulated")


def _now(asked: bytes, now_us: int) -> int:
    return int(asked) if asked else now_us


def _one(keys: Sequence[bytes], args: Sequence[bytes], logs: Logs, now_us: int) -> bytes:
    static, asked, field, now = (*args, b"", b"", b"")[:4]
    limits, retention_us, full = _terms(static)
    if len(keys) > 2 or (full and full[5:] not in ([], _RECORD_ALONE)):
        raise NotImplementedError("several logs a subject and other algorithms are not simulated")
    kind, time_us, not_before_us = _ASKED.unpack_from(asked) if asked else (1, -1, 0)
    mode, cost = kind >> 56, kind & ((1 << 56) - 1)
    key, record = (*keys, b"")[:2]
    row = _Row(key, field, limits, retention_us, cost, int.from_bytes(asked[24:]), record)
    if mode not in (_DECIDE, _PEEK, _PLACE, _RESERVE, _MOVE):
        raise NotImplementedError("charges are not simulated")
    slot = Slot(None if time_us < 0 else time_us, not_before_us) if mode == _PLACE else None
    return _rows([row], mode, slot, logs, _now(now, now_us), time_us=time_us, tell=True)


def _terms(static: bytes) -> tuple[tuple[Limit, ...], int, list[Any]]:
    """The limits, the retention and the terms in full in the terms that one.lua takes."""
    _, many, text, retention_us, *_ = _TERMS.unpack_from(static)
    numbers = struct.unpack_from(f">{2 * many}Q", static, _TERMS.size)
    full = static[_TERMS.size + 16 * many + text :]
    return _limits(numbers), retention_us, msgspec.msgpack.decode(full) if full else []


def _limits(flat: Sequence[int]) -> tuple[Limit, ...]:
    if any(type(number) is not int for number in flat):
        raise NotImplementedError("limits other than windows are not simulated")
    return tuple([Limit(quota, window_us) for quota, window_us in zip(flat[::2], flat[1::2], strict=True)])


def _attempts(keys: Sequence[bytes], args: Sequence[bytes], logs: Logs, now_us: int) -> bytes:
    packed, now, counts, codes, marks, asked, receipt, *fields = args
    mode, hashed, retention_us, _, width, _, cost, terms, tell, _ = msgspec.msgpack.decode(packed)
    if width > 2 or receipt or any(one[5:] not in ([], _RECORD_ALONE) for one in terms):
        raise NotImplementedError("several logs a subject, receipts and other algorithms are not simulated")
    groups = [(*keys[at : at + width], b"")[:2] for at in range(0, len(keys), width)]
    sizes = struct.unpack(f">{len(counts) // 2}H", counts) or (1,) * len(groups)
    rows: list[_Row] = []
    for key, record in [group for group, size in zip(groups, sizes, strict=True) for _ in range(size)]:
        i = len(rows)
        code = int.from_bytes(codes[2 * i : 2 * i + 2])
        field = (marks[i : i + 1] if marks else fields[i]) if hashed else b""
        own = asked[15 * i : 15 * i + 15]
        units, fingerprint = (int.from_bytes(own[:7]), int.from_bytes(own[7:])) if own else (cost, 0)
        rows.append(_Row(key, field, _limits(terms[code][0][0]), retention_us, units, fingerprint, record))
    return _rows(rows, mode, None, logs, _now(now, now_us), tell=bool(tell))


def _stored(key: bytes, row: _Row, logs: Logs) -> Log:
    return logs.get(key, {}).get(row.field, Log())


def _pending(record: Log) -> list[Pending]:
    return pending_in((hit.stamp_us, hit.units, hit.fingerprint) for hit in record.hits)


def _open(row: _Row, logs: Logs, now_us: int) -> tuple[list[BoundLog], list[Pending]]:
    looked = LogLimits("", row.limits, row.retention_us)
    _, sites = draft_logs([_stored(row.key, row, logs)], BoundPolicy("", (looked,)), row.cost, now_us)

    def copied(draft: Any) -> Any:
        return Draft(draft.log)

    return sites, end_all(sites, _pending(_stored(row.record, row, logs)), now_us, copied)


def _keep(row: _Row, sites: list[BoundLog], pending: list[Pending], logs: Logs) -> None:
    draft: Any = sites[0].log
    if sites[0].changed:
        logs.setdefault(row.key, {})[row.field] = draft.log
        _keep_record(row, pending, logs)


def _keep_record(row: _Row, pending: list[Pending], logs: Logs) -> None:
    if pending:
        logs.setdefault(row.record, {})[row.field] = Log(tuple([Hit(*entry) for entry in pending]))
    elif row.record in logs:
        logs[row.record].pop(row.field, None)
        if not logs[row.record]:
            del logs[row.record]


def _rows(
    rows: Sequence[_Row], mode: int, slot: Slot | None, logs: Logs, now_us: int, *, time_us: int = 0, tell: bool
) -> bytes:
    """Each row's two bytes, then the records of those that need one, then the states of the limits."""
    short, records, states = b"", b"", b""
    for row in rows:
        sites, pending = _open(row, logs, now_us)
        try:
            if mode == _PEEK:
                answer = peek(sites, now_us, row.fingerprint)
            elif mode == _RESERVE:
                answer = reserve(sites, pending, now_us, time_us, row.fingerprint)
            elif mode == _MOVE:
                answer = move(sites, time_us, now_us, row.fingerprint)
            else:
                answer = attempt(sites, now_us, row.fingerprint, slot)
        except IdConflictError:
            short += bytes((_ELSEWHERE, _CONFLICT))
            records += _RECORD.pack(_CONFLICT, _NO_LIMIT, _units_of(sites, row, now_us), 0, 0)
            continue
        _keep(row, sites, pending, logs)
        states += _states(answer.limits) if tell else b""
        stamp_us = _NO_STAMP if answer.allowed and answer.hit is None else answer.hit
        limit, plain_us = _number(answer, row.limits), _NO_STAMP if mode == _PEEK else now_us
        widest_us = max(one.window_us for one in row.limits)
        if stamp_us == plain_us and answer.remaining < _ELSEWHERE and answer.reset_after_us == widest_us:
            short += bytes((limit, answer.remaining))
            continue
        kind = _ALLOWED if answer.allowed else _REFUSED
        retry = 0 if answer.retry_after_us is None else answer.retry_after_us + 1
        short += bytes((_ELSEWHERE, kind))
        first = retry if stamp_us is None else stamp_us
        records += _RECORD.pack(kind, limit, answer.remaining, first, answer.reset_after_us or 0)
    return now_us.to_bytes(8) + short + records + states


def _found(sites: list[BoundLog], row: _Row, now_us: int) -> int:
    """The stamp that the row's id was recorded with."""
    log = sites[0].log
    return log.find(row.fingerprint, max(now_us, log.high_water_us) - row.retention_us)


def _units_of(sites: list[BoundLog], row: _Row, now_us: int) -> int:
    """The units that the row's id was recorded with."""
    return sites[0].log.units_at(_found(sites, row, now_us))


def _number(answer: Decision, limits: Sequence[Limit]) -> int:
    return _NO_LIMIT if answer.limit is None else limits.index(answer.limit)


def _states(told: Sequence[LimitStatus]) -> bytes:
    return b"".join(
        [struct.pack(">qQQ", one.remaining - one.past, one.frees_in_us or 0, one.whole_in_us) for one in told]
    )


def _parts(keys: Sequence[bytes], args: Sequence[bytes]) -> Iterator[_Row]:
    if len(args) not in (len(keys), 2 * len(keys)):
        raise NotImplementedError("several logs a subject are not simulated")
    for key, static, asked in zip(keys, args, args[len(keys) :] or [b""] * len(keys), strict=False):
        cost = int.from_bytes(asked[:7]) if asked else 1
        yield _Row(key, asked[15:], *_terms(static)[:2], cost, int.from_bytes(asked[7:15]))


def _joint(keys: Sequence[bytes], args: Sequence[bytes], logs: Logs, now_us: int) -> bytes:
    if args[0][:1] == bytes((_PLACE,)):
        raise NotImplementedError("slots of several subjects are not simulated")
    peeked, now_us = args[0][:1] == bytes((_PEEK,)), _now(args[1], now_us)
    rows = [*_parts(keys, args[2:])]
    opened = [_open(row, logs, now_us) for row in rows]
    known = [
        bool(row.fingerprint) and _found(sites, row, now_us) != NEVER
        for row, (sites, _) in zip(rows, opened, strict=True)
    ]
    for part, (row, (sites, _)) in enumerate(zip(rows, opened, strict=True)):
        if known[part] and (units := _units_of(sites, row, now_us)) != row.cost:
            return struct.pack(">QBBBQQQ", now_us, _CONFLICT, part, _NO_LIMIT, units, 0, 0)
    parts = [sites for sites, _ in opened]
    answer, hits = joint(parts, now_us, [row.fingerprint for row in rows], record=not peeked)
    for row, (sites, pending) in zip(rows, opened, strict=True):
        _keep(row, sites, pending, logs)
    kind = _KNOWN if all(known) else _ALLOWED if answer.allowed else _REFUSED
    part = next((i for i, sites in enumerate(parts) if any(site.binds for site in sites)), 0)
    retry = 0 if answer.allowed or answer.retry_after_us is None else answer.retry_after_us + 1
    limit = _number(answer, rows[part].limits)
    reply = struct.pack(">QBBBQQQ", now_us, kind, part, limit, answer.remaining, retry, answer.reset_after_us or 0)
    for was_known, hit in zip(known, hits or [0] * len(rows), strict=True):
        reply += struct.pack(">BQ", was_known, hit)
    every: Any = answer.limits  # of each part, its limits' states
    return reply + b"".join([_states(told) for told in every])


def _of_hit(keys: Sequence[bytes], args: Sequence[bytes], logs: Logs, now_us: int) -> int:
    """Refund a hit, settle it or commit it."""
    stamp, field, now, retention, _, _, cost, keeps, verb, marks, *_ = args
    if len(keys) != 1 + bool(marks) or keeps:
        raise NotImplementedError("several logs a subject and other algorithms are not simulated")
    row = _Row(keys[0], field, (), int(retention), int(cost), record=b"".join(keys[1:]))
    stamp_us, at_us = int(stamp), _now(now, now_us)
    sites, pending = _open(row, logs, at_us)
    if verb == CHANGES["commit"]:
        pending = _pending(_stored(row.record, row, logs))
        done = commit(sites[0], pending, stamp_us, at_us)
        _keep_record(row, pending, logs)
        return int(done)
    done = settle(sites, stamp_us, at_us) if verb else refund(sites, stamp_us, row.cost, at_us)
    take_along(sites)
    if sites[0].changed:
        forget(sites, pending, stamp_us)
    _keep(row, sites, pending, logs)
    return int(done)
