"""Slots: taken, waited for and given back."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from capline.limiter.checks import joint_refusal, refusal_text, seconds_us, stamp
from capline.limiter.patience import Patience
from capline.limiter.upkeep import Upkeep
from capline.model.attempt import check_cost
from capline.model.errors import LimitExceeded, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from capline.model.attempt import Attempt
    from capline.model.decision import Decision, Joint
    from capline.model.limit import Limit
    from capline.model.subject import Subject

__all__ = ["Slots"]

T = TypeVar("T")


class Slots(Upkeep):
    """A limiter's verbs that take an instant to come, or give a hit back."""

    def refund(
        self,
        policy: str,
        subject: Subject,
        hit: int | None,
        cost: int = 1,
        *,
        limits: Sequence[Limit | str] | None = None,
    ) -> bool:
        """Refund the hit that a decision named, in the policy's log and its channel's; True once, False after.

        A hit older than the widest window has left the log by itself: False. Its id, if it had one, is free again.
        `cost` is the hit's cost. It is used only if the policy's algorithm keeps no single hits: then each refund of a
        hit without an id takes that cost off again.
        """
        if limits is not None:
            return self._under(policy, limits).refund(policy, subject, hit, cost)
        if hit is None:
            return False
        subject = self._subject(subject)
        try:
            return self._store.refund(self._refund_terms(policy, subject), subject, stamp(hit), check_cost(cost))
        finally:
            self._denied.forget((subject,))

    def refund_all(self, attempts: Sequence[Attempt], hits: Sequence[int]) -> int:
        """Refund every hit of a `decide_all`, one after the other; returns how many were refunded.

        `attempts` and `hits` are those of the call and of its answer.
        """
        given_back = 0
        for one, hit in self._refund_pairs(attempts, hits):
            given_back += self.refund(one.policy, one.subject, hit, one.cost)
        return given_back

    def schedule(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        max_wait: float | None = None,
        not_before: float = 0,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """Take the next free slot, after all slots that are taken: `wait` seconds from now.

        It is at least `not_before` seconds from now. Later callers get later slots, so one unit placed in the future
        makes every host wait. Refused, with nothing taken, if the slot is more than `max_wait` seconds away or the cost
        can never fit. Give an unused slot back with `refund`.
        """
        max_wait_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
        not_before_us = seconds_us(not_before, "not_before")
        asked = self._asked(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("schedule", asked) as seen:
            try:
                return seen(self._store.place(*self._arguments(asked), max_wait_us, not_before_us))
            except StoreError as error:
                return seen(self._outage.place(asked, max_wait_us, not_before_us, error))

    @contextmanager
    def acquire(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        *,
        timeout: float | None = None,
        not_before: float = 0,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Generator[Decision]:
        """`schedule`, then sleep until the slot; raises `LimitExceeded` at once if the slot is past the timeout.

        A store that does not answer is tried again, with backoff, until the timeout (30 s if there is none); then its
        `StoreError` is raised. With `on_store_error` "allow" or "deny" the answer is that, at once. An interrupted
        sleep gives the slot back; an exception inside the block does not, since the call was made.
        """
        patience = Patience(timeout, may_lose_answers=self._store.may_lose_answers)
        slot = _patiently(
            patience,
            lambda: self.schedule(
                policy,
                subject,
                cost,
                patience.id,
                max_wait=patience.left(),
                not_before=patience.not_before(not_before),
                segment=segment,
                channel=channel,
                zone=zone,
            ),
        )
        if not slot.allowed:
            raise LimitExceeded(refusal_text(policy, subject, slot), slot)
        _sleep_until(slot, lambda: self.refund(policy, subject, slot.hit, cost))
        yield slot

    def schedule_all(
        self, attempts: Sequence[Attempt], *, max_wait: float | None = None, not_before: float = 0
    ) -> Joint:
        """Take the next instant that is free under all of these policies: one slot, `wait` seconds from now, or none.

        "Ten requests and 40,000 tokens a minute, of this key and of its organisation": up to 16 attempts, each with its
        own cost, each on a log of its own, are recorded at the same instant, or nowhere. Bounds as in `schedule`. It
        comes after every slot that is taken on any of the logs, so whoever shares a log gets slots in the order in
        which they asked. An id names the slot in all logs: each attempt has one, or none has, and a retry gets the
        first answer back. Raises `InvalidValueError` where a cluster keeps the logs in more than one slot, saying how
        to bring them together, and `IdConflictError` where the ids are known in some of the logs only. Give an unused
        slot back with `refund_all`. Costs as much as `decide_all`.
        """
        max_wait_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
        not_before_us = seconds_us(not_before, "not_before")
        asked = self._slot_asked(attempts)
        with self._observers.joint("schedule_all", asked) as seen:
            try:
                return seen(self._store.place_all(self._store_attempts(asked), max_wait_us, not_before_us))
            except StoreError as error:
                return seen(self._outage.place_all(asked, max_wait_us, not_before_us, error))

    @contextmanager
    def acquire_all(
        self, attempts: Sequence[Attempt], *, timeout: float | None = None, not_before: float = 0
    ) -> Generator[Joint]:
        """`schedule_all`, then sleep until the slot; as `acquire`, for all of these attempts or none.

        Raises `LimitExceeded` at once, with nothing taken, if the slot is past the timeout. An interrupted sleep gives
        every part of the slot back.
        """
        patience = Patience(timeout, may_lose_answers=self._store.may_lose_answers)
        parts = self._named_slot(attempts, patience.id)
        slot = _patiently(
            patience,
            lambda: self.schedule_all(parts, max_wait=patience.left(), not_before=patience.not_before(not_before)),
        )
        if not slot.allowed:
            raise joint_refusal(parts, slot)
        _sleep_until(slot, lambda: self._give_back_all(parts, slot.hits))
        yield slot

    def _give_back_all(self, parts: Sequence[Attempt], hits: Sequence[int]) -> None:
        """Refund every hit; raises the first error after all were tried."""
        failed: StoreError | None = None
        for one, hit in zip(parts, hits, strict=False):
            try:
                self.refund(one.policy, one.subject, hit, one.cost)
            except StoreError as error:
                failed = failed or error
        if failed is not None:
            raise failed


def _patiently(patience: Patience, take: Callable[[], T]) -> T:
    """What `take` returns, once the store answers."""
    while True:
        try:
            return take()
        except StoreError as error:
            time.sleep(patience.pause(error))


def _sleep_until(slot: Decision | Joint, give_back: Callable[[], object]) -> None:
    """Sleep until the slot, or give it back where that is interrupted."""
    try:
        time.sleep(slot.wait)
    except BaseException as stopped:
        try:
            give_back()
        except StoreError as error:
            stopped.add_note(f"the slot was not given back: {error}")
        raise
