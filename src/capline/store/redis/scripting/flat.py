"""Single attempts as joint.lua takes them, whose flat.lua answers nearly all of them. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.store.redis.io.wire import bulk
from capline.store.redis.scripting.keys import field_of, slot_of, tag_of
from capline.store.redis.scripting.scripts import JOINT, JOINT_LOOK, Call

if TYPE_CHECKING:
    from capline.model.subject import Subject
    from capline.store.protocol import Operation
    from capline.store.redis.scripting.compiled_rule import RedisRule

_EMPTY, _1 = bulk(b""), bulk(b"1")
_DECIDE, _PEEK = (
    (b"$7\r\nEVALSHA\r\n" + bulk(script.sha), bulk(mode)) for script, mode in ((JOINT, b"0"), (JOINT_LOOK, b"1"))
)


def takes_flat(operation: Operation) -> bool:
    """Whether it is sent so: a decision or a peek, but no unit that one.lua answers."""
    compiled: RedisRule = operation.compiled
    if operation.kind == "peek":
        return compiled.flat
    unit = operation.cost == 1 and not operation.fingerprint
    return compiled.flat and operation.kind == "decide" and not (unit and compiled.short)


def flat_payload(
    compiled: RedisRule, subject: Subject, now: bytes, cost: int = 1, fingerprint: int = 0, *, peeks: bool = False
) -> tuple[int, bytes]:
    """The cluster slot and the packed command."""
    family = compiled.family
    tag = tag_of(subject, family.buckets)
    keys = [bulk(b"%b:{%b}" % (log, tag)) for log in family.logs]
    script, mode = _PEEK if peeks else _DECIDE
    parts = (
        b"*%d\r\n" % (10 + len(keys)),
        script,
        bulk(b"%d" % len(keys)),
        *keys,
        mode,
        bulk(now),
        compiled.one,
        compiled.rest(now),
        _1 if cost == 1 else bulk(b"%d" % cost),
        bulk(field_of(subject)) if family.buckets else _EMPTY,
        bulk(fingerprint.to_bytes(8)) if fingerprint else _EMPTY,
    )
    return slot_of(tag), b"".join(parts)


def flat_call(operation: Operation, now: bytes) -> Call:
    """The call of such an operation."""
    peeks, mark = operation.kind == "peek", operation.fingerprint
    slot, payload = flat_payload(operation.compiled, operation.subject, now, operation.cost, mark, peeks=peeks)
    return Call(slot, payload, JOINT_LOOK if peeks else JOINT, peeks or mark > 0)
