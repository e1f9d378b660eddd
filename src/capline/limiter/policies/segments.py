"""Looks subjects' segments up for a limiter: one by one, and for whole batches.

    segments="s3://bucket/segments" | "segments/today" | a SegmentWatch | a Snapshot

The rule: a subject counts as in the segment that the snapshot of this moment has it in. One in no segment, or in one
that the policy does not list, has the policy's plain limits. An id that could not be in the segments at all (text where
the ids are numbers, a number that is too large) is an error, never "in no segment".

Cost: one attribute and some bitmap probes, no I/O: a microsecond, for text ids some ten. Opening an address fetches it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from capline.limiter.arguments.checks import MOST_CODES
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError, quoted
from capline.model.subject import subject_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.policy import Policy
    from capline.model.subject import Subject
    from capline.segment import Snapshot, WatchStatus
else:
    from capline.model.arrays import np


class SegmentSource(Protocol):
    """What has segments; `capline.segment.SegmentWatch` is one."""

    @property
    def current(self) -> Snapshot:
        """The snapshot of this moment."""
        ...

    @property
    def served(self) -> tuple[Snapshot, str]:
        """That, and the name of its version."""
        ...

    @property
    def status(self) -> WatchStatus:
        """Its figures."""
        ...

    def segment_of(self, id: int | str) -> str | None:
        """The segment that the id is in now."""
        ...


class SegmentLookup:
    """The segments of one limiter. What was opened here from an address is closed with it; a watch is the caller's."""

    def __init__(self, segments: str | Path | SegmentSource | Snapshot) -> None:
        self.source, self._opened = _source(segments)
        self._missing: tuple[object, object, dict[str, list[str]]] = None, None, {}
        self.source.current  # noqa: B018 - raises while there is none

    def close(self) -> None:
        """Stop following; may wait for a request that is under way."""
        if self._opened is not None:
            self._opened.stop()

    def check(self, policies: Mapping[str, Policy]) -> None:
        """Warn where a policy lists a segment that there is not: it may be misspelt, or be published later."""
        import logging  # noqa: PLC0415 - loaded where there is something to say

        for policy, names in self.missing(policies).items():
            served = self.source.current
            logging.getLogger("capline").warning(
                "policy %r has limits for segment %r, which the segments of version %s lack; there are: %s",
                policy,
                names[0],
                served.version,
                ", ".join(served.names) or "none",
            )

    def missing(self, policies: Mapping[str, Policy]) -> dict[str, list[str]]:
        """The segments that policies list and the served version lacks, by policy; found once for both."""
        served, told = self.source.current, self._missing
        if told[0] is not policies or told[1] is not served:
            names, listing = frozenset(served.names), [policy for policy in policies.values() if policy.by_segment]
            lacking = {policy.name: [name for name in policy.by_segment if name not in names] for policy in listing}
            told = self._missing = policies, served, {name: those for name, those in lacking.items() if those}
        return told[2]

    def segment_of(self, policy: Policy, subject: Subject) -> str | None:
        """The segment whose limits bind the subject; None for the policy's plain limits."""
        snapshot = self.source.current
        fault = _fault(snapshot, subject)
        if fault is not None:
            raise fault
        name = snapshot.segment_of(subject)
        return name if name in policy.by_segment else None

    def codes(
        self, policy: Policy, subjects: Sequence[Subject] | NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.int64], dict[int, CaplineError]]:
        """`segment_of` for many, as indices into (None, *policy.by_segment); and the errors by row."""
        snapshot = self.source.current
        codes, errors = segment_codes(snapshot, subjects)
        index_of = {name: index for index, name in enumerate(policy.by_segment, 1)}
        known = np.array([0, *(index_of.get(name, 0) for name in snapshot.names)], np.int64)
        return known[codes], errors

    def fill(
        self,
        policy: Policy,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        skip: Mapping[int, CaplineError],
        segments: tuple[str | None, ...],
        zones: tuple[str | None, ...],
        points: NDArray[np.uint16] | None,
    ) -> tuple[tuple[str | None, ...], tuple[str | None, ...], NDArray[np.uint16], dict[int, CaplineError]]:
        """Segments, zones, codes and errors of a batch, its unnamed segments looked up except in the rows to `skip`.

        Equal segments of equal subjects give equal codes under any snapshot, since a receipt compares them.
        """
        kinds = np.zeros(len(subjects), np.int64) if points is None else points.astype(np.int64)
        unnamed = np.array([name is None for name in segments], np.bool_)[kinds]
        unnamed[list(skip)] = False
        rows = np.flatnonzero(unnamed)
        named = (None, *policy.by_segment)
        pairs = kinds * len(named)
        if rows.size:
            part = subjects[rows] if isinstance(subjects, np.ndarray) else [subjects[row] for row in rows.tolist()]
            found, errors = self.codes(policy, part)
            pairs[rows] += found
        else:
            errors = {}
        distinct, codes = np.unique(pairs, return_inverse=True)
        if len(distinct) > MOST_CODES:
            raise InvalidValueError(f"{len(distinct)} kinds of segment and zone in one call; at most {MOST_CODES}")
        numbers: list[int] = distinct.tolist()
        asked = [divmod(pair, len(named)) for pair in numbers] or [(0, 0)]
        return (
            tuple(segments[kind] if segments[kind] is not None else named[found] for kind, found in asked),
            tuple(zones[kind] for kind, _ in asked),
            codes.astype(np.uint16),
            {int(rows[row]): error for row, error in errors.items()},
        )


def segment_codes(
    snapshot: Snapshot, subjects: Sequence[Subject] | NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], dict[int, CaplineError]]:
    """Each valid subject's segment, as an index into (None, *snapshot.names); and by row why others can be in none."""
    if isinstance(subjects, np.ndarray):
        good, errors, wanted = _array(snapshot, subjects)
    else:
        faults = [_fault(snapshot, subject) for subject in subjects]
        errors = {row: fault for row, fault in enumerate(faults) if fault is not None}
        good = np.array([row for row, fault in enumerate(faults) if fault is None], np.intp)
        listed: list[Any] = [subjects[row] for row in good.tolist()]
        wanted = listed if snapshot.kind == "text" else np.array(listed, np.uint64)
    found = np.zeros(len(subjects), np.int64)
    if good.size:
        found[good] = snapshot.codes(wanted)
    return found, errors


def _source(segments: str | Path | SegmentSource | Snapshot) -> tuple[SegmentSource, Any]:
    """The source of segments, and what to stop when the limiter is closed."""
    from capline.segment import FixedSegments, Snapshot, open_segments  # noqa: PLC0415 - brings roaring bitmaps

    if isinstance(segments, (str, Path)):
        opened = open_segments(segments)
        return opened, opened
    if isinstance(segments, Snapshot):
        return FixedSegments(segments), None
    if not hasattr(type(segments), "segment_of"):  # by the type: `current` of a watch raises while there is none
        raise InvalidTypeError(
            f"segments is an address like 's3://bucket/segments', a snapshot's directory, or a SegmentWatch, not "
            f"{quoted(segments)}"
        )
    return segments, None


def _fault(snapshot: Snapshot, subject: Subject) -> CaplineError | None:
    """Why the subject can be in no segment at all."""
    if snapshot.ids is not None:
        if isinstance(subject, str):
            return None
        return InvalidValueError(
            f"subject {subject_text(subject)} is a number, and the segments have text ids: name its segment"
        )
    if isinstance(subject, str):
        return InvalidValueError(
            f"subject {subject_text(subject)} is text, and the segments have numbers: name its segment"
        )
    if subject > snapshot.largest:
        return InvalidValueError(
            f"subject {subject_text(subject)} is above {snapshot.largest}, which no id of these segments is: "
            "name its segment"
        )
    return None


def _array(
    snapshot: Snapshot, subjects: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.intp], dict[int, CaplineError], Any]:
    """The rows of an array that can be in segments, the errors of the others, and the ids of the first."""
    if snapshot.ids is not None:
        beyond = np.ones(len(subjects), np.bool_)
    elif subjects.dtype.kind == "u":
        beyond = subjects > np.uint64(snapshot.largest)
    else:
        beyond = subjects > min(snapshot.largest, np.iinfo(np.int64).max)
    errors: dict[int, CaplineError] = {}
    for row in np.flatnonzero(beyond).tolist():
        fault = _fault(snapshot, int(subjects[row]))
        if fault is not None:
            errors[row] = fault
    good = np.flatnonzero(~beyond)
    return good, errors, subjects[good]
