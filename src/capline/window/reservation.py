"""Reservations: hits that end by themselves unless they are committed (decision 14).

A reserved hit is a hit like any other, in every log of the attempt. Beside the logs stands a record of what is pending,
itself kept as a log:

    stamp    the reserved hit's
    units    how long it holds, in microseconds from its stamp on; 0, or no such entry, once it is committed
    id       32 bits of the name of the last log that has the hit (its channel's), then 32 of the stamp; 0: not known

The rule: a log is read as it is at the attempt's time, without the hits whose reservation has ended by then. So every
verb begins with `end_all`, and then does what it does without reservations. Nothing is written for that alone: the next
hit that is recorded also removes the ended ones, and raises the log's time past them. The record then forgets those
that are out of every log that has them; the others stay until their channel's log is written, or until they age.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from capline.model.decision import Decision
from capline.model.limit import LARGEST_QUOTA
from capline.window.bound_log import BoundLog, OpenLog
from capline.window.charge import too_many
from capline.window.rule import attempt


class Pending(NamedTuple):
    """One entry of the record."""

    stamp_us: int
    holds_us: int
    mark: int

    def is_of(self, logs: Sequence[BoundLog]) -> bool:
        """Whether these are all the logs that have the hit, the policy's own log given."""
        return any(self.mark == mark_of(bound.log_limits.log, self.stamp_us) for bound in logs)


def pending_in(recorded: Iterable[tuple[int, int, int]]) -> list[Pending]:
    """The record's entries that say something, from its log's (stamp, units, id)."""
    return [entry for entry in map(Pending._make, recorded) if entry.holds_us]


def ended(pending: Iterable[Pending], time_us: int) -> list[Pending]:
    """The entries whose hits hold no longer at this time."""
    return [entry for entry in pending if entry.stamp_us + entry.holds_us <= time_us]


def end_all(
    logs: Sequence[BoundLog], pending: Sequence[Pending], now_us: int, copy: Callable[[OpenLog], OpenLog]
) -> list[Pending]:
    """Take the hits whose reservation has ended out of the logs, the policy's own first, or out of copies of them.

    Returns what the record still has to say once these logs are kept as they are now. Costs O(pending).
    """
    time_us = max(now_us, logs[0].log.high_water_us)
    over = ended(pending, time_us)
    for bound in logs if over else ():
        found = [entry.stamp_us for entry in over if bound.log.units_at(entry.stamp_us)]
        if found:
            bound.log, bound.rewrites = copy(bound.log), True
        for stamp_us in found:
            bound.log.give_back(stamp_us, bound.log.units_at(stamp_us))
    horizon_us = time_us - logs[0].log_limits.retention_us
    gone = {entry for entry in over if entry.stamp_us <= horizon_us or entry.is_of(logs)}
    return [entry for entry in pending if entry not in gone]


def end_and_carry(
    logs: Sequence[BoundLog],
    pending: Sequence[Pending],
    now_us: int,
    copy: Callable[[OpenLog], OpenLog],
    carry: Callable[[], None],
) -> list[Pending]:
    """`end_all`, and what one form takes over from the other after a change of algorithm (`carry`).

    Numbers take over what hits count, so those that have ended go first; hits that take over numbers have their places
    before any of them ends.
    """
    to_numbers = logs[0].log_limits.keeps == "ids"
    if to_numbers:
        pending = end_all(logs[:1], pending, now_us, copy)
    carry()
    return [*pending] if to_numbers else end_all(logs, pending, now_us, copy)


def take_along(logs: Sequence[BoundLog]) -> None:
    """After a refund or settlement that changes one log: remove what has ended from all of them."""
    for bound in logs if any(bound.changed for bound in logs) else ():
        bound.changed = bound.changed or bound.rewrites


def forget(logs: Sequence[BoundLog], pending: list[Pending], stamp_us: int) -> None:
    """After a refund: the record says nothing more of a hit that is out of every log that had it."""
    pending[:] = [
        entry
        for entry in pending
        if entry.stamp_us != stamp_us or logs[0].log.units_at(stamp_us) or not entry.is_of(logs)
    ]


def reserve(
    logs: Sequence[BoundLog], pending: list[Pending], now_us: int, ttl_us: int, fingerprint: int = 0
) -> Decision:
    """Decide one attempt; a hit that is recorded holds for `ttl_us` from its stamp on, unless it is committed.

    `pending` is what `end_all` returned, and gets an entry more. An id that is known gets its hit, which stays
    as it is, reserved or not. Raises `InvalidValueError`, and records nothing, where more is pending than the
    record can count: 100,000 hits that are reserved for a day.
    """
    if sum(entry.holds_us for entry in pending) + ttl_us > LARGEST_QUOTA:
        raise too_many(logs[0].cost)
    decision = attempt(logs, now_us, fingerprint)
    if decision.hit is not None and logs[0].changed:
        pending.append(Pending(decision.hit, ttl_us, mark_of(logs[-1].log_limits.log, decision.hit)))
    return decision


def commit(own: BoundLog, pending: list[Pending], stamp_us: int, now_us: int) -> bool:
    """Make the reserved hit with this stamp an ordinary one; True if it counts, also when it was committed before.

    False, and nothing changed, if its reservation has ended, or it was given back or is older than the widest window.
    """
    time_us = max(now_us, own.log.high_water_us)
    if stamp_us <= time_us - own.log_limits.retention_us or not own.log.units_at(stamp_us):
        return False
    for entry in [entry for entry in pending if entry.stamp_us == stamp_us]:
        if stamp_us + entry.holds_us <= time_us:
            return False
        pending.remove(entry)
    return True


def log_mark(log: str) -> int:
    """What the record says of a log: 32 bits of its name."""
    return crc32(log.encode())


def mark_of(log: str, stamp_us: int) -> int:
    """What an entry says of the last log that has the hit. The stamp makes it one entry's own."""
    return log_mark(log) << 32 | stamp_us & 0xFFFFFFFF
