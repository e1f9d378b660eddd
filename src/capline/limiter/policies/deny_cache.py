"""A cache of refusals on this host: until a refused cost can fit, the store is not called again.

The rule: an attempt is refused from here only if the store would refuse it too, unless another limiter refunded a hit.
So a refusal's time starts before the store was called, on the monotonic clock. It holds for the same names and subject,
for the same cost or a larger one (which may have to wait longer than the cached time), and never for an attempt with an
id, which may be a retry of one that was allowed. A refund or an erase of the subject through this limiter ends it, and
new policies end all. Refunds by other limiters are not seen: that is the price.
"""

from __future__ import annotations

import threading
from time import monotonic_ns
from typing import TYPE_CHECKING

import msgspec

from capline.model.decision import Decision
from capline.model.errors import InvalidValueError, quoted, whole_number
from capline.support.fork import wait_at_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capline.limiter.policies.rules import Names
    from capline.model.attempt import Attempt
    from capline.model.limit_status import LimitStatus
    from capline.model.subject import Subject

MOST_ENTRIES = 10_000_000
NEVER_HELD_US = 3_600_000_000
"""A refusal for ever (a cost above the quota) is cached for an hour; then its other values are read again."""


class _Refusal(msgspec.Struct, frozen=True):
    cost: int
    since_us: int
    until_us: int
    decision: Decision


class DenyCache:
    """At most `most` refusals (0: none); the subjects refused longest ago are dropped first. Threads may share it."""

    def __init__(self, most: int, now_ns: Callable[[], int] = monotonic_ns) -> None:
        self.most = most
        self._now_ns = now_ns
        self._refusals: dict[Subject, dict[Names, _Refusal]] = {}
        self._size = 0
        self._given_back = 0
        self._lock = threading.Lock()
        wait_at_fork(self._lock)

    def __len__(self) -> int:
        return self._size

    def epoch(self) -> tuple[int, int]:
        """Read it before the store is called, and pass it to `note` with the answer."""
        return self._given_back, self._now_ns() // 1000 if self.most else 0

    def answer(self, attempt: Attempt) -> Decision | None:
        """The cached refusal of this attempt, if it still holds, with its times counted down."""
        if not self._refusals or attempt.id is not None:
            return None
        of_subject = self._refusals.get(attempt.subject)
        if of_subject is None:
            return None
        refusal = of_subject.get(attempt.names)
        if refusal is None or attempt.cost < refusal.cost:
            return None
        now_us = self._now_ns() // 1000
        if now_us >= refusal.until_us:
            return None
        passed_us = now_us - refusal.since_us
        first = refusal.decision
        return Decision(
            False,
            first.limit,
            first.remaining,
            None if first.retry_after_us is None else first.retry_after_us - passed_us,
            None if first.reset_after_us is None else max(0, first.reset_after_us - passed_us),
            None,
            "deny-cache",
            _seen=(_limits_later, first, passed_us),
        )

    def note(self, attempt: Attempt, decision: Decision, epoch: tuple[int, int]) -> None:
        """Cache the store's answer if it is a refusal and nothing was refunded since the epoch was read."""
        if not self.most or decision.allowed or attempt.id is not None:
            return
        given_back, since_us = epoch
        held_us = NEVER_HELD_US if decision.retry_after_us is None else decision.retry_after_us
        refusal = _Refusal(attempt.cost, since_us, since_us + held_us, decision)
        with self._lock:
            # An answer that crossed a refund may be of the time before it.
            if given_back == self._given_back:
                # Behind all others, as the latest refused.
                of_subject = self._refusals.pop(attempt.subject, {})
                self._size -= len(of_subject)
                of_subject[attempt.names] = refusal
                self._refusals[attempt.subject] = of_subject
                self._size += len(of_subject)
                while self._size > self.most:
                    self._size -= len(self._refusals.pop(next(iter(self._refusals))))

    def forget(self, subjects: Iterable[Subject]) -> None:
        """Drop the refusals of these subjects: something was refunded, or may have been."""
        if not self.most:
            return
        with self._lock:
            self._given_back += 1
            for subject in subjects:
                self._size -= len(self._refusals.pop(subject, ()))

    def emptied(self) -> DenyCache:
        """A new cache of the same size, for new policies: a late answer under the old ones goes to the old cache."""
        return DenyCache(self.most, self._now_ns)


def _limits_later(first: Decision, passed_us: int) -> tuple[LimitStatus, ...]:
    """The limits of this refusal, so much later; units that became free meanwhile are not known here."""
    return tuple(
        msgspec.structs.replace(
            state,
            frees_in_us=None if state.frees_in_us is None else max(0, state.frees_in_us - passed_us),
            whole_in_us=max(0, state.whole_in_us - passed_us),
        )
        for state in first.limits
    )


def check_entries(deny_cache: int) -> int:
    """The number of refusals to keep, 0 to ten million, or raise."""
    most = whole_number(deny_cache, "deny_cache is how many refusals to keep, a whole number")
    if not 0 <= most <= MOST_ENTRIES:
        raise InvalidValueError(f"deny_cache is 0 to {MOST_ENTRIES} refusals, not {quoted(most)}")
    return most
