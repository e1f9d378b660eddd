"""From attempts to script calls and their arguments. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, get_args

import msgspec
import numpy as np

from capline.store.protocol import Kind
from capline.store.redis.io.wire import bulk, pack
from capline.store.redis.scripting.compiled_rule import Family, RedisRule
from capline.store.redis.scripting.groups import Group
from capline.store.redis.scripting.keys import field_of, slot_of, tag_of
from capline.store.redis.scripting.scripts import ATTEMPT, JOINT, JOINT_LOOK, LOOK, ONE, ONE_LOOK, REFUND, Call

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.model.subject import Subject
    from capline.store.protocol import Operation

CHANGES: dict[str, bytes] = {"refund": b"", "settle": b"1", "commit": b"2"}
"""The kinds of operation that change a hit, as refund.lua takes them."""
MODES: dict[str, int] = {kind: mode for mode, kind in enumerate(get_args(Kind)) if kind not in CHANGES}
"""The other kinds, as one.lua takes them; attempt.lua takes the first two."""
DECIDE, PEEK = MODES["decide"], MODES["peek"]
KEPT = -1
"""No mode of the script's: only read the answers that are kept under a receipt, and move the calls that have none."""

PLAIN_ROWS = 256
"""Rows of one unit without an id in one call: 0.4 ms, or 5 ms if every log is in the general form."""
OTHER_ROWS = 64
"""Rows in one call that need the general rule, some 20 us each."""

_EMPTY = bulk(b"")
_JOINT, _JOINT_LOOK, _ONE, _ONE_LOOK = (
    b"$7\r\nEVALSHA\r\n" + bulk(script.sha) for script in (JOINT, JOINT_LOOK, ONE, ONE_LOOK)
)
_ASKED, _JOINT_HEAD = struct.Struct(">Qqq"), struct.Struct(">Bqq")


class Head(msgspec.Struct, frozen=True):
    """The arguments that all rows of a call share."""

    family: Family
    mode: int
    compiled: Sequence[RedisRule]
    now: bytes
    cost: int = 1
    tell: bool = True
    """Whether the reply has the state of each limit."""
    rows: Mapping[Family, int] | None = None
    """How many rows a call has, where that is not as it would be now."""

    def packed(self) -> bytes:
        """As attempt.lua takes it."""
        family = self.family
        return msgspec.msgpack.encode(
            [
                self.mode,
                int(family.buckets > 0),
                family.retention_us,
                family.grace_ms,
                len(family.logs),
                family.stamp_bytes,
                self.cost,
                [rule.row(self.now) for rule in self.compiled],
                int(self.tell),
                int(self.compiled[0].next_forms),
            ]
        )

    def only(self, codes: NDArray[np.uint16]) -> tuple[Head, NDArray[np.intp]]:
        """The head of a call of rows with these codes, and the codes in it.

        With hundreds of zones, or of numbers that must stay free, a call carries only the terms of its own rows.
        """
        if not any(rule.rule.zone or rule.judged for rule in self.compiled):
            return self, codes.astype(np.intp)
        used, places = np.unique(codes, return_inverse=True)
        return msgspec.structs.replace(self, compiled=[self.compiled[code] for code in used.tolist()]), places

    def most_rows(self) -> int:
        """How many rows a call may have."""
        if self.rows is not None:
            return self.rows[self.family]
        plain = self.mode == DECIDE and self.cost == 1 and all(rule.short and not rule.long for rule in self.compiled)
        return PLAIN_ROWS if plain else OTHER_ROWS


def keys_of(logs: Sequence[bytes], tag: bytes) -> list[bytes]:
    """The key of each of these logs."""
    return [b"%b:{%b}" % (log, tag) for log in logs]


def one_payload(
    compiled: RedisRule,
    subject: Subject,
    now: bytes,
    kind: str = "decide",
    cost: int = 1,
    fingerprint: int = 0,
    times_us: tuple[int, int] = (-1, 0),
) -> tuple[int, bytes]:
    """The cluster slot and the packed command of one attempt of any kind; `times_us` as one.lua takes them."""
    family = compiled.family
    tag = tag_of(subject, family.buckets)
    size = len(tag) + len(b":{}")
    keys = b"".join([b"$%d\r\n%b:{%b}\r\n" % (len(log) + size, log, tag) for log in family.logs])
    command, parts, asked = _ONE, 5 + len(family.logs), _EMPTY
    if kind != "decide" or cost != 1 or fingerprint:
        if kind == "peek":
            command = _ONE_LOOK
        elif kind in ("schedule", "charge"):
            compiled.head[4] = 1  # these can make any log long: batches read no whole values from now on
        asked = _ASKED.pack(MODES[kind] << 56 | cost, *times_us)
        asked = bulk(asked + fingerprint.to_bytes(8) if fingerprint else asked)
    elif not (now or family.buckets):
        parts, asked = parts - 1, b""
    if now or family.buckets:
        parts, asked = parts + 2, asked + bulk(field_of(subject) if family.buckets else b"") + bulk(now)
    return slot_of(tag), b"*%d\r\n%b%b%b%b%b" % (
        parts,
        command,
        bulk(b"%d" % len(family.logs)),
        keys,
        compiled.one_terms(now),
        asked,
    )


def slot_of_kind(operation: Operation) -> tuple[int, int] | None:
    """The most (-1: no bound) and the least us that a slot may be from now; None for other kinds."""
    if operation.kind != "schedule":
        return None
    return -1 if operation.max_wait_us is None else operation.max_wait_us, operation.not_before_us


def joint_groups(operations: Sequence[Operation], *, by_slot: bool) -> list[list[int]]:
    """The numbers of the operations that one call can decide together: all, or those of each slot."""
    if not by_slot:
        return [[*range(len(operations))]]
    groups: dict[int, list[int]] = {}
    for number, operation in enumerate(operations):
        slot = slot_of(tag_of(operation.subject, operation.compiled.family.buckets))
        groups.setdefault(slot, []).append(number)
    return [*groups.values()]


def joint_call(operations: Sequence[Operation], now: bytes) -> Call:
    """One attempt over several subjects, or one slot; on a cluster their keys are in one slot."""
    keys: list[bytes] = []
    terms: list[bytes] = []
    asked: list[bytes] = []
    slot, kind = -1, operations[0].kind
    plain = named = True
    for operation in operations:
        compiled: RedisRule = operation.compiled
        family, cost, fingerprint = compiled.family, operation.cost, operation.fingerprint
        tag = tag_of(operation.subject, family.buckets)
        if slot < 0:
            slot = slot_of(tag)
        keys += [b"$%d\r\n%b:{%b}\r\n" % (len(log) + len(tag) + len(b":{}"), log, tag) for log in family.logs]
        terms.append(compiled.joint_terms(now))
        named = named and fingerprint > 0
        plain = plain and cost == 1 and not (fingerprint or family.buckets)
    head = _EMPTY
    if kind != "decide" or not plain:
        head = bulk(_JOINT_HEAD.pack(MODES[kind], *(slot_of_kind(operations[0]) or (-1, 0))))
        asked = [
            bulk(
                operation.cost.to_bytes(7)
                + operation.fingerprint.to_bytes(8)
                + (field_of(operation.subject) if operation.compiled.family.buckets else b"")
            )
            for operation in operations
        ]
    script, command = (JOINT_LOOK, _JOINT_LOOK) if kind == "peek" else (JOINT, _JOINT)
    count, arguments = bulk(b"%d" % len(keys)), 5 + len(keys) + len(terms) + len(asked)
    payload = b"".join((b"*%d\r\n" % arguments, command, count, *keys, head, bulk(now), *terms, *asked))
    return Call(slot, payload, script, kind == "peek" or named)


def hit_call(operation: Operation, now: bytes) -> Call:
    """Refund one hit, settle it at this cost, or commit it. Commits, and settlements above 0, may be sent again."""
    compiled: RedisRule = operation.compiled
    family = compiled.family
    tag = tag_of(operation.subject, family.buckets)
    # Channels that the policy had are of no algorithm but sliding_log.
    logs = compiled.refund_logs[: len(compiled.rule.logs) if compiled.refund_keeps else None]
    former = () if compiled.parts else family.former_logs
    keys = keys_of((*logs, *former, *family.records), tag)
    field = field_of(operation.subject) if family.buckets else b""
    numbers = (family.retention_us, family.grace_ms, family.stamp_bytes, operation.cost)
    payload = pack(
        b"EVALSHA",
        REFUND.sha,
        b"%d" % len(keys),
        *keys,
        b"%d" % operation.stamp_us,
        field,
        now,
        *(b"%d" % number for number in numbers),
        compiled.refund_keeps,
        CHANGES[operation.kind],
        compiled.refund_marks if family.reserves else b"",
        compiled.terms(now),
        b"%d" % len(former),
    )
    return Call(slot_of(tag), payload, REFUND, repeatable=operation.kind != "refund" and operation.cost > 0)


def group_call(
    head: Head,
    groups: Sequence[Group],
    codes: bytes,
    asks: bytes,
    *,
    repeatable: bool,
    receipt: tuple[bytes, bytes] | None = None,
) -> Call:
    """The rows of these groups, which share a head; with the codes, the costs and ids of each."""
    script = LOOK if head.mode == PEEK else ATTEMPT
    keys = [key for group in groups for key in keys_of(head.family.logs, group.tag)]
    digest = b""
    if receipt is not None:
        name, digest = receipt
        key = b"%b/receipt:{%b}%b" % (head.family.logs[0], groups[0].tag, name)
        keys.append(key)
        if head.mode == KEPT:
            # Until it expires by its key: a server's clock is not known here.
            expires_us = int(head.now) + head.family.retention_us if head.now else (1 << 53) - 1
            life = b"%d" % (head.family.retention_us // 1000 + head.family.grace_ms)
            move = pack(b"SET", key, expires_us.to_bytes(7) + digest, b"PX", life, b"NX", b"GET")
            return Call(groups[0].slot, move, repeatable=True)
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
        asks,
        digest,
        *fields,
    )
    return Call(groups[0].slot, payload, script, repeatable)
