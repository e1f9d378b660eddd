"""The answer to an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capline.model.limit import Limit

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Decision", "Joint"]


class _Answer(msgspec.Struct, frozen=True, gc=False):
    """What every answer says; true when allowed."""

    allowed: bool
    limit: Limit | None
    remaining: int
    retry_after_us: int | None
    reset_after_us: int | None

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def retry_after(self) -> float | None:
        """`retry_after_us` in seconds."""
        return None if self.retry_after_us is None else self.retry_after_us / 1e6

    @property
    def reset_after(self) -> float | None:
        """`reset_after_us` in seconds."""
        return None if self.reset_after_us is None else self.reset_after_us / 1e6


class Decision(_Answer, frozen=True, gc=False):
    """The answer to one attempt; true when allowed.

    `limit`           the binding limit: refused, the one that holds longest; allowed, the one with the least left
    `remaining`       units that are left, the least over all limits: after this attempt where it is allowed, else now
    `retry_after_us`  microseconds until *this cost* would fit, were nothing else recorded; 0 when allowed, None for
    never
    `reset_after_us`  microseconds until the last recorded hit is out of the widest window, so until the log is empty
    `hit`             the stamp under which the hit was recorded, to name it in `refund`; None when nothing was recorded
    `origin`          who answered: `"store"`, or what stood in for it
    `wait_us`         `schedule` only: microseconds from the asking to the slot
    """

    hit: int | None
    origin: str = "store"
    wait_us: int = 0

    @property
    def wait(self) -> float:
        """`wait_us` in seconds."""
        return self.wait_us / 1e6


class Joint(_Answer, frozen=True):
    """The answer to one attempt over several subjects, all or nothing; true when allowed.

    `hits` are the stamps to refund, one for each attempt in order; empty where nothing was recorded. `binds` is the
    number of the attempt whose limit is `limit`. All else is as in `Decision`, over all of the attempts.
    """

    hits: tuple[int, ...] = ()
    binds: int | None = None
    origin: str = "store"

    @classmethod
    def of(cls, decision: Decision, hits: Iterable[int], binds: int | None) -> Joint:
        """A decision over all of the attempts, with the hit of each."""
        return cls(
            decision.allowed,
            decision.limit,
            decision.remaining,
            decision.retry_after_us,
            decision.reset_after_us,
            tuple(hits),
            binds,
            decision.origin,
        )
