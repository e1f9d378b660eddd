"""One operation on a server: what to send, then what the reply means. No I/O."""

from __future__ import annotations

from typing import Any

from capline.store.protocol import Operation
from capline.store.redis.cluster.router import UnderReplicated
from capline.store.redis.io.wire import Reply, Steps
from capline.store.redis.scripting.compiled_rule import RedisRule
from capline.store.redis.scripting.replies import NO_ROOM, damaged, one_decision
from capline.store.redis.scripting.requests import CHANGES, hit_call, one_payload, slot_of_kind
from capline.store.redis.scripting.scripts import ONE, ONE_LOOK, Call
from capline.store.redis.session import Session, unwrap
from capline.window.charge import too_many


def replicas_of(operation: Operation) -> int:
    """How many replicas must have what the operation writes."""
    # What gives room back waits for none: a failover that loses it errs towards refusing.
    # So does a move: until it goes, nobody can have been placed between where a slot was and where it is now.
    if operation.kind in ("peek", "refund", "move") or (operation.kind == "settle" and not operation.cost):
        return 0
    return operation.compiled.family.replicas


def step_call(session: Session, operation: Operation) -> Call:
    """The call of this operation."""
    kind, now = operation.kind, session.now()
    if kind in CHANGES:
        return hit_call(operation, now)
    compiled: RedisRule = operation.compiled
    times = slot_of_kind(operation) or (operation.ttl_us or operation.stamp_us or -1, operation.not_before_us)
    fingerprint = operation.fingerprint
    payload = one_payload(compiled, operation.subject, now, kind, operation.cost, fingerprint, times)
    peeked = kind == "peek"
    return Call(*payload, ONE_LOOK if peeked else ONE, repeatable=peeked or fingerprint > 0)


def step_answer(outcome: Reply, operation: Operation) -> Any:
    """The answer in the outcome of such a call; raises its error, also where too few replicas have what it wrote.

    Less units of a settlement wait too: a replica may lack the one before this, and have fewer still.
    """
    kind, compiled, reply = operation.kind, operation.compiled, unwrap(outcome)
    if kind not in CHANGES:
        answer = one_decision(reply, compiled, operation.cost, slot=kind in ("schedule", "move"), peeked=kind == "peek")
        done = answer.allowed
    elif reply < 0:
        raise too_many(operation.cost) if reply == NO_ROOM else damaged(compiled)
    else:
        answer = done = bool(reply)
    if done and type(outcome) is UnderReplicated:
        raise outcome.error
    return answer


def alone(session: Session, call: Call, replicas: int = 0) -> Steps[Reply]:
    """The outcome of a single call."""
    [outcome] = yield from session.router.run([call], session.until(), replicas)
    return outcome


def step(session: Session, operation: Operation) -> Steps[Any]:
    """One operation in one atomic step."""
    outcome = yield from alone(session, step_call(session, operation), replicas_of(operation))
    return step_answer(outcome, operation)
