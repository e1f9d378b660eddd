"""From attempts to calls: which rows share a script call, in which order, and the call's arguments. No I/O.

Rows are grouped by their key, and groups by the key's slot on a cluster. Groups fill a call up to a bound that keeps
one script far below 5 ms. Rows of one subject stay in order: within a call, and because calls of one slot are sent to
one server on one connection.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from capline.store.redis.io.wire import bulk, pack
from capline.store.redis.scripting.compiled_rule import Family, RedisRule
from capline.store.redis.scripting.keys import BUCKET, field_of, slot_of, tag_of
from capline.store.redis.scripting.scripts import ATTEMPT, JOINT, JOINT_LOOK, LOOK, ONE, Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capline.model.subject import Subject
    from capline.store.protocol import StoreAttempt

__all__ = [
    "CHARGE",
    "DECIDE",
    "PEEK",
    "PLACE",
    "Head",
    "Part",
    "batch_parts",
    "joint_call",
    "joint_groups",
    "keys_of",
    "one_payload",
    "row_parts",
    "single_call",
]

DECIDE, PEEK, PLACE, CHARGE = 0, 1, 2, 3

PLAIN_ROWS = 256
"""Rows of one unit without an id in one call: 0.4 ms; 5 ms were each log of them in the general form."""
OTHER_ROWS = 64
"""Rows in one call that need the general rule, some 20 us each."""
PART_ROWS = 65_536
"""Rows in one part of a batch: while the servers decide one part, the next is built."""
ORDERED_ROWS = 262_144
"""Rows that are sorted at once. All are answered before the next are sent, so a subject's rows stay in order."""

_EMPTY, _1 = bulk(b""), bulk(b"1")
_JOINT, _JOINT_LOOK = (b"$7\r\nEVALSHA\r\n" + bulk(script.sha) for script in (JOINT, JOINT_LOOK))
_ONE_COMMAND = b"$7\r\nEVALSHA\r\n" + bulk(ONE.sha) + bulk(b"1")
_SLOT = struct.Struct(">qq")
_DECIDE_ONE, _PLACE_ONE = b"*7\r\n" + _ONE_COMMAND, b"*8\r\n" + _ONE_COMMAND


class Part(msgspec.Struct):
    """Calls that are sent together: their rows, one call after the other, and how many rows each has."""

    calls: list[Call]
    sizes: list[int]
    rows: NDArray[np.intp]
    last: bool = True
    """Whether to wait for all answers before more is sent: the next part may have the same subjects."""


class Group(msgspec.Struct):
    """Rows that share their keys."""

    slot: int
    tag: bytes
    rows: list[int] | NDArray[np.intp]
    fields: Sequence[bytes] | bytes


class Head(msgspec.Struct, frozen=True):
    """The arguments that all rows of a call share."""

    family: Family
    mode: int
    compiled: Sequence[RedisRule]
    now: bytes
    cost: int = 1
    max_wait_us: int = -1
    not_before_us: int = 0
    tell: bool = True
    """Whether the reply has the state of each limit."""

    def packed(self) -> bytes:
        """As attempt.lua takes it."""
        family = self.family
        logs = len(family.logs)
        head = [
            self.mode,
            int(family.buckets > 0),
            family.retention_us,
            family.grace_ms,
            logs,
            family.wide,
            self.cost,
        ]
        return msgspec.msgpack.encode(
            [*head, self.max_wait_us, [one.row(self.now) for one in self.compiled], self.not_before_us, int(self.tell)]
        )

    def only(self, codes: NDArray[np.uint16]) -> tuple[Head, NDArray[np.intp]]:
        """The head of a call of rows with these codes, and the codes in it.

        With hundreds of zones the terms hold many tables; a call carries only those of its own rows.
        """
        if not any(one.rule.zone for one in self.compiled):
            return self, codes.astype(np.intp)
        used, own = np.unique(codes, return_inverse=True)
        return msgspec.structs.replace(self, compiled=[self.compiled[code] for code in used.tolist()]), own

    def most_rows(self) -> int:
        """How many rows a call may have."""
        plain = self.mode == DECIDE and self.cost == 1 and all(one.short and not one.long for one in self.compiled)
        return PLAIN_ROWS if plain else OTHER_ROWS


def keys_of(logs: Sequence[bytes], tag: bytes) -> list[bytes]:
    """The key of each of these logs."""
    return [b"%b:{%b}" % (log, tag) for log in logs]


def one_payload(
    compiled: RedisRule, subject: Subject, now: bytes, slot: tuple[int, int] | None = None
) -> tuple[int, bytes]:
    """The fast path: the cluster slot and the packed command of a decision of one unit, or of a `slot`."""
    family = compiled.family
    tag = tag_of(subject, family.buckets)
    key = b"%b:{%b}" % (family.logs[0], tag)
    field = bulk(field_of(subject)) if family.buckets else _EMPTY
    head, asked = (_DECIDE_ONE, b"") if slot is None else (_PLACE_ONE, bulk(_SLOT.pack(*slot)))
    return slot_of(tag), b"%b$%d\r\n%b\r\n%b%b%b%b" % (head, len(key), key, compiled.one, field, bulk(now), asked)


def single_call(head: Head, subject: Subject, fingerprint: int) -> Call:
    """One attempt of any kind."""
    buckets = head.family.buckets
    tag = tag_of(subject, buckets)
    asked = head.cost.to_bytes(7) + fingerprint.to_bytes(8) if fingerprint else b""
    group = Group(slot_of(tag), tag, [0], [field_of(subject)] if buckets else ())
    return _call(head, [group], b"", asked, repeatable=bool(fingerprint) or head.mode == PEEK)


def joint_groups(attempts: Sequence[StoreAttempt], *, by_slot: bool) -> list[list[int]]:
    """The numbers of the attempts that one call can decide together: all, or those of each slot."""
    if not by_slot:
        return [[*range(len(attempts))]]
    groups: dict[int, list[int]] = {}
    for number, attempt in enumerate(attempts):
        slot = slot_of(tag_of(attempt.subject, attempt.compiled.family.buckets))
        groups.setdefault(slot, []).append(number)
    return [*groups.values()]


def joint_call(attempts: Sequence[StoreAttempt], mode: int, now: bytes, slot_us: tuple[int, int] | None = None) -> Call:
    """One attempt over several subjects, or with `slot_us` one slot; on a cluster their keys are in one slot."""
    parts: list[bytes] = []
    keys: list[bytes] = []
    slot, named = -1, True
    for attempt in attempts:
        compiled: RedisRule = attempt.compiled
        family = compiled.family
        tag = tag_of(attempt.subject, family.buckets)
        if slot < 0:
            slot = slot_of(tag)
        for log in family.logs:
            key = b"%b:{%b}" % (log, tag)
            keys.append(b"$%d\r\n%b\r\n" % (len(key), key))
        cost = _1 if attempt.cost == 1 else bulk(b"%d" % attempt.cost)
        field = bulk(field_of(attempt.subject)) if family.buckets else _EMPTY
        mark = bulk(attempt.fingerprint.to_bytes(8)) if attempt.fingerprint else _EMPTY
        named = named and attempt.fingerprint > 0
        parts += compiled.one, compiled.rest(now), cost, field, mark
    if slot_us is not None:
        parts.append(bulk(_SLOT.pack(*slot_us)))
    script, head = (JOINT_LOOK, _JOINT_LOOK) if mode == PEEK else (JOINT, _JOINT)
    count, arguments = bulk(b"%d" % len(keys)), 5 + len(keys) + len(parts)
    payload = b"".join((b"*%d\r\n" % arguments, head, count, *keys, bulk(b"%d" % mode), bulk(now), *parts))
    return Call(slot, payload, script, mode == PEEK or named)


def _call(
    head: Head,
    groups: Sequence[Group],
    codes: bytes,
    asked: bytes,
    *,
    repeatable: bool,
    receipt: tuple[bytes, bytes] | None = None,
) -> Call:
    script = LOOK if head.mode == PEEK else ATTEMPT
    keys = [key for group in groups for key in keys_of(head.family.logs, group.tag)]
    digest = b""
    if receipt is not None:
        name, digest = receipt
        keys.append(b"%b/receipt:{%b}%b" % (head.family.logs[0], groups[0].tag, name))
    sizes = [len(group.rows) for group in groups]
    counts = b"" if set(sizes) == {1} else np.array(sizes, ">u2").tobytes()
    fields: list[bytes] = []
    marks = b""
    if head.family.buckets:
        if type(groups[0].fields) is bytes:
            marks = b"".join([group.fields for group in groups])  # pyright: ignore[reportArgumentType] - bytes, all or none
        else:
            fields = [field for group in groups for field in group.fields]  # pyright: ignore[reportAssignmentType]
    payload = pack(
        b"EVALSHA",
        script.sha,
        b"%d" % len(keys),
        *keys,
        head.packed(),
        head.now,
        counts,
        codes,
        marks,
        asked,
        digest,
        *fields,
    )
    return Call(groups[0].slot, payload, script, repeatable)


def batch_parts(
    head: Head,
    subjects: Sequence[Subject] | NDArray[np.integer[Any]],
    codes: NDArray[np.uint16] | None,
    *,
    by_slot: bool,
    receipt: tuple[str, bytes] | None = None,
) -> Iterator[Part]:
    """A batch of one policy, part by part. Integers in buckets are sorted by NumPy, which is fast."""
    number = 0
    for groups, last in _grouped(head, subjects, by_slot=by_slot):
        calls: list[Call] = []
        sizes: list[int] = []
        rows: list[NDArray[np.intp]] = []
        for fill in _fills(groups, head.most_rows(), by_slot=by_slot):
            own = np.concatenate([np.asarray(group.rows, np.intp) for group in fill])
            named = None
            if receipt is not None:
                name = hashlib.blake2b(f"{receipt[0]}\0{number}".encode(), digest_size=12).hexdigest().encode()
                named = (name, receipt[1])
            number += 1
            own_head, own_codes = head, b""
            if codes is not None:
                own_head, numbers = head.only(codes[own])
                own_codes = numbers.astype(">u2").tobytes()
            repeatable = receipt is not None or head.mode == PEEK
            calls.append(_call(own_head, fill, own_codes, b"", repeatable=repeatable, receipt=named))
            sizes.append(len(own))
            rows.append(own)
        yield Part(calls, sizes, np.concatenate(rows), last)


def _fills(groups: Iterator[Group] | Sequence[Group], most: int, *, by_slot: bool) -> Iterator[list[Group]]:
    """Groups for one call each: on a cluster of one slot, of one kind of field, at most so many rows."""
    fill: list[Group] = []
    rows = 0
    for group in groups:
        if fill and (
            rows + len(group.rows) > most
            or (by_slot and group.slot != fill[0].slot)
            or type(group.fields) is not type(fill[0].fields)
        ):
            yield fill
            fill, rows = [], 0
        fill.append(group)
        rows += len(group.rows)
    if fill:
        yield fill


def _grouped(
    head: Head, subjects: Sequence[Subject] | NDArray[np.integer[Any]], *, by_slot: bool
) -> Iterator[tuple[list[Group], bool]]:
    """The groups of each part, those of one slot together; and whether to wait for all answers after it."""
    buckets = head.family.buckets
    if buckets and not isinstance(subjects, np.ndarray) and set(map(type, subjects)) == {int}:
        subjects = np.fromiter(subjects, np.uint64, len(subjects))  # pyright: ignore[reportArgumentType, reportCallIssue] - integers
    if buckets and isinstance(subjects, np.ndarray):
        groups = _id_groups(subjects.astype(np.uint64, copy=False), by_slot=by_slot)
        yield from ((part, False) for part in _parts(groups))
        return
    for first in range(0, len(subjects), ORDERED_ROWS):
        lot = subjects[first : first + ORDERED_ROWS]
        listed: Sequence[Subject] = lot.tolist() if isinstance(lot, np.ndarray) else lot
        groups = [*_groups(listed, buckets, first, head.most_rows())]
        groups.sort(key=lambda group: (_scattered(group.slot) if by_slot else 0, group.tag))
        *parts, rest = _parts(groups)
        yield from ((part, False) for part in parts)
        yield rest, True


def _parts(groups: Iterable[Group]) -> Iterator[list[Group]]:
    """The groups of each part; those of one key stay in one part, so that a resend keeps their order."""
    part: list[Group] = []
    rows = 0
    for group in groups:
        if rows >= PART_ROWS and group.tag != part[-1].tag:
            yield part
            part, rows = [], 0
        part.append(group)
        rows += len(group.rows)
    if part:
        yield part


def _groups(subjects: Sequence[Subject], buckets: int, first: int, most: int) -> Iterator[Group]:
    """Groups of any subjects, rows counted from `first`; those of one subject in their order."""
    return _bucket_groups(subjects, buckets, first, most) if buckets else _own_groups(subjects, first, most)


def _own_groups(subjects: Sequence[Subject], first: int, most: int) -> Iterator[Group]:
    """A subject's rows are a group."""
    together: dict[Subject, list[int]] = {}
    for row, subject in enumerate(subjects, first):
        rows = together.get(subject)
        if rows is not None and len(rows) < most:
            rows.append(row)
            continue
        if rows is not None:
            yield _own_group(subject, rows)
        together[subject] = [row]
    for subject, rows in together.items():
        yield _own_group(subject, rows)


def _own_group(subject: Subject, rows: list[int]) -> Group:
    tag = tag_of(subject, 0)
    return Group(slot_of(tag), tag, rows, ())


def _bucket_groups(subjects: Sequence[Subject], buckets: int, first: int, most: int) -> Iterator[Group]:
    """A bucket's rows are a group; a subject's next row goes to a later group."""
    seen: dict[Subject, int] = {}
    filling: list[dict[bytes, tuple[list[int], list[bytes]]]] = []
    turns: list[list[Group]] = []
    for row, subject in enumerate(subjects, first):
        turn = seen.get(subject, 0)
        seen[subject] = turn + 1
        if turn == len(turns):
            filling.append({})
            turns.append([])
        tag = tag_of(subject, buckets)
        filled = filling[turn].get(tag)
        if filled is None or len(filled[0]) >= most:
            filled = filling[turn][tag] = ([], [])
            turns[turn].append(Group(slot_of(tag), tag, *filled))
        filled[0].append(row)
        filled[1].append(field_of(subject))
    for groups in turns:
        yield from groups


def _scattered(slot: int) -> int:
    """A slot's place in the order of sending: neighbours belong to different servers, so all servers work at once."""
    return slot * 5461 % 16381 * 16384 + slot


def _id_groups(ids: NDArray[np.uint64], *, by_slot: bool) -> Iterator[Group]:
    """Groups of integers in buckets, by NumPy: 0.3 us a row."""
    if not len(ids):
        return
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    bucket = ordered // BUCKET
    again = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    turn = None
    if len(again):
        turn = np.zeros(len(ids), np.int64)
        same = np.zeros(len(ids), np.bool_)
        same[again] = True
        # How many equal ids come before each: its index, less the index of the first equal one.
        places = np.arange(len(ids))
        turn = places - np.maximum.accumulate(np.where(same, 0, places))
        behind = np.lexsort((places, turn, bucket))
        order, ordered, bucket, turn = order[behind], ordered[behind], bucket[behind], turn[behind]
    new = bucket[1:] != bucket[:-1]
    if turn is not None:
        new |= turn[1:] != turn[:-1]
    starts = np.concatenate(([0], np.flatnonzero(new) + 1))
    ends = np.append(starts[1:], len(ids))
    fields = (ordered % BUCKET).astype(np.uint8).tobytes()
    tags = [b"#%d" % number for number in bucket[starts].tolist()]
    places = [*range(len(tags))]
    slots = [slot_of(tag) for tag in tags] if by_slot else [0] * len(tags)
    if by_slot:
        places.sort(key=[_scattered(slot) for slot in slots].__getitem__)
    spans = [*zip(starts.tolist(), ends.tolist(), strict=True)]
    for i in places:
        start, end = spans[i]
        yield Group(slots[i], tags[i], order[start:end], fields[start:end])


def row_parts(attempts: Sequence[StoreAttempt], now: bytes, *, by_slot: bool) -> Iterator[tuple[Head, Part]]:
    """Attempts of any policies, costs and ids: calls by family, and a subject's attempts in their order."""
    for rows in _turns(attempts):
        own_attempts = [attempts[row] for row in rows]
        family: Family = own_attempts[0].compiled.family
        compiled = [*{id(attempt.compiled): attempt.compiled for attempt in own_attempts}.values()]
        code_of = {id(one): code for code, one in enumerate(compiled)}
        plain = not any(attempt.fingerprint or attempt.cost != 1 for attempt in own_attempts)
        repeatable = not plain and all(attempt.fingerprint for attempt in own_attempts)
        head = Head(family, DECIDE, compiled, now, 1 if plain else 0)
        part = Part([], [], np.empty(0, np.intp))
        taken: list[int] = []
        groups = [*_groups([attempt.subject for attempt in own_attempts], family.buckets, 0, head.most_rows())]
        groups.sort(key=(lambda group: (group.slot, group.tag)) if by_slot else (lambda group: group.tag))
        for fill in _fills(groups, head.most_rows(), by_slot=by_slot):
            own = [i for group in fill for i in group.rows]
            own_head, codes, asked = head, b"", b""
            if len(compiled) > 1:
                own_head, numbers = head.only(np.array([code_of[id(own_attempts[i].compiled)] for i in own], np.uint16))
                codes = numbers.astype(">u2").tobytes()
            if not plain:
                asked = b"".join(
                    [own_attempts[i].cost.to_bytes(7) + own_attempts[i].fingerprint.to_bytes(8) for i in own]
                )
            part.calls.append(_call(own_head, fill, codes, asked, repeatable=repeatable))
            part.sizes.append(len(own))
            taken += [rows[i] for i in own]
        part.rows = np.array(taken, np.intp)
        yield head, part


def _turns(attempts: Sequence[StoreAttempt]) -> Iterable[Sequence[int]]:
    """The rows of each family, in the order of sending: a subject's attempt of another family goes in a later turn."""
    first: Family = attempts[0].compiled.family
    if all(attempt.compiled.family is first for attempt in attempts):
        return [range(len(attempts))]
    turns: dict[tuple[int, int], list[int]] = {}
    latest: dict[Subject, tuple[Family, int]] = {}
    for row, attempt in enumerate(attempts):
        family: Family = attempt.compiled.family
        before = latest.get(attempt.subject)
        turn = 0 if before is None else before[1] + (before[0] is not family)
        latest[attempt.subject] = (family, turn)
        turns.setdefault((turn, id(family)), []).append(row)
    return [rows for _, rows in sorted(turns.items(), key=lambda item: item[0][0])]
