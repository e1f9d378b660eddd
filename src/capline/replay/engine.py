"""The replay engine: events of one instant, as a batch, to the limiter; time is set by the events, never read.

The rule: it adds nothing to what the limiter decides. A replay on any store is `decide` called row by row with a clock
that shows each row's time; batching is speed alone, since a batch equals its attempts one by one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from capline.replay.events import Event, ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from capline.limiter.limiter import Limiter
    from capline.model.clock import ManualClock
    from capline.model.limit import Limit
    from capline.model.subject import Subject
    from capline.store.columns import Decisions

__all__ = ["Batch", "Due", "Tally", "batches_of", "replay"]

FEW_KINDS = 16

MOST_ROWS = 10_000
"""Rows in one batch out of a file: a file whose rows all have one time is still read as a stream."""


class Due(Protocol):
    """What the engine needs of a batch; `codes[i]` points into the lists of segments and zones that it was given."""

    @property
    def at_us(self) -> int:
        """The instant of every row, microseconds since 1970."""
        ...

    @property
    def subjects(self) -> Sequence[Subject] | NDArray[np.integer[Any]]:
        """Who asks, in order."""
        ...

    @property
    def codes(self) -> Sequence[int] | NDArray[np.integer[Any]]:
        """The segment, and the zone, of each."""
        ...


_DueT = TypeVar("_DueT", bound=Due)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one instant out of a file."""

    at_us: int
    subjects: list[Subject]
    codes: list[int]


def replay(
    limiter: Limiter,
    clock: ManualClock,
    policy: str,
    segments: Sequence[str | None],
    batches: Iterable[_DueT],
    zones: Sequence[str | None] | None = None,
) -> Iterator[tuple[_DueT, Decisions]]:
    """Decide each batch at its instant and yield it with its answers, consuming on the limiter's store.

    `clock` is the limiter's own. `segments`, and `zones` beside them (None: all are in the policy's), may grow while
    batches come. Raises `ReplayError` for a batch that is
    earlier than the one before, and whatever the limiter raises. Costs what `decide_many` costs: 2 to 4 µs a
    row in large batches, some 20 µs where every row has an instant of its own.
    """
    for batch in batches:
        step_us = batch.at_us - clock.now_us()
        if step_us < 0:
            raise ReplayError(
                f"a batch at {batch.at_us} comes {-step_us} microseconds too late; give batches in order of time"
            )
        clock.advance_us(step_us)
        decisions = _decided(limiter, policy, batch, segments, zones)
        for error in decisions.errors.values():
            raise error
        yield batch, decisions


def _decided(
    limiter: Limiter, policy: str, batch: Due, segments: Sequence[str | None], zones: Sequence[str | None] | None
) -> Decisions:
    if len(segments) <= FEW_KINDS:
        return limiter.decide_many(policy, batch.subjects, segment=segments, codes=batch.codes, zone=zones)
    # Each kind is looked up in each call, so only those are told that there are.
    used, points = np.unique(np.asarray(batch.codes), return_inverse=True)
    kinds: list[int] = used.tolist()
    return limiter.decide_many(
        policy,
        batch.subjects,
        segment=[segments[code] for code in kinds],
        codes=points,
        zone=None if zones is None else [zones[code] for code in kinds],
    )


def batches_of(
    events: Iterable[Event], segments: list[str | None], zones: list[str | None] | None = None
) -> Iterator[Batch]:
    """Group events in order of time by instant; segments not met before are added to the list.

    With `zones`, a list beside `segments`, a code stands for a pair of both.
    """
    code_of = {pair: code for code, pair in enumerate(zip(segments, zones or [None] * len(segments), strict=True))}
    for at_us, group in groupby(events, key=lambda event: event.at_us):
        while rows := list(islice(group, MOST_ROWS)):
            pairs = [(row.segment, None if zones is None else row.zone) for row in rows]
            for pair in pairs:
                if pair not in code_of:
                    code_of[pair] = len(segments)
                    segments.append(pair[0])
                    if zones is not None:
                        zones.append(pair[1])
            yield Batch(at_us, [row.subject for row in rows], [code_of[pair] for pair in pairs])


class Tally:
    """Counts of a replay that grow with kinds and limits only: how many were asked, and who refused how many."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        """By code."""
        self.refused: Counter[tuple[int, Limit]] = Counter()
        """By code and binding limit."""
        self.first_us: int | None = None
        self.last_us = 0

    def add(self, batch: Due, decisions: Decisions) -> None:
        """Count one batch."""
        if self.first_us is None:
            self.first_us = batch.at_us
        self.last_us = batch.at_us
        codes = np.asarray(batch.codes)
        self.asked.update(codes.tolist())
        for row in np.flatnonzero(~decisions.allowed).tolist():
            self.refused[int(codes[row]), decisions.limits[decisions.limit_index[row]]] += 1

    def by_segment(self, segments: Sequence[str | None]) -> Tally:
        """The same with one code for each segment, the first that it has in this list."""
        own = {name: segments.index(name) for name in segments}
        tally = Tally()
        tally.first_us, tally.last_us = self.first_us, self.last_us
        for code, count in self.asked.items():
            tally.asked[own[segments[code]]] += count
        for (code, limit), count in self.refused.items():
            tally.refused[own[segments[code]], limit] += count
        return tally
