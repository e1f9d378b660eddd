"""A batch in columns: a caller's arguments, checked, and the answers put back in their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from capline.limiter.arguments.checks import check_keeps, check_kinds, check_subjects, count_of, crossed
from capline.model.attempt import check_cost, check_id
from capline.model.errors import CaplineError
from capline.model.subject import Subject
from capline.store.columns import Decisions, plain
from capline.store.receipts import asked_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray  # noqa: TC004 - `AttemptColumns` is never decoded, so nobody asks for its types
else:
    from capline.model.arrays import np


_ZERO = 0


class AttemptColumns(msgspec.Struct, frozen=True):
    """The valid rows of a batch: `good` are their indices among all `rows` (None: all). `errors` has the other rows.

    `segments[codes[i]]` is the segment of `subjects[i]`, `zones[codes[i]]` its zone, and `keeps[codes[i]]` what must
    stay free; without codes the first of each is for all rows. Names that came one for each row are turned into codes.
    """

    policy: str
    segments: tuple[str | None, ...]
    zones: tuple[str | None, ...]
    keeps: tuple[int | tuple[int, ...], ...]
    channel: str | None
    subjects: list[Subject] | NDArray[np.integer[Any]]
    codes: NDArray[np.uint16] | None
    cost: int
    receipt: str | None
    asked: bytes
    """A digest of the batch as the caller passed it, if there is a receipt."""
    rows: int
    good: NDArray[np.intp] | None
    errors: dict[int, CaplineError]

    def only(self, rows: NDArray[np.intp]) -> AttemptColumns:
        """Some of the valid rows as a batch of their own, without a receipt."""
        codes = None if self.codes is None else self.codes[rows]
        return msgspec.structs.replace(
            self, subjects=_picked(self.subjects, rows), codes=codes, receipt=None, rows=len(rows), good=None, errors={}
        )


def columns_of(
    policy: str,
    subjects: Sequence[Subject] | NDArray[np.integer[Any]],
    segment: str | Sequence[str | None] | None,
    codes: Sequence[int] | NDArray[np.integer[Any]] | None,
    channel: str | None,
    cost: int,
    zone: str | Sequence[str | None] | None,
    receipt: str | None,
    keep_free: Any = 0,
    *,
    keyed: Callable[[Subject], Subject] | None,
    fill: Callable[..., Any] | None = None,
) -> AttemptColumns:
    """A caller's arguments, checked, the subjects as the store gets them; raises for what makes every row invalid.

    `fill` looks up the segments that are not named: `SegmentLookup.fill`.
    """
    if receipt is not None:
        check_id(receipt)
    cost = check_cost(cost)
    rows = count_of(subjects, "subjects")
    segments, zones, points = check_kinds(segment, zone, codes, rows)
    checked, errors = check_subjects(subjects)
    kinds: list[tuple[Any, ...]] = [*zip(segments, zones, strict=True)]
    if keep_free is not _ZERO:
        keeps, kept = check_keeps(keep_free, rows)
        if any(keeps):
            kinds, points = crossed(kinds, points, keeps, kept)
    named, others = points, [kind[1:] for kind in kinds]
    if fill is not None and rows and None in segments:
        segments, others, points, faults = fill(checked, errors, [kind[0] for kind in kinds], others, points)
        errors = {**errors, **faults}
    else:
        segments = tuple(kind[0] for kind in kinds)
    zones, keeps = tuple(other[0] for other in others), tuple(other[1] if other[1:] else 0 for other in others)
    good = None
    if errors:
        good = np.array([row for row in range(len(checked)) if row not in errors], np.intp)
        checked = _picked(checked, good)
        points, named = (None if column is None else column[good] for column in (points, named))
    if keyed is not None:
        checked = [keyed(subject) for subject in plain(checked)]
    asked = b"" if receipt is None else asked_digest((policy, channel, cost), kinds, named, checked)
    return AttemptColumns(
        policy, segments, zones, keeps, channel, checked, points, cost, receipt, asked, rows, good, errors
    )


def spread(columns: AttemptColumns, part: Decisions) -> Decisions:
    """The answers among all rows of the caller; an invalid row has its error."""
    good = columns.good
    if good is None:
        return part
    answers = Decisions.unanswered(part.limits, columns.rows)
    answers.place(good, part)
    answers.errors = {**columns.errors, **{int(good[row]): error for row, error in part.errors.items()}}
    answers.origin = part.origin
    answers.origins = {int(good[row]): origin for row, origin in part.origins.items()}
    return answers


def _picked(
    subjects: list[Subject] | NDArray[np.integer[Any]], rows: NDArray[np.intp]
) -> list[Subject] | NDArray[np.integer[Any]]:
    return subjects[rows] if isinstance(subjects, np.ndarray) else [subjects[row] for row in rows]
