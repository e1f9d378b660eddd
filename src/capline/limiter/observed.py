"""Calls the observers after each decision: each verb runs inside a block, and passes its answer to it.

    with self._observers.of("peek", [attempt]) as seen:   the stopwatch starts
        return seen(self._store.step(...))                and stops; the observers are called at the end of the block

The rule: an observer never breaks a decision. Without observers every block is `UNOBSERVED`, which does nothing.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from threading import Lock
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from capline.model.decision import Decision, Joint
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError, UnknownNameError
from capline.observe.event import Decided, Outcome
from capline.observe.protocol import CountsOne, HearsFailures
from capline.support.fork import wait_at_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from capline.limiter.arguments.columns import AttemptColumns
    from capline.model.attempt import Attempt
    from capline.model.limit import Limit
    from capline.observe.protocol import Observer
    from capline.store.columns import Decisions
else:
    from capline.model.arrays import np

MOST_OBSERVERS = 16
"""Observers of one limiter: each costs something at every decision."""

LOG_EVERY_SECONDS = 60

MANY_ROWS = 4096
"""Up to so many rows are counted on the event loop; more are counted in the thread that builds the answers."""

FEW_KINDS = 1 << 16
"""Up to so many kinds of rows are counted in an array with a cell for each."""

VERDICTS = ("refused", "allowed", "error")
ERROR = VERDICTS.index("error")
_NOBODY = (None, None, None)

A = TypeVar("A")
if TYPE_CHECKING:
    Shared = tuple[str | None, str | None, str | None]
    """Policy, segment and channel; each None if unknown or not the same for all."""


class Unobserved:
    """The block of a call without observers."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Call the observers with the answer, or with the error."""

    def __call__(self, answer: A) -> A:
        """Note the answer and return it."""
        return answer

    def without_store(self, answer: A) -> A:
        """Note an answer for which no store was called, and return it."""
        return answer

    def since(self, began: float) -> Self:  # noqa: ARG002 - there is no stopwatch
        """Set the stopwatch's start to then."""
        return self

    def store_answered(self) -> None:
        """Stop the stopwatch now, before the answer is built."""


UNOBSERVED = Unobserved()


class _Observed(Unobserved):
    __slots__ = ("_began", "_count", "_event", "_observers")

    def __init__(
        self, observers: Observers, verb: str, names: Shared, size: int, count: Callable[[Any], dict[Outcome, int]]
    ) -> None:
        self._observers = observers
        self._count = count
        self._event = Decided(verb, *names, size, None, dict)
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = self._began or perf_counter()
        return self

    def since(self, began: float) -> Self:
        """Let the stopwatch have started then."""
        self._began = began
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            # Nothing was decided under an unknown name, nor in a cancelled call.
            if isinstance(error, UnknownNameError) or not isinstance(error, CaplineError):
                return
            self(error)
        self._observers.tell(self._event)

    def __call__(self, answer: A) -> A:
        if self._event.seconds is None:
            self.store_answered()
        return self.without_store(answer)

    def without_store(self, answer: A) -> A:
        event = self._event
        event.count = partial(self._count, answer)
        if event.size > MANY_ROWS:
            event.counted = event.count()
        return answer

    def store_answered(self) -> None:
        self._event.seconds = perf_counter() - self._began


class Observers:
    """The observers of one limiter. `failed` is how often one of them raised."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = _checked(observers)
        ones = [observer for observer in self._observers if isinstance(observer, CountsOne)]
        self._ones = tuple(ones) if len(ones) == len(self._observers) else ()
        self._hearers = tuple(observer for observer in self._observers if isinstance(observer, HearsFailures))
        self.failed = 0
        self._told_of = 0
        self._log_from = -float("inf")
        self._lock = Lock()
        wait_at_fork(self._lock)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def under(self, title: str) -> Observers:
        """These observers, told of one policy `title` without limits, whatever was asked for."""
        other = Observers([_Titled(title, observer) for observer in self._observers])
        other._hearers = self._hearers
        return other

    @property
    def count_one(self) -> bool:
        """Whether there are observers, and all take `decided_one`."""
        return bool(self._ones)

    def decided_one(
        self, policy: str, segment: str | None, channel: str | None, decision: Decision, seconds: float
    ) -> None:
        """Call all observers of one decision, even if one of them raises."""
        for observer in self._ones:
            try:
                observer.decided_one(policy, segment, channel, decision, seconds)
            except Exception as error:  # noqa: BLE001 - as in `tell`
                self._fail(observer, error)

    def of(self, verb: str, attempts: Sequence[Attempt | None], *, rows: bool = False) -> Unobserved:
        """The block of one attempt, or of `rows`: then the answer is a list, and None stands for names not known.

        Of an attempt over several subjects the outcome is one, under the names of the part that binds.
        """
        if not self._observers:
            return UNOBSERVED
        names: list[Shared] = [_NOBODY if row is None else row.names[:3] for row in attempts]
        shared = names[0] if len(names) == 1 else _shared(set(names))
        size = len(names) if rows else 1
        return _Observed(self, verb, shared, size, partial(_counts, names, size))

    def many(
        self, verb: str, columns: AttemptColumns, known: Callable[[str, str | None, str | None], Shared]
    ) -> Unobserved:
        """The block of many attempts of one policy; its answer has the valid rows.

        `known` returns defined names without those that make no difference to the policy.
        """
        if not self._observers:
            return UNOBSERVED
        names = [known(columns.policy, segment, columns.channel) for segment in columns.segments]
        shared = _shared(set(names))
        return _Observed(self, verb, shared, columns.rows, partial(_count_many, names, shared, columns))

    def tell(self, event: Decided) -> None:
        """Call all observers in order, even if one of them raises."""
        for observer in self._observers:
            try:
                observer.decided(event)
            except Exception as error:  # noqa: BLE001 - an observer may be anything, and the decision has been made
                self._fail(observer, error)

    def _fail(self, observer: Observer | CountsOne, error: Exception) -> None:
        with self._lock:
            self.failed += 1
            since, now = self.failed - self._told_of, monotonic()
            due = now >= self._log_from
            if due:
                self._told_of, self._log_from = self.failed, now + LOG_EVERY_SECONDS
        if due:
            import logging  # noqa: PLC0415 - loaded where there is something to say

            logging.getLogger("capline").warning(
                "observer %s raised, and was passed over; %d times that any did since the line before",
                type(observer).__name__,
                since,
                exc_info=error,
            )
        for hearer in self._hearers:
            with suppress(Exception):  # the line above says enough
                hearer.observer_failed()


class _Titled:
    """Tells an observer of one policy: names and limits that have no bound stay out of its labels."""

    def __init__(self, title: str, observer: Observer) -> None:
        self._title, self._observer = title, observer

    def decided(self, event: Decided) -> None:
        """As of `Observer`."""
        counts: dict[Outcome, int] = {}
        for outcome, count in event.counts.items():
            titled = outcome._replace(policy=self._title, limit=None)
            counts[titled] = counts.get(titled, 0) + count
        self._observer.decided(msgspec.structs.replace(event, policy=self._title, counted=counts))


def _checked(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    try:
        listed = tuple(observers)
    except TypeError:
        raise InvalidTypeError(f"observers is a list of them, not {observers!r}; write observers=[...]") from None
    for observer in listed:
        if isinstance(observer, type) or not callable(getattr(observer, "decided", None)):
            raise InvalidTypeError(f"an observer is an object with a method decided(event), not {observer!r}")
    if len(listed) > MOST_OBSERVERS:
        raise InvalidValueError(f"a limiter has at most {MOST_OBSERVERS} observers, not {len(listed)}")
    return listed


def _shared(names: set[Shared]) -> Shared:
    """The names that all rows share."""
    policy, segment, channel = (set(part) for part in zip(*names, strict=True)) if names else (set[str | None](),) * 3
    return _only(policy), _only(segment), _only(channel)


def _only(names: set[str | None]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


def _outcome(names: Shared, answer: Decision | CaplineError) -> Outcome:
    if isinstance(answer, Decision):
        return Outcome(*names, answer.limit, VERDICTS[answer.allowed], answer.origin)
    return Outcome(*names, None, VERDICTS[ERROR], "")


def _counts(
    names: list[Shared], size: int, answer: Decision | Joint | CaplineError | list[Decision | CaplineError]
) -> dict[Outcome, int]:
    if isinstance(answer, Joint):
        decision = Decision(answer.allowed, answer.limit, answer.remaining, None, None, None, answer.origin)
        return {_outcome(names[answer.binds], decision): 1}
    answers = answer if isinstance(answer, list) else [answer] * size
    return Counter(map(_outcome, names, answers))


def _count_many(
    names: list[Shared], shared: Shared, columns: AttemptColumns, answers: Decisions | CaplineError
) -> dict[Outcome, int]:
    """Each row as one number, of its segment, limit, verdict and origin; then equal numbers are counted."""
    rows = len(columns.subjects)
    limits: tuple[Limit, ...] = ()
    origins = [""]
    code = np.zeros(rows, np.int64) if columns.codes is None else columns.codes.astype(np.int64)
    limit, verdict, origin = np.full(rows, -1, np.int64), np.full(rows, ERROR, np.int64), np.zeros(rows, np.int64)
    if not isinstance(answers, CaplineError):
        limits, origins = answers.limits, ["", *sorted({answers.origin, *answers.origins.values()})]
        index_of = {name: index for index, name in enumerate(origins)}
        limit[:], verdict[:], origin[:] = answers.limit_index, answers.allowed, index_of[answers.origin]
        for row, name in answers.origins.items():
            origin[row] = index_of[name]
        failed = list(answers.errors)
        limit[failed], verdict[failed], origin[failed] = -1, ERROR, 0
    shape = len(names), len(limits) + 1, len(VERDICTS), len(origins)
    kinds, many = _counted(np.ravel_multi_index((code, limit + 1, verdict, origin), shape), int(np.prod(shape)))
    counts: dict[Outcome, int] = {}
    parts: list[list[int]] = np.column_stack(np.unravel_index(kinds, shape)).tolist()
    for count, (named, limit_at, verdict_at, origin_at) in zip(many.tolist(), parts, strict=True):
        bound = limits[limit_at - 1] if limit_at else None
        outcome = Outcome(*names[named], bound, VERDICTS[verdict_at], origins[origin_at])
        counts[outcome] = counts.get(outcome, 0) + count
    if columns.errors:
        # Invalid rows have no segment.
        outcome = Outcome(*shared, None, VERDICTS[ERROR], "")
        counts[outcome] = counts.get(outcome, 0) + len(columns.errors)
    return counts


def _counted(keys: NDArray[np.int64], kinds: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct keys, each below `kinds`, and how many there are of each."""
    if kinds > FEW_KINDS:
        return np.unique(keys, return_counts=True)
    counts = np.bincount(keys, minlength=kinds)
    found = np.flatnonzero(counts)
    return found, counts[found]
