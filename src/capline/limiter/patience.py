"""How long `acquire` retries a store that does not answer, and how late it may be for its slot.

A wait of 30 s must not fail on one call's deadline. Each try has the same id, so a retry takes no second slot. Time
spent on retries, and on slots that were missed, counts towards the caller's timeout.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from capline.limiter.arguments.checks import seconds_us, waits_us
from capline.model.attempt import LONGEST_ID_BYTES
from capline.model.decision import Decision
from capline.model.errors import CaplineError, StoreError, StoreUnavailableError, StoreUnknownError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.limiter.steps import Steps
    from capline.model.attempt import Attempt
    from capline.model.decision import Joint, LimitExceeded

OUTAGE_S = 30.0
"""How long to retry if the caller set no timeout."""

MOST_MISSED = 10
"""Slots that one `acquire` may miss before it goes late: never to go would be no better."""

ASKS_IN_A_WAIT = 20
"""A waiter asks for an earlier instant after each such part of what is left of its wait."""
_LAST_NAP_US = 10_000
"""So close to its slot a waiter asks no more."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
Slot = TypeVar("Slot", "Decision", "Joint")


class WaitBudget:
    """One `acquire`: the seconds left of its timeout, and the backoff between two tries.

    `may_lose_answers`: whether the store is behind a network. Only then is an id needed, which costs some bytes.
    `slack` is how many seconds after its slot the caller may go; None for any. `named`: whether the caller gave the
    slot an id, under which its call may have been made before.
    """

    def __init__(
        self, timeout: float | None, *, may_lose_answers: bool, slack: float | None = None, named: bool = False
    ) -> None:
        self._slack = None if slack is None else seconds_us(slack, "slack") / 1e6
        self._missed = 0
        self._asked = 0.0
        self._named = named
        self._used = 0
        self._own = secrets.token_hex(12) if may_lose_answers else None
        self._timeout = None if timeout is None else _seconds_left(timeout)
        self._began = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        self._given_up = False

    @property
    def is_strict(self) -> bool:
        """Whether the caller may go only so late."""
        return self._slack is not None

    def late_us(self, slot: Decision | Joint) -> int:
        """How long the slot is over by this host's clock; below 0 it is still to come."""
        return round((time.monotonic() - self._asked - slot.wait) * 1e6)

    def give_up(self) -> None:
        """Retry no more: the next failure is raised."""
        self._given_up = True

    def asks(self) -> None:
        """The store is about to be asked for a slot."""
        self._asked = time.monotonic()

    def id(self, given: str | None) -> str | None:
        """The id of the next slot: the caller's, or one of its own."""
        return self._own if given is None else numbered(given, self._used)

    def named(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """The parts of the next slot, by its id."""
        return [msgspec.structs.replace(attempt, id=self.id(attempt.id)) for attempt in attempts]

    def is_late(self, slot: Decision | Joint) -> bool:
        """Whether this slot was missed by more than the slack: another is to be taken.

        The time is counted from before the store was asked, and the slot's distance by the store's clock: no clocks
        are compared.
        """
        if self._slack is None or slot.origin != "store":
            return False
        late = time.monotonic() - self._asked - slot.wait + slot.late > self._slack
        if late and not self.is_free(slot):
            self._used += 1
        self._missed += late
        return late and self._missed <= MOST_MISSED

    def is_free(self, slot: Decision | Joint) -> bool:
        """Whether nobody can have gone in this slot, so that it may be given back.

        A slot that was over when a caller named it may be that of an earlier try, which went.
        """
        return slot.allowed and not (self._named and slot.late_us)

    def is_past(self, slot: Decision | Joint) -> bool:
        """Whether a slot that was taken before, under the caller's id, is further away than the timeout."""
        return self._named and self._timeout is not None and slot.wait > self._timeout

    def left(self) -> float | None:
        """The rest of the timeout in seconds; None if there is no timeout."""
        return None if self._timeout is None else max(0.0, self._timeout - self._waited())

    def pause(self, error: StoreError) -> float:
        """How long to wait before the next try; raises the error if that would be past the timeout."""
        if self._given_up or not isinstance(error, StoreUnavailableError | StoreUnknownError):
            raise error
        pause_s = self._pause_s * random.uniform(0.5, 1)  # noqa: S311 - so that waiting hosts do not all retry at once
        if self._waited() + pause_s > (OUTAGE_S if self._timeout is None else self._timeout):
            raise error
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s

    def waits_us(self, not_before: float) -> dict[str, int | None]:
        """The bounds of a slot that is taken now: the rest of the timeout, and of a wait that the caller set."""
        return waits_us(self.left(), max(0.0, not_before - self._waited()))

    def _waited(self) -> float:
        return time.monotonic() - self._began


def _seconds_left(timeout: float) -> float:
    try:
        over = timeout < 0
    except TypeError:
        over = False
    return 0.0 if over else seconds_us(timeout, "timeout") / 1e6


def numbered(id: str, number: int) -> str:
    """The id of a further slot of the same call; 0 is the first. Hashed where it would be too long."""
    if not number:
        return id
    data = f"{id}:{number}".encode()
    return data.decode() if len(data) <= LONGEST_ID_BYTES else blake2b(data, digest_size=16).hexdigest()


class Acquisition(Generic[Slot]):
    """What `acquire` does until its slot: take one, move it, give it back, refuse.

    Its face sleeps, and sees to cancelling. `left_us` is how long it still has to sleep.
    """

    def __init__(
        self,
        patience: WaitBudget,
        take: Callable[[], Steps[Slot]],
        give_back: Callable[[Slot], Steps[object]],
        refusal: Callable[[Slot], LimitExceeded],
        sleep: Callable[[float], Any],
        move: Callable[[Decision], Steps[Decision]] | None = None,
    ) -> None:
        self.patience, self._take, self._give_back, self.refusal, self.sleep = patience, take, give_back, refusal, sleep
        self._move = move
        self.left_us = self._interval_us = 0
        self._asks = self._is_unsure = False

    def taken(self) -> Steps[Slot]:
        """A slot; asks until the store answers."""
        while True:
            self.patience.asks()
            try:
                slot = yield from self._take()
            except StoreError as error:
                pause_s = self.patience.pause(error)
            else:
                if self.patience.is_past(slot):
                    slot = _refused(slot)
                self.left_us, self._is_unsure = slot.wait_us, False
                if slot.limit is not None:
                    self._interval_us = slot.limit.window_us // max(1, slot.limit.quota)
                return slot
            yield self.sleep(pause_s)

    def nap(self) -> float:
        """How long to sleep now: to the slot, or until it is asked for an earlier instant."""
        nap_us = max(self.left_us // ASKS_IN_A_WAIT, self._interval_us)
        self._asks = self._move is not None and self.left_us - nap_us > _LAST_NAP_US
        return (nap_us if self._asks else self.left_us) / 1e6

    def moved(self, slot: Slot) -> Steps[Slot]:
        """After a nap: the slot where it is now. Its `wait` is from when it was taken.

        Where no answer came the slot may have been moved, so it is asked for again; a caller that may not be late
        learns by its id where it is before it goes.
        """
        if not self._asks or self._move is None or not isinstance(slot, Decision):
            self.left_us = 0
            return (yield from self.taken()) if self._is_unsure and self.patience.is_strict else slot
        try:
            answer = yield from self._move(slot)
        except CaplineError:
            self._is_unsure = True
        else:
            self._is_unsure = False
            if answer.allowed:
                self.left_us = answer.wait_us
                sooner_us = (slot.hit or 0) - (answer.hit or 0)
                return msgspec.structs.replace(answer, wait_us=slot.wait_us - sooner_us, late_us=0)  # pyright: ignore[reportReturnType] - the slot is a decision
        self.left_us = max(0, -self.patience.late_us(slot))
        return slot

    def given_back(self, slot: Slot) -> Steps[None]:
        """Refund the slot, unless somebody may have gone in it."""
        if self.patience.is_free(slot):
            yield from self._give_back(slot)


def _refused(slot: Slot) -> Slot:
    """As if the slot were not taken. It stays, for a call with its id that waits for longer."""
    nothing: dict[str, Any] = {"hit": None} if isinstance(slot, Decision) else {"hits": ()}
    return msgspec.structs.replace(slot, allowed=False, retry_after_us=slot.wait_us, wait_us=0, **nothing)


Wanted = Callable[[], Acquisition[Slot] | Slot]
"""What begins an `acquire`: the slot where it is free at once, or what leads to it."""
