"""Reservations: hits that end by themselves unless they are committed (decision 14).

A reserved hit is a hit like any other, in every log of the attempt. Beside the logs stands a record of what is pending,
itself kept as a log:

    stamp    the reserved hit's
    units    how long it holds, in microseconds from its stamp on; 0 once it is committed

The rule: a log is read as it is at the attempt's time, without the hits whose reservation has ended by then. So every
verb begins with `end_all`, and then does what it does without reservations. Nothing is written for that alone: the next
hit that is recorded also removes the ended ones, and raises the log's time past them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.limit import LARGEST_QUOTA
from capline.window.charge import too_many
from capline.window.log import NEVER
from capline.window.reading import time_of
from capline.window.rule import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from capline.model.decision import Decision
    from capline.window.bound_log import BoundLog, OpenLog

__all__ = ["commit", "end_all", "ended", "reserve", "take_along"]


def ended(record: OpenLog, time_us: int) -> list[int]:
    """The stamps of the reserved hits that hold no longer at this time. Costs O(pending)."""
    return [stamp_us for stamp_us, ends_us in _pending(record) if ends_us <= time_us]


def end_all(logs: Sequence[BoundLog], record: OpenLog, now_us: int, copy: Callable[[OpenLog], OpenLog]) -> None:
    """Take the hits whose reservation has ended out of the logs, the policy's own first, or out of copies of them."""
    stamps_us = ended(record, max(now_us, logs[0].log.high_water_us))
    for bound in logs if stamps_us else ():
        found = [stamp_us for stamp_us in stamps_us if bound.log.units_at(stamp_us)]
        if found:
            bound.log, bound.rewrites = copy(bound.log), True
        for stamp_us in found:
            bound.log.give_back(stamp_us, bound.log.units_at(stamp_us))


def take_along(logs: Sequence[BoundLog]) -> None:
    """After a refund or settlement that changes one log: remove what has ended from all of them."""
    for bound in logs if any(bound.changed for bound in logs) else ():
        bound.changed = bound.changed or bound.rewrites


def reserve(
    logs: Sequence[BoundLog],
    record: OpenLog,
    now_us: int,
    ttl_us: int,
    fingerprint: int = 0,
    *,
    alone: bool = True,
) -> Decision:
    """Decide one attempt; a hit that is recorded holds for `ttl_us` from its stamp on, unless it is committed.

    An id that is known gets its first answer, and its hit stays as it is, reserved or not. `alone`: the policy has no
    other logs, so what has ended is removed everywhere. Raises `InvalidValueError`, and records nothing, where more is
    pending than the record can count: 100,000 hits that are reserved for a day.
    """
    if record.units_after(NEVER) + ttl_us > LARGEST_QUOTA:
        raise too_many(logs[0].cost)
    time_us = time_of(logs, now_us)
    decision = attempt(logs, now_us, fingerprint)
    if decision.hit is not None and logs[0].changed:
        _forget(record, time_us, time_us - logs[0].log_limits.retention_us, alone=alone)
        record.record(decision.hit, ttl_us, decision.hit)
    return decision


def commit(own: BoundLog, record: OpenLog, stamp_us: int, now_us: int) -> bool:
    """Make the reserved hit with this stamp an ordinary one; True if it counts, also when it was committed before.

    False, and nothing changed, if its reservation has ended, or it was given back or is older than the widest window.
    """
    if stamp_us <= max(now_us, own.log.high_water_us) - own.log_limits.retention_us or not own.log.units_at(stamp_us):
        return False
    holds_us = record.units_at(stamp_us)
    if holds_us:
        record.give_back(stamp_us, holds_us)
    return True


def _pending(record: OpenLog) -> Iterator[tuple[int, int]]:
    """Each reserved hit: its stamp, and when it ends."""
    stamp_us = record.next_stamp(0)
    while stamp_us != NEVER:
        holds_us = record.units_at(stamp_us)
        if holds_us:
            yield stamp_us, stamp_us + holds_us
        stamp_us = record.next_stamp(stamp_us + 1)


def _forget(record: OpenLog, time_us: int, horizon_us: int, *, alone: bool) -> None:
    """Forget the oldest entries, up to the first that still says something."""
    keep_us = next(
        (
            stamp_us
            for stamp_us, ends_us in _pending(record)
            if stamp_us > horizon_us and not (alone and ends_us <= time_us)
        ),
        record.last_us() + 1,
    )
    record.trim(keep_us - 1)
