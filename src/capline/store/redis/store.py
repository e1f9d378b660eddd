"""`redis://` and the other server URLs: the verbs, driven by the synchronous transport; the fast path of one unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from capline.model.errors import StoreClosedError
from capline.model.subject import check_subject
from capline.store.protocol import Store
from capline.store.redis.batch_verbs import BatchVerbs
from capline.store.redis.io.sync import Transport
from capline.store.redis.io.wire import NoReply, ServerError
from capline.store.redis.joint_verbs import JointVerbs
from capline.store.redis.maintenance import Maintenance
from capline.store.redis.scripting.replies import one_decision
from capline.store.redis.scripting.requests import CHARGE, DECIDE, PEEK, RESERVE, SCHEDULE, one_payload
from capline.store.redis.scripting.scripts import ONE, Call
from capline.store.redis.servers import ask_servers
from capline.store.redis.session import Session
from capline.store.redis.verbs import Verbs
from capline.support.override import override

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.errors import CaplineError
    from capline.model.policy import BoundPolicy
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.protocol import Batch, Merge, Page, StoreAttempt
    from capline.store.redis.io.url import Settings
    from capline.store.redis.io.wire import Reply, Steps
    from capline.store.redis.scripting.compiled_rule import RedisRule
    from capline.window.log import Hit
    from capline.window.merge import Merged

__all__ = ["RedisStore"]

_T = TypeVar("_T")


class _Unit(Protocol):
    """`wish` asks for a slot, at most (-1: no bound) and at least so many us away; None: decide now."""

    def __call__(self, subject: Subject, wish: tuple[int, int] | None = None) -> Decision: ...


class RedisStore(Store):
    """Logs on Redis or Valkey. Threads share it; a forked child makes its own connections."""

    may_lose_answers = True

    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self._session = Session(settings, clock)
        self._verbs = Verbs(self._session)
        self._joint = JointVerbs(self._session)
        self._batches = BatchVerbs(self._session)
        self._maintenance = Maintenance(self._session)
        self._transport = Transport(settings)

    @override
    def compiled(self, rule: BoundPolicy) -> RedisRule:
        compiled = self._session.compiled(rule)
        if compiled.short and not compiled.family.replicas:
            compiled.decide_one = compiled.place_unit = self._fast_path(compiled)
        else:
            compiled.decide_one = lambda subject: self.decide(compiled, check_subject(subject), 1, 0)
        return compiled

    def _fast_path(self, compiled: RedisRule) -> _Unit:
        """A decision or a slot of one unit, in as few steps as it can take."""
        session, verbs = self._session, self._verbs
        router, topology, breakers = session.router, session.router.topology, session.router.breakers
        ask, now = self._transport.ask, session.now

        def unit(subject: Subject, wish: tuple[int, int] | None = None) -> Decision:
            mode = DECIDE if wish is None else SCHEDULE
            slot, payload = one_payload(compiled, check_subject(subject), now(), wish)
            node = topology.node(slot)
            if node is None or topology.stale or ((breaker := breakers.get(node)) and breaker.failures):
                return verbs.one_answer(self._drive(verbs.alone(Call(slot, payload, ONE))), compiled, 1, mode)
            until = session.until()
            reply = ask(node, payload)
            if type(reply) is bytes:
                return one_decision(reply, compiled, 1, slot=mode == SCHEDULE)
            resumed = router.resume(Call(slot, payload, ONE), reply, node, until)
            return verbs.one_answer(self._drive(resumed), compiled, 1, mode)

        return unit

    def _ask(self, call: Call, replicas: int = 0) -> Reply | CaplineError:
        """The outcome of a single call: one command, one reply; any other reply goes to the router."""
        router = self._session.router
        node = router.topology.node(call.slot)
        if replicas or node is None or router.topology.stale or router.breaker(node).failures:
            return self._drive(self._verbs.alone(call, replicas))
        until = self._session.until()
        reply = self._transport.ask(node, call.payload)
        if isinstance(reply, (ServerError, NoReply)):
            return self._drive(router.resume(call, reply, node, until))
        return reply

    def _drive(self, steps: Steps[_T]) -> _T:
        if self._transport.closed:
            raise StoreClosedError("this store is closed; make a new limiter")
        return self._transport.drive(steps)

    @override
    def decide(self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return self._one(compiled, subject, DECIDE, cost, fingerprint)

    @override
    def peek(self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return self._one(compiled, subject, PEEK, cost, fingerprint)

    @override
    def charge(self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int) -> Decision:
        return self._one(compiled, subject, CHARGE, cost, fingerprint)

    @override
    def settle(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int) -> bool:
        outcome = self._ask(*self._verbs.settle_call(compiled, subject, stamp_us, cost))
        return self._verbs.settled(outcome, compiled, cost)

    @override
    def reserve(self, compiled: RedisRule, subject: Subject, cost: int, fingerprint: int, ttl_us: int) -> Decision:
        outcome = self._ask(*self._verbs.reserve_call(compiled, subject, cost, fingerprint, ttl_us))
        return self._verbs.one_answer(outcome, compiled, cost, RESERVE)

    @override
    def commit(self, compiled: RedisRule, subject: Subject, stamp_us: int) -> bool:
        return self._verbs.committed(self._ask(*self._verbs.commit_call(compiled, subject, stamp_us)), compiled)

    @override
    def schedule(
        self,
        compiled: RedisRule,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        slot = (-1 if max_wait_us is None else max_wait_us, not_before_us)
        if compiled.place_unit is not None and cost == 1 and not fingerprint:
            return compiled.place_unit(subject, slot)
        return self._one(compiled, subject, SCHEDULE, cost, fingerprint, slot)

    def _one(
        self,
        compiled: RedisRule,
        subject: Subject,
        mode: int,
        cost: int,
        fingerprint: int,
        slot: tuple[int, int] = (-1, 0),
    ) -> Decision:
        outcome = self._ask(*self._verbs.one(compiled, subject, mode, cost, fingerprint, slot))
        return self._verbs.one_answer(outcome, compiled, cost, mode)

    @override
    def refund(self, compiled: RedisRule, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        return self._verbs.given_back(self._ask(self._verbs.refund_call(compiled, subject, stamp_us, cost)), compiled)

    @override
    def decide_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """Across slots of a cluster one slot after the other."""
        call = self._joint.at_once(attempts, DECIDE)
        if call is None:
            return self._drive(self._joint.decide_all(attempts))
        return self._joint.joint_answer(self._ask(call), attempts, DECIDE)

    @override
    def peek_all(self, attempts: Sequence[StoreAttempt], /) -> Joint:
        """Across slots of a cluster each in its own moment."""
        call = self._joint.at_once(attempts, PEEK)
        if call is None:
            return self._drive(self._joint.peek_all(attempts))
        return self._joint.joint_answer(self._ask(call), attempts, PEEK)

    @override
    def schedule_all(
        self, attempts: Sequence[StoreAttempt], max_wait_us: int | None, not_before_us: int = 0, /
    ) -> Joint:
        """In one slot of a cluster only."""
        return self._drive(self._joint.schedule_all(attempts, max_wait_us, not_before_us))

    @override
    def decide_batch(self, attempts: Sequence[StoreAttempt], /) -> list[Decision | CaplineError]:
        return self._drive(self._batches.decide_batch(attempts))

    @override
    def decide_many(self, batch: Batch) -> Decisions:
        return self._drive(self._batches.many(batch, DECIDE))

    @override
    def peek_many(self, batch: Batch) -> Decisions:
        return self._drive(self._batches.many(batch, PEEK))

    @override
    def refund_many(
        self, compiled: RedisRule, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        return self._drive(self._verbs.refund_many(compiled, subjects, stamps_us, cost))

    @override
    def recorded(self, compiled: RedisRule, subject: Subject) -> list[list[Hit]]:
        return self._drive(self._maintenance.recorded(compiled, subject))

    @override
    def merge(self, merges: Sequence[Merge], /) -> list[Merged | CaplineError]:
        return self._drive(self._maintenance.merge(merges))

    @override
    def scan(self, compiled: Sequence[RedisRule], after: Any = None) -> Page:
        """Some 200 keys a page."""
        return self._drive(self._maintenance.scan(compiled, after))

    @override
    def erase(self, compiled: Sequence[RedisRule], subject: Subject) -> int:
        return self._drive(self._maintenance.erase(compiled, subject))

    @override
    def sweep(self, compiled: Sequence[RedisRule], /) -> int:
        """Remove old logs, for a caller's own clock: by the server's keys expire by themselves."""
        return self._drive(self._maintenance.sweep(compiled))

    @override
    def stats(self) -> dict[str, int]:
        """Empty: a server has its own figures."""
        return {}

    @override
    def servers(self) -> list[ServerState]:
        return self._drive(ask_servers(self._session))

    @override
    def try_write(self) -> None:
        self._drive(self._maintenance.try_write())

    @override
    def now_us(self) -> int:
        return self._drive(self._maintenance.now_us())

    @override
    def close(self) -> None:
        self._transport.close()
