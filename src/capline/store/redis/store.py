"""`redis://` and its kin: `Verbs` and `Upkeep` driven by the synchronous transport; one unit's short way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from capline.model.errors import StoreClosedError
from capline.model.subject import check_subject
from capline.store.redis.engine import Call
from capline.store.redis.plan import DECIDE, PEEK, PLACE, one_payload
from capline.store.redis.reply import one_decision
from capline.store.redis.scripts import ONE
from capline.store.redis.session import Session
from capline.store.redis.transport import Transport
from capline.store.redis.upkeep import Upkeep
from capline.store.redis.verbs import Verbs
from capline.store.redis.wire import Lost, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.errors import CaplineError
    from capline.model.policy import Rule
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
    from capline.store.protocol import Ask, Batch, Merge, Page, Recorded
    from capline.store.redis.engine import Steps
    from capline.store.redis.terms import RedisTerms
    from capline.store.redis.url import Settings
    from capline.store.redis.wire import Reply
    from capline.window.merge import Merged

__all__ = ["RedisStore"]

_T = TypeVar("_T")


class _Unit(Protocol):
    """`wish` is how far a slot may be (-1: no bound), and how near, in microseconds; None: to be decided now."""

    def __call__(self, subject: Subject, wish: tuple[int, int] | None = None) -> Decision: ...


class RedisStore:
    """See `Store`. Threads share it; a forked child makes its own connections."""

    may_lose_answers = True

    def __init__(self, settings: Settings, clock: Clock | None) -> None:
        self._session = Session(settings, clock)
        self._verbs = Verbs(self._session)
        self._upkeep = Upkeep(self._session)
        self._transport = Transport(settings)

    def terms(self, rule: Rule) -> RedisTerms:
        """See `Store`."""
        terms = self._session.terms(rule)
        if terms.short and not terms.family.replicas:
            terms.decide_unit = terms.place_unit = self._short_way(terms)
        else:
            terms.decide_unit = lambda subject: self.decide(terms, check_subject(subject), 1, 0)
        return terms

    def _short_way(self, terms: RedisTerms) -> _Unit:
        """A decision or a slot of one unit, in as few steps as it can take."""
        session, verbs = self._session, self._verbs
        engine, topology, breakers = session.engine, session.engine.topology, session.engine.breakers
        ask, now = self._transport.ask, session.now

        def unit(subject: Subject, wish: tuple[int, int] | None = None) -> Decision:
            mode = DECIDE if wish is None else PLACE
            slot, payload = one_payload(terms, check_subject(subject), now(), wish)
            node = topology.node(slot)
            if node is None or topology.stale or ((breaker := breakers.get(node)) and breaker.failures):
                return verbs.one_answer(self._drive(verbs.alone(Call(slot, payload, ONE))), terms, 1, mode)
            until = session.until()
            reply = ask(node, payload)
            if type(reply) is bytes:
                return one_decision(reply, terms, 1, slot=mode == PLACE)
            resumed = engine.resume(Call(slot, payload, ONE), reply, node, until)
            return verbs.one_answer(self._drive(resumed), terms, 1, mode)

        return unit

    def _ask(self, call: Call, replicas: int = 0) -> Reply | CaplineError:
        """What becomes of a single call: one command, one reply; what is no plain answer goes on in the engine."""
        engine = self._session.engine
        node = engine.topology.node(call.slot)
        if replicas or node is None or engine.topology.stale or engine.breaker(node).failures:
            return self._drive(self._verbs.alone(call, replicas))
        until = self._session.until()
        reply = self._transport.ask(node, call.payload)
        if isinstance(reply, (ServerError, Lost)):
            return self._drive(engine.resume(call, reply, node, until))
        return reply

    def _drive(self, steps: Steps[_T]) -> _T:
        if self._transport.closed:
            raise StoreClosedError("this store is closed; make a new limiter")
        return self._transport.drive(steps)

    def decide(self, terms: RedisTerms, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """See `Store`."""
        return self._one(terms, subject, DECIDE, cost, fingerprint)

    def peek(self, terms: RedisTerms, subject: Subject, cost: int, fingerprint: int) -> Decision:
        """See `Store`."""
        return self._one(terms, subject, PEEK, cost, fingerprint)

    def place(
        self,
        terms: RedisTerms,
        subject: Subject,
        cost: int,
        fingerprint: int,
        max_wait_us: int | None,
        not_before_us: int = 0,
    ) -> Decision:
        """See `Store`."""
        slot = (-1 if max_wait_us is None else max_wait_us, not_before_us)
        if terms.place_unit is not None and cost == 1 and not fingerprint:
            return terms.place_unit(subject, slot)
        return self._one(terms, subject, PLACE, cost, fingerprint, slot)

    def _one(
        self,
        terms: RedisTerms,
        subject: Subject,
        mode: int,
        cost: int,
        fingerprint: int,
        slot: tuple[int, int] = (-1, 0),
    ) -> Decision:
        outcome = self._ask(*self._verbs.one(terms, subject, mode, cost, fingerprint, slot))
        return self._verbs.one_answer(outcome, terms, cost, mode)

    def refund(self, terms: RedisTerms, subject: Subject, stamp_us: int, cost: int = 1) -> bool:
        """See `Store`."""
        return self._verbs.given_back(self._ask(self._verbs.refund_call(terms, subject, stamp_us, cost)), terms)

    def decide_all(self, asks: Sequence[Ask]) -> Joint:
        """See `Store`; across slots of a cluster one slot after the other."""
        call = self._verbs.at_once(asks, DECIDE)
        if call is None:
            return self._drive(self._verbs.decide_all(asks))
        return self._verbs.joint_answer(self._ask(call), asks, DECIDE)

    def peek_all(self, asks: Sequence[Ask]) -> Joint:
        """See `Store`; across slots of a cluster each in its own moment."""
        call = self._verbs.at_once(asks, PEEK)
        if call is None:
            return self._drive(self._verbs.peek_all(asks))
        return self._verbs.joint_answer(self._ask(call), asks, PEEK)

    def decide_batch(self, asks: Sequence[Ask]) -> list[Decision | CaplineError]:
        """See `Store`."""
        return self._drive(self._verbs.decide_batch(asks))

    def decide_many(self, batch: Batch) -> Decisions:
        """See `Store`."""
        return self._drive(self._verbs.many(batch, DECIDE))

    def peek_many(self, batch: Batch) -> Decisions:
        """See `Store`."""
        return self._drive(self._verbs.many(batch, PEEK))

    def refund_many(
        self, terms: RedisTerms, subjects: Sequence[Subject], stamps_us: Sequence[int], cost: int = 1
    ) -> NDArray[np.bool_]:
        """See `Store`."""
        return self._drive(self._verbs.refund_many(terms, subjects, stamps_us, cost))

    def recorded(self, terms: RedisTerms, subject: Subject) -> list[list[Recorded]]:
        """See `Store`."""
        return self._drive(self._upkeep.recorded(terms, subject))

    def merge(self, asks: Sequence[Merge]) -> list[Merged | CaplineError]:
        """See `Store`."""
        return self._drive(self._upkeep.merge(asks))

    def scan(self, terms: Sequence[RedisTerms], after: Any = None) -> Page:
        """See `Store`; some 200 keys a page."""
        return self._drive(self._upkeep.scan(terms, after))

    def erase(self, terms: Sequence[RedisTerms], subject: Subject) -> int:
        """See `Store`."""
        return self._drive(self._upkeep.erase(terms, subject))

    def sweep(self) -> int:
        """See `Store`. Keys expire by themselves; this is for a caller's own clock."""
        return self._drive(self._upkeep.sweep())

    def stats(self) -> dict[str, int]:
        """See `Store`; a server has its own."""
        return {}

    def now_us(self) -> int:
        """See `Store`."""
        return self._drive(self._upkeep.now_us())

    def close(self) -> None:
        """See `Store`."""
        self._transport.close()
