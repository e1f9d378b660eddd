"""Checks callers' arguments and makes them plain values: subjects, codes, hits, seconds. An error is one line."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeVar

from capline.model.attempt import Attempt, check_cost, check_id
from capline.model.decision import Decision, LimitExceeded
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError, quoted
from capline.model.limit import DAY_US, duration_text
from capline.model.subject import check_subject
from capline.window.log import CARRIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.decision import Joint
    from capline.model.subject import Subject
else:
    from capline.model.arrays import np

T = TypeVar("T")
MOST_CODES = 1 << 16
"""Segments in one batch: a row's code has 16 bits."""


def refusal_text(policy: str, subject: Subject, decision: Decision) -> str:
    """One line for `LimitExceeded`."""
    if decision.origin == "fallback":
        return (
            f"policy {policy!r}, subject {subject!r}: the store could not answer, and on_store_error refuses then; "
            f"try again in {duration_text(decision.retry_after_us or 0)}"
        )
    when = "never" if decision.retry_after_us is None else f"in {duration_text(decision.retry_after_us)}"
    return f"policy {policy!r}, subject {subject!r}: limit {decision.limit} is reached; this cost fits {when}"


def joint_refusal(parts: Sequence[Attempt], joint: Joint) -> LimitExceeded:
    """The error of a slot for all of these that was not taken."""
    part = parts[joint.binds]
    states = joint.limits[joint.binds] if joint.limits else ()
    decision = Decision(
        False,
        joint.limit,
        joint.remaining,
        joint.retry_after_us,
        joint.reset_after_us,
        None,
        joint.origin,
        _seen=(tuple, states),
    )
    return LimitExceeded(refusal_text(part.policy, part.subject, decision), decision)


def fingerprint(attempt_id: str | None) -> int:
    """64 bits of the id's hash, never 0 or a mark: what a log keeps of it. Two collide once in 2^64 pairs."""
    if attempt_id is None:
        return 0
    return min(int.from_bytes(hashlib.blake2b(check_id(attempt_id), digest_size=8).digest()), CARRIED - 1) or 1


def stamp(hit: int) -> int:
    """The hit as an `int`, or raise."""
    if type(hit) is not int and (isinstance(hit, bool) or not isinstance(hit, (int, np.integer))):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"a hit is the stamp that a decision named, an int, not {quoted(hit)}")
    return int(hit)


def seconds_us(seconds: float, what: str) -> int:
    """Seconds as whole microseconds, at most a billion seconds, or raise naming `what`."""
    try:
        if seconds >= 0:
            # Rounded: 0.514871 s times 1e6 is a little less than 514871.
            return round(min(seconds, 1e9) * 1e6)
    except TypeError:
        raise InvalidTypeError(f"{what} is a number of seconds, not {quoted(seconds)}") from None
    raise InvalidValueError(f"{what} is a number of seconds from 0 on, not {quoted(seconds)}")


def waits_us(max_wait: float | None, not_before: float) -> dict[str, int | None]:
    """The bounds of a slot, as an `Operation` has them."""
    most_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
    return {"max_wait_us": most_us, "not_before_us": seconds_us(not_before, "not_before")}


def ttl_us(ttl: float) -> int:
    """How long a reservation holds: seconds as microseconds, at most a day, or raise."""
    holds_us = seconds_us(ttl, "ttl")
    if not 1 <= holds_us <= DAY_US:
        raise InvalidValueError(
            f"ttl is how many seconds a reservation holds, a microsecond to a day, not {quoted(ttl)}"
        )
    return holds_us


def typed(error: TypeError, *names: object) -> TypeError:
    """The TypeError of an unhashable name as an `InvalidTypeError`; capline's own errors pass through."""
    if isinstance(error, CaplineError):
        return error
    for name in names:
        if name is not None and not isinstance(name, str):
            return InvalidTypeError(f"policy, segment and channel are names, not {quoted(name)}")
    return error


def count_of(values: Sequence[Any] | NDArray[Any], what: str) -> int:
    """How many values there are; raises naming `what` if they are not a list or an array."""
    sized = not isinstance(values, (str, bytes)) and hasattr(values, "__len__") and hasattr(values, "__iter__")
    if not sized or getattr(values, "ndim", 1) == 0:
        raise InvalidTypeError(f"{what} come as a list or an array, not {quoted(values)}{_one_by_one(values)}")
    return len(values)


def check_iterable(values: Iterable[T], what: str) -> Iterable[T]:
    """Return the iterable; raises naming `what` if it is none."""
    if not hasattr(values, "__iter__"):
        raise InvalidTypeError(f"{what} come one by one out of an iterable, not {quoted(values)}")
    return values


def check_attempt(attempt: Attempt) -> Attempt:
    """Return the attempt; raises if it is not an `Attempt`."""
    if not isinstance(attempt, Attempt):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"an attempt is like Attempt('promo', 'user:42'), not {quoted(attempt)}")
    return attempt


def _one_by_one(values: object) -> str:
    return "; make a list of it first" if hasattr(values, "__next__") else ""


def check_subjects(
    subjects: Sequence[Subject] | NDArray[np.integer[Any]],
) -> tuple[list[Subject] | NDArray[np.integer[Any]], dict[int, CaplineError]]:
    """The subjects as a list, or as a 64-bit array; and the errors of bad ones by row."""
    if isinstance(subjects, np.ndarray):
        if subjects.ndim != 1 or (subjects.size and subjects.dtype.kind not in "iu"):
            raise InvalidTypeError(
                f"an array of subjects has one dimension of integers, not {subjects.ndim} of {subjects.dtype}; "
                "give text as a list"
            )
        array = subjects.astype(np.uint64 if subjects.dtype.kind == "u" else np.int64, copy=False)
        negative = np.flatnonzero(array < 0) if array.dtype.kind == "i" else ()
        return array, {int(row): _fault(int(array[row])) for row in negative}
    checked = list(subjects)
    errors: dict[int, CaplineError] = {}
    for row, subject in enumerate(checked):
        try:
            checked[row] = check_subject(subject)
        except CaplineError as error:
            errors[row] = error
    return checked, errors


def check_kinds(
    segment: str | Sequence[str | None] | None,
    zone: str | Sequence[str | None] | None,
    codes: Sequence[int] | NDArray[np.integer[Any]] | None,
    rows: int,
) -> tuple[tuple[str | None, ...], tuple[str | None, ...], NDArray[np.uint16] | None]:
    """Segments and zones, as many of each, and the codes that index both; without codes, one of each for all rows.

    `codes` index lists of names; without `codes` a list has one name for each row.
    """
    listed = {
        what: None if name is None or isinstance(name, str) else _names(name, what)
        for what, name in (("segment", segment), ("zone", zone))
    }
    lengths = {len(names) for names in listed.values() if names is not None}
    points: NDArray[np.uint16] | None = None
    if codes is not None:
        if not lengths:
            raise InvalidTypeError("codes point into a list of names: give it as segment=[...] or zone=[...]")
        if len(lengths) > 1:
            raise InvalidValueError("segment and zone are lists of different lengths; a code points into both")
        points = check_codes(codes, rows, *lengths)
    elif lengths:
        listed, points = _coded(listed, rows)
    # Where there is no row there may be no name either.
    listed = {what: names if names is None or rows else (names or (None,)) for what, names in listed.items()}
    kinds = max([len(names) for names in listed.values() if names is not None], default=1)
    segments, zones = (
        names if names is not None else (name if isinstance(name, str) else None,) * kinds
        for names, name in zip(listed.values(), (segment, zone), strict=True)
    )
    return segments, zones, points


Kept = tuple[int | tuple[int, ...], ...]


def check_keeps(keep_free: Any, rows: int) -> tuple[Kept, NDArray[np.intp] | None]:
    """What must stay free: as many distinct values as there are, and the code of each row; no codes: one for all rows.

    It is a number for all rows, a number for each, or a row of numbers for each (or one such row for all), one a limit.
    """
    if not hasattr(keep_free, "__len__") or isinstance(keep_free, (str, bytes)):
        return (check_cost(keep_free, 0, "keep_free"),), None
    try:
        array = np.asarray(keep_free)
    except ValueError:
        array = np.empty(0)  # rows of several lengths
    rows_of = {1: (rows,), 2: (1, rows)}.get(array.ndim, ())
    if array.size and (len(array) not in rows_of or array.dtype.kind not in "iu"):
        array = np.empty(0)
    if not array.size and rows:
        raise InvalidTypeError(
            "keep_free is a number for all rows, an array with one for each, or one with a row of numbers for each, "
            f"one a limit, not {quoted(keep_free)}"
        )
    for end in (array.min(), array.max()) if array.size else ():
        check_cost(int(end), 0, "keep_free")
    codes = np.zeros(len(array), np.intp)
    for column in array.reshape(len(array), -1).T if array.size else ():
        _, places = _distinct(column.astype(np.int64))
        codes = _distinct(codes * (int(places.max()) + 1) + places)[1]
    row_of = np.zeros(int(codes.max(initial=0)) + 1, np.intp)
    row_of[codes] = np.arange(len(array))
    values: list[Any] = array[row_of].tolist() if array.any() else [0]
    keeps: Kept = tuple([tuple(value) if array.ndim > 1 and array.any() else value for value in values])
    return keeps, codes if len(keeps) > 1 else None


def crossed(
    kinds: Sequence[tuple[Any, ...]], points: NDArray[np.uint16] | None, keeps: Kept, kept: NDArray[np.intp] | None
) -> tuple[list[tuple[Any, ...]], NDArray[np.uint16] | None]:
    """The kinds of rows, each with what it keeps free, and the code of each row."""
    if kept is None and points is not None and not isinstance(keeps[0], int):
        kept = np.zeros(
            len(points), np.intp
        )  # such a list is for the segments of these rows, not for all that are named
    if kept is None:
        return [(*kind, keeps[0]) for kind in kinds], points
    distinct, codes = _distinct(kept if points is None else points * np.intp(len(keeps)) + kept)
    if len(distinct) > MOST_CODES:
        raise InvalidValueError(
            f"{len(distinct)} kinds of segment, zone and keep_free in one call; at most {MOST_CODES}"
        )
    return [(*kinds[pair // len(keeps)], keeps[pair % len(keeps)]) for pair in distinct.tolist()], codes.astype(
        np.uint16
    )


def _distinct(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The distinct values in their order, and the place of each among them; whole numbers from 0 on."""
    top = int(values.max())
    if top >= MOST_CODES << 4:
        return np.unique(values, return_inverse=True)
    seen = np.zeros(top + 1, np.bool_)
    seen[values] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[values]


def _names(names: Sequence[str | None], what: str) -> tuple[str | None, ...]:
    count_of(names, f"names of a {what}")
    listed = tuple(names)
    wrong = next((row for row, name in enumerate(listed) if not (name is None or isinstance(name, str))), None)  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
    if wrong is not None:
        raise InvalidTypeError(f"{what} number {wrong} is a name or None, not {quoted(listed[wrong])}")
    return listed


def _coded(
    listed: dict[str, tuple[str | None, ...] | None], rows: int
) -> tuple[dict[str, tuple[str | None, ...] | None], NDArray[np.uint16]]:
    """Lists with one name for each row, as distinct names and codes."""
    for what, names in listed.items():
        if names is not None and len(names) != rows:
            raise InvalidValueError(
                f"{len(names)} names of a {what} for {rows} subjects: give one for all, one for each, "
                "or a list and codes that point into it"
            )
    columns = [names for names in listed.values() if names is not None]
    number: dict[tuple[str | None, ...], int] = {}
    points = np.fromiter((number.setdefault(kind, len(number)) for kind in zip(*columns, strict=True)), np.int64, rows)
    kinds = iter(zip(*number, strict=True) if number else [()] * len(columns))
    coded = {what: None if names is None else next(kinds) for what, names in listed.items()}
    return coded, check_codes(points, rows, len(number))


def check_codes(codes: Sequence[int] | NDArray[np.integer[Any]], rows: int, names: int) -> NDArray[np.uint16]:
    """The codes as an array, each pointing into the list of segments or zones, or raise."""
    count_of(codes, "codes")
    try:
        array = np.asarray(codes)
    except ValueError:
        raise InvalidTypeError(f"codes are whole numbers, not {quoted(codes)}") from None
    if names > MOST_CODES:
        raise InvalidValueError(f"{names} segments in one call; at most {MOST_CODES}")
    if array.ndim != 1 or len(array) != rows:
        raise InvalidValueError(f"{len(array)} codes for {rows} subjects: one code for each")
    if rows and (array.dtype.kind not in "iu" or int(array.min()) < 0 or int(array.max()) >= names):
        raise InvalidValueError(f"codes point into the list of {names} segments: integers from 0 to {names - 1}")
    return array.astype(np.uint16, copy=False)


def _fault(subject: int) -> CaplineError:
    try:
        check_subject(subject)
    except CaplineError as error:
        return error
    raise ValueError(f"{subject} is a fine subject")
