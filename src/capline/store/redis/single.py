"""One operation: by the flat script where that takes it, else as `steps` has it. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.store.redis.scripting.flat import flat_call, takes_flat
from capline.store.redis.scripting.replies import flat_decision
from capline.store.redis.session import confirmed, sound
from capline.store.redis.steps import alone, replicas_of, step, step_answer, step_call

if TYPE_CHECKING:
    from capline.store.protocol import Operation
    from capline.store.redis.io.wire import Reply, Steps
    from capline.store.redis.scripting.scripts import Call
    from capline.store.redis.session import Session


def single_call(session: Session, operation: Operation) -> Call:
    """The call of this operation."""
    return flat_call(operation, session.now()) if takes_flat(operation) else step_call(session, operation)


def single_answer(outcome: Reply, operation: Operation) -> Any:
    """The answer in its outcome; raises its error, also where too few replicas have what it wrote."""
    if not takes_flat(operation):
        return step_answer(outcome, operation)
    peeked = operation.kind == "peek"
    decision = flat_decision(sound(outcome), operation.compiled, operation.cost, peeked=peeked)
    if decision.allowed:
        confirmed(outcome)
    return decision


def single(session: Session, operation: Operation) -> Steps[Any]:
    """One operation in one atomic step."""
    if not takes_flat(operation):
        return (yield from step(session, operation))
    outcome = yield from alone(session, flat_call(operation, session.now()), replicas_of(operation))
    return single_answer(outcome, operation)
