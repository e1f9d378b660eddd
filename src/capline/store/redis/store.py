"""`redis://` and the other server URLs, driven by the synchronous transport; the fast paths of one attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from capline.model.clock import Clock
from capline.model.decision import Decision, Joint
from capline.model.errors import CaplineError, StoreClosedError
from capline.model.policy import BoundPolicy
from capline.model.subject import Subject, check_subject
from capline.store.protocol import Kind, Operation, Store
from capline.store.redis import batches, maintenance
from capline.store.redis.io.sync import Transport
from capline.store.redis.io.url import Settings
from capline.store.redis.io.wire import NoReply, Reply, ServerError, Steps
from capline.store.redis.joint import at_once, joint, joint_answer
from capline.store.redis.scripting.compiled_rule import RedisRule
from capline.store.redis.scripting.replies import one_decision
from capline.store.redis.scripting.requests import one_payload
from capline.store.redis.scripting.scripts import Call
from capline.store.redis.servers import servers
from capline.store.redis.session import Session
from capline.store.redis.steps import alone, replicas_of, step_answer, step_call
from capline.support.override import override

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _driven(instruction: Callable[Concatenate[Session, _P], Steps[_T]]) -> Callable[Concatenate[RedisStore, _P], _T]:
    """The instruction, driven by the store's transport."""

    @wraps(instruction)
    def driven(store: RedisStore, /, *args: _P.args, **named: _P.kwargs) -> _T:
        return store.drive(instruction(store.session, *args, **named))

    return driven


class RedisStore(Store):
    """Logs on Redis or Valkey. Threads share it; a forked child makes its own connections."""

    may_lose_answers = True

    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self.session = Session(settings, clock)
        self.transport = Transport(settings)

    @override
    def compiled(self, rule: BoundPolicy, /) -> RedisRule:
        compiled = self.session.compiled(rule)
        if compiled.flat and not compiled.family.replicas:
            compiled.decide_one = compiled.ask = self._fast_path(compiled)
        else:
            compiled.decide_one = lambda subject: self.step(Operation("decide", compiled, check_subject(subject)))
        return compiled

    def _fast_path(self, compiled: RedisRule) -> Callable[..., Decision]:
        """A decision, peek or slot, in as few steps as it can take; see `CompiledRule.ask`."""
        session = self.session
        router, topology, breakers = session.router, session.router.topology, session.router.breakers
        ask_server, now = self.transport.ask, session.now

        def ask(
            subject: Subject, cost: int = 1, fingerprint: int = 0, kind: Kind = "decide", max_wait_us: int | None = None
        ) -> Decision:
            subject = check_subject(subject)
            at, payload = one_payload(
                compiled, subject, now(), kind, cost, fingerprint, (-1 if max_wait_us is None else max_wait_us, 0)
            )
            node = topology.node(at)
            if (
                node is None
                or topology.stale
                or ((breaker := breakers.get(node)) and breaker.failures)
                or (router.names is not None and not compiled.short)
            ):
                return self.step(Operation(kind, compiled, subject, cost, fingerprint, max_wait_us=max_wait_us))
            until = session.until()
            reply = ask_server(node, payload)
            if type(reply) is bytes:
                return one_decision(reply, compiled, cost, slot=kind == "schedule", peeked=kind == "peek")
            operation = Operation(kind, compiled, subject, cost, fingerprint, max_wait_us=max_wait_us)
            return step_answer(self.drive(router.resume(step_call(session, operation), reply, node, until)), operation)

        return ask

    def _ask(self, call: Call, replicas: int = 0) -> Reply | CaplineError:
        """The outcome of a single call: one command, one reply; any other reply goes to the router."""
        router = self.session.router
        node = router.straight(call, replicas)
        if node is None:
            return self.drive(alone(self.session, call, replicas))
        until = self.session.until()
        reply = self.transport.ask(node, call.payload)
        if isinstance(reply, (ServerError, NoReply)):
            return self.drive(router.resume(call, reply, node, until))
        return reply

    def drive(self, steps: Steps[_T]) -> _T:
        """What these steps come to."""
        if self.transport.closed:
            raise StoreClosedError("this store is closed; make a new limiter")
        return self.transport.drive(steps)

    @override
    def step(self, operation: Operation, /) -> Any:
        return step_answer(self._ask(step_call(self.session, operation), replicas_of(operation)), operation)

    @override
    def joint(self, operations: Sequence[Operation], /) -> Joint:
        """Across slots of a cluster one slot after the other; a peek each in its own moment."""
        call = at_once(self.session, operations)
        if call is None:
            return self.drive(joint(self.session, operations))
        return joint_answer(self._ask(call), operations)

    rows = _driven(batches.rows)
    columns = _driven(batches.columns)
    recorded = _driven(maintenance.recorded)
    merge = _driven(maintenance.merge)
    scan = _driven(maintenance.scan)
    erase = _driven(maintenance.erase)
    sweep = _driven(maintenance.sweep)
    servers = _driven(servers)
    try_write = _driven(maintenance.try_write)
    now_us = _driven(maintenance.now_us)

    @override
    def close(self) -> None:
        self.transport.close()
