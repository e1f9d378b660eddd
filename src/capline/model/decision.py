"""The answer to an attempt, and the error that carries a refusal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from capline.model.errors import CaplineError
from capline.model.headers import headers_of
from capline.model.limit import Limit

if TYPE_CHECKING:
    from capline.model.headers import HeaderForm
    from capline.model.limit_status import LimitStatus


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

    # The last field, `_seen`, makes `limits` on demand; it is no part of the answer's value.

    def _said(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__[:-1])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self._said())

    def __repr__(self) -> str:
        said = zip(self.__struct_fields__, self._said(), strict=False)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in said)})"


class Decision(_Answer, frozen=True, gc=False):
    """The answer to one attempt; true when allowed.

    `limit`           the binding limit: refused: the one that blocks longest; allowed: the one with the least left
    `remaining`       units left, the least over all limits: after this attempt if it is allowed, else now
    `retry_after_us`  microseconds until *this cost* would fit, were nothing else recorded; 0 when allowed, None for
    never
    `reset_after_us`  microseconds until the last recorded hit is out of the widest window, so until the log is empty
    `hit`             the stamp under which the hit was recorded, to name it in `refund`; None when nothing was recorded
    `origin`          who answered: `"store"`, or what answered in its place; `"shadow"` if a policy in shadow would
    refuse it
    `wait_us`         `schedule` only: microseconds from the call to the slot
    `late_us`         `schedule` only: microseconds from the slot to the call, by the store's clock, where an id is
    asked for again after its slot; else 0
    """

    hit: int | None
    origin: str = "store"
    wait_us: int = 0
    late_us: int = 0
    _seen: tuple[Any, ...] = ()
    """A function that makes the states of the limits, and its arguments, none of which ever changes."""

    def as_dict(self) -> dict[str, object]:
        """The fields for JSON, times in microseconds, the limit as its text; `capline decide --json` prints them."""
        return {
            "allowed": self.allowed,
            "limit": None if self.limit is None else str(self.limit),
            "remaining": self.remaining,
            "retry_after_us": self.retry_after_us,
            "reset_after_us": self.reset_after_us,
            "hit": self.hit,
            "origin": self.origin,
        }

    @property
    def wait(self) -> float:
        """`wait_us` in seconds."""
        return self.wait_us / 1e6

    @property
    def late(self) -> float:
        """`late_us` in seconds."""
        return self.late_us / 1e6

    @property
    def limits(self) -> tuple[LimitStatus, ...]:
        """The state of every limit after this answer, in the policy's order, then of the channel's.

        Read in the same atomic step as the answer; times count from the call. Built at each access, which takes some
        microseconds. Empty in an outage, and in the rows of `decide_many`.
        """
        return self._seen[0](*self._seen[1:]) if self._seen else ()

    def headers(self, form: HeaderForm = "draft-11") -> dict[str, str]:
        """What an HTTP response says of this decision: `"draft-11"` or `"legacy"`; see `capline.model.headers`."""
        states = self._seen[0](*self._seen[1:]) if self._seen else ()
        return headers_of(form, states, self.limit, allowed=self.allowed, retry_after_us=self.retry_after_us)

    def __reduce__(self) -> tuple[Any, ...]:
        return Decision, (*self._said(), (tuple, self.limits))


class Joint(_Answer, frozen=True):
    """The answer to one attempt over several subjects, all or nothing; true when allowed.

    `hits` are the stamps to refund, one for each attempt in order, None for one that a policy in shadow would refuse;
    empty where nothing was recorded. `binds` is the number of the attempt whose limit is `limit`; 0 where that is None,
    as in an outage. All else is as in `Decision`, over all of the attempts; a slot is one instant, so there all `hits`
    are the same, but for those in shadow.
    """

    hits: tuple[int | None, ...] = ()
    binds: int = 0
    origin: str = "store"
    wait_us: int = 0
    late_us: int = 0
    _seen: tuple[Any, ...] = ()

    @property
    def wait(self) -> float:
        """`wait_us` in seconds."""
        return self.wait_us / 1e6

    @property
    def late(self) -> float:
        """`late_us` in seconds."""
        return self.late_us / 1e6

    @property
    def limits(self) -> tuple[tuple[LimitStatus, ...], ...]:
        """The state of every limit after this answer, for each attempt in order; see `Decision.limits`.

        On a cluster, where slots decide in turn, a refusal has the limits of the slot that refused; others are empty.
        """
        return self._seen[0](*self._seen[1:]) if self._seen else ()

    def headers(self, form: HeaderForm = "draft-11") -> dict[str, str]:
        """As `Decision.headers`, with the limits of all attempts."""
        states = [state for part in self.limits for state in part]
        return headers_of(form, states, self.limit, allowed=self.allowed, retry_after_us=self.retry_after_us)

    def __reduce__(self) -> tuple[Any, ...]:
        return Joint, (*self._said(), (tuple, self.limits))

    @classmethod
    def of(cls, decision: Decision, hits: Iterable[int | None], binds: int) -> Joint:
        """The joint answer made of a decision over all attempts, with the hit of each."""
        return cls(
            decision.allowed,
            decision.limit,
            decision.remaining,
            decision.retry_after_us,
            decision.reset_after_us,
            tuple(hits),
            binds,
            decision.origin,
            decision.wait_us,
            decision.late_us,
            decision._seen,  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the two are of one kind
        )


class LimitExceeded(CaplineError):  # noqa: N818 - a public name, and the word of the field
    """`acquire` or `acquire_all` could not have its slot within the timeout. `decision` is the refusal.

    Of several attempts it is the refusal of the attempt that binds.
    """

    def __init__(self, message: str, decision: Decision) -> None:
        super().__init__(message)
        self.decision = decision

    def __reduce__(self) -> tuple[object, ...]:
        """It may be sent to another process, as task queues do."""
        return LimitExceeded, (str(self), self.decision)
