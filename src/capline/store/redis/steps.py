"""One operation on a server: what to send, then what the reply means. No I/O."""

from __future__ import annotations

from typing import Any

from capline.store.protocol import Operation
from capline.store.redis.cluster.router import UnderReplicated
from capline.store.redis.io.wire import Reply, Steps
from capline.store.redis.scripting.compiled_rule import RedisRule
from capline.store.redis.scripting.replies import NO_ROOM, damaged, flat_decision, one_decision
from capline.store.redis.scripting.requests import (
    CHANGES,
    MODES,
    Head,
    hit_call,
    joint_call,
    one_payload,
    single_call,
    slot_of_kind,
)
from capline.store.redis.scripting.scripts import ONE, Call
from capline.store.redis.session import Session, unwrap
from capline.window.charge import too_many


def replicas_of(operation: Operation) -> int:
    """How many replicas must have what the operation writes."""
    # What gives room back waits for none: a failover that loses it errs towards refusing.
    # So does a move: until it goes, nobody can have been placed between where a slot was and where it is now.
    if operation.kind in ("peek", "refund", "move") or (operation.kind == "settle" and not operation.cost):
        return 0
    return operation.compiled.family.replicas


def _is_short(operation: Operation) -> bool:
    """Whether it is one unit without an id, on a log that one.lua can read."""
    return operation.compiled.short and operation.cost == 1 and not operation.fingerprint


def is_flat(operation: Operation) -> bool:
    """Whether flat.lua is asked first: for a peek, or what one.lua does not answer."""
    if not operation.compiled.flat:
        return False
    return operation.kind == "peek" or (operation.kind in ("decide", "schedule") and not _is_short(operation))


def step_call(session: Session, operation: Operation) -> Call:
    """The call of this operation."""
    kind, now = operation.kind, session.now()
    if kind in CHANGES:
        return hit_call(operation, now)
    compiled: RedisRule = operation.compiled
    if kind in ("schedule", "charge"):
        compiled.head[4] = 1  # these can make any log long: batches read no whole values from now on
    if is_flat(operation):
        return joint_call([operation], now)
    slot = slot_of_kind(operation)
    if _is_short(operation) and kind in ("decide", "schedule"):
        return Call(*one_payload(compiled, operation.subject, now, slot), ONE)
    times = slot or (operation.ttl_us or operation.stamp_us or -1, operation.not_before_us)
    head = Head(compiled.family, MODES[kind], (compiled,), now, operation.cost, *times)
    return single_call(head, operation.subject, operation.fingerprint)


def step_answer(outcome: Reply, operation: Operation) -> Any:
    """The answer in the outcome of such a call; raises its error, also where too few replicas have what it wrote.

    Less units of a settlement wait too: a replica may lack the one before this, and have fewer still.
    """
    kind, compiled, reply = operation.kind, operation.compiled, unwrap(outcome)
    if is_flat(operation):
        decision = flat_decision(reply, compiled, operation.cost, slot=kind == "schedule", peeked=kind == "peek")
        done = decision.allowed
    elif kind not in CHANGES:
        decision = one_decision(
            reply, compiled, operation.cost, slot=kind in ("schedule", "move"), peeked=kind == "peek"
        )
        done = decision.allowed
    elif reply < 0:
        raise too_many(operation.cost) if reply == NO_ROOM else damaged(compiled)
    else:
        decision = done = bool(reply)
    if done and type(outcome) is UnderReplicated:
        raise outcome.error
    return decision


def alone(session: Session, call: Call, replicas: int = 0) -> Steps[Reply]:
    """The outcome of a single call."""
    [outcome] = yield from session.router.run([call], session.until(), replicas)
    return outcome


def step(session: Session, operation: Operation) -> Steps[Any]:
    """One operation in one atomic step."""
    outcome = yield from alone(session, step_call(session, operation), replicas_of(operation))
    return step_answer(outcome, operation)
