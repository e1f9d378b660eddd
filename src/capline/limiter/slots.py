"""Slots: taken, waited for and given back."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from capline.limiter.checks import joint_refusal, refusal_text, seconds_us, stamp
from capline.limiter.patience import Patience
from capline.limiter.upkeep import Upkeep
from capline.model.attempt import check_cost
from capline.model.decision import LimitExceeded
from capline.model.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from capline.model.attempt import Attempt
    from capline.model.decision import Decision, Joint
    from capline.model.limit import Limit
    from capline.model.subject import Subject

__all__ = ["Slots"]

Slot = TypeVar("Slot", "Decision", "Joint")


class Slots(Upkeep):
    """A limiter's verbs that take a slot in the future, or give a hit back."""

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
            return self._store.refund(self._rule_of_hits(policy, subject), subject, stamp(hit), check_cost(cost))
        finally:
            self._denied.forget((subject,))

    def refund_all(self, attempts: Sequence[Attempt], hits: Sequence[int]) -> int:
        """Refund every hit of a `decide_all`, one after the other; returns how many were refunded.

        `attempts` and `hits` are those of the call and of its answer.
        """
        given_back = 0
        for one, hit in self._refund_pairs(attempts, hits):
            given_back += self.refund(one.policy, one.subject, hit, one.cost, limits=one.limits)
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
        limits: Sequence[Limit | str] | None = None,
    ) -> Decision:
        """Take the next free slot, after all slots that are taken: `wait` seconds from now.

        It is at least `not_before` seconds from now. Later callers get later slots, so one unit placed in the future
        makes every host wait. Refused, with nothing taken, if the slot is more than `max_wait` seconds away or the cost
        can never fit. Give an unused slot back with `refund`. `limits` as in `decide`.
        """
        if limits is not None:
            return self._under(policy, limits).schedule(
                policy,
                subject,
                cost,
                id,
                max_wait=max_wait,
                not_before=not_before,
                segment=segment,
                channel=channel,
                zone=zone,
            )
        max_wait_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
        not_before_us = seconds_us(not_before, "not_before")
        attempt = self._attempt(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("schedule", attempt) as seen:
            try:
                return seen(self._store.schedule(*self._arguments(attempt), max_wait_us, not_before_us))
            except StoreError as error:
                return seen(self._outage.schedule(attempt, max_wait_us, not_before_us, error))

    @contextmanager
    def acquire(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        timeout: float | None = None,
        not_before: float = 0,
        slack: float | None = None,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
    ) -> Generator[Decision]:
        """`schedule`, then sleep until the slot; raises `LimitExceeded` at once if the slot is past the timeout.

        A store that does not answer is tried again, with backoff, until the timeout (30 s if there is none); then its
        `StoreError` is raised. With `on_store_error` "allow" or "deny" the answer is that, at once. An interrupted
        sleep gives the slot back; an exception inside the block does not, since the call was made. The same `id` again
        is the same slot, for a call that is retried: it goes at once where its slot is over, and consumes nothing more.

        `slack` is how many seconds after its slot it may wake up, as on a busy host: whoever is later gives the slot
        back and takes another, ten times at most, instead of going beside others. None: however late. A slot that was
        over when its `id` was asked for again stays used, since the call may have been made in it.
        """
        patience = Patience(timeout, may_lose_answers=self._store.may_lose_answers, slack=slack, named=id is not None)
        yield _slot_in_time(
            patience,
            lambda: self.schedule(
                policy,
                subject,
                cost,
                patience.id(id),
                max_wait=patience.left(),
                not_before=patience.not_before(not_before),
                segment=segment,
                channel=channel,
                zone=zone,
                limits=limits,
            ),
            lambda slot: self.refund(policy, subject, slot.hit, cost, limits=limits),
            lambda slot: LimitExceeded(refusal_text(policy, subject, slot), slot),
        )

    def schedule_all(
        self, attempts: Sequence[Attempt], *, max_wait: float | None = None, not_before: float = 0
    ) -> Joint:
        """Take the next instant that is free under all of these policies: one slot, `wait` seconds from now, or none.

        "Ten requests and 40,000 tokens a minute, of this key and of its organisation": up to 16 attempts, each with its
        own cost, each on a log of its own, are recorded at the same instant, or nowhere. Bounds as in `schedule`. It
        comes after every slot that is taken on any of the logs, so whoever shares a log gets slots in the order in
        which they asked. An id names the slot in all logs: each attempt has one, or none has, and a retry gets the
        same hits. Raises `InvalidValueError` where a cluster keeps the logs in more than one slot, saying how
        to bring them together, and `IdConflictError` where the ids are known in some of the logs only. Give an unused
        slot back with `refund_all`. Costs as much as `decide_all`.
        """
        max_wait_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
        not_before_us = seconds_us(not_before, "not_before")
        checked = self._slot_attempts(attempts)
        with self._observers.joint("schedule_all", checked) as seen:
            try:
                return seen(self._store.schedule_all(self._store_attempts(checked), max_wait_us, not_before_us))
            except StoreError as error:
                return seen(self._outage.schedule_all(checked, max_wait_us, not_before_us, error))

    @contextmanager
    def acquire_all(
        self,
        attempts: Sequence[Attempt],
        *,
        timeout: float | None = None,
        not_before: float = 0,
        slack: float | None = None,
    ) -> Generator[Joint]:
        """`schedule_all`, then sleep until the slot; as `acquire`, for all of these attempts or none.

        Raises `LimitExceeded` at once, with nothing taken, if the slot is past the timeout. An interrupted sleep gives
        every part of the slot back; so does one that ends later than the `slack`, and another slot is taken.
        """
        named = self._slot_attempts(attempts)[0].id is not None
        patience = Patience(timeout, may_lose_answers=self._store.may_lose_answers, slack=slack, named=named)
        yield _slot_in_time(
            patience,
            lambda: self.schedule_all(
                patience.named(attempts), max_wait=patience.left(), not_before=patience.not_before(not_before)
            ),
            lambda slot: self._give_back_all(attempts, slot.hits),
            lambda slot: joint_refusal(attempts, slot),
        )

    def _give_back_all(self, parts: Sequence[Attempt], hits: Sequence[int]) -> None:
        """Refund every hit; raises the first error after all were tried."""
        failed: StoreError | None = None
        for one, hit in zip(parts, hits, strict=False):
            try:
                self.refund(one.policy, one.subject, hit, one.cost, limits=one.limits)
            except StoreError as error:
                failed = failed or error
        if failed is not None:
            raise failed


def _slot_in_time(
    patience: Patience,
    take: Callable[[], Slot],
    give_back: Callable[[Slot], object],
    refusal: Callable[[Slot], LimitExceeded],
) -> Slot:
    """Take a slot and sleep until it; take another if it was missed by more than the slack."""

    def undo(slot: Slot) -> None:
        if patience.is_free(slot):
            give_back(slot)

    while True:
        slot = _patiently(patience, take)
        if not slot.allowed:
            raise refusal(slot)
        _sleep_until(slot, undo)
        if not patience.is_late(slot):
            return slot
        undo(slot)


def _patiently(patience: Patience, take: Callable[[], Slot]) -> Slot:
    """Call `take` until the store answers; return its slot."""
    while True:
        patience.asks()
        try:
            return take()
        except StoreError as error:
            time.sleep(patience.pause(error))


def _sleep_until(slot: Slot, give_back: Callable[[Slot], object]) -> None:
    """Sleep until the slot, or give it back where that is interrupted."""
    try:
        time.sleep(slot.wait)
    except BaseException as stopped:
        try:
            give_back(slot)
        except StoreError as error:
            stopped.add_note(f"the slot was not given back: {error}")
        raise
