"""The replay engine: decides the events of one instant as a batch; the events set the clock.

The rule: it adds nothing to what the limiter decides. A replay on any store is `decide` called row by row with a clock
that shows each row's time; batching is speed alone, since a batch equals its attempts one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from capline.replay.events import ReplayError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from capline.limiter.limiter import Limiter
    from capline.model.clock import ManualClock
    from capline.model.subject import Subject
    from capline.store.columns import Decisions

__all__ = ["Due", "replay"]

FEW_KINDS = 16


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
    # Each kind is looked up in each call, so only those that occur are passed.
    used, points = np.unique(np.asarray(batch.codes), return_inverse=True)
    kinds: list[int] = used.tolist()
    return limiter.decide_many(
        policy,
        batch.subjects,
        segment=[segments[code] for code in kinds],
        codes=points,
        zone=None if zones is None else [zones[code] for code in kinds],
    )
