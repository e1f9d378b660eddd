"""How a hit is added to a log and taken off again, by what the log keeps: every hit, sums, a level, or ids alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.limit import LARGEST_QUOTA
from capline.window.counters import LevelReader, NumberReader
from capline.window.log import DENIED, NEVER, LogJoined

if TYPE_CHECKING:
    from capline.model.policy import LogLimits
    from capline.window.bound_log import BoundLog
    from capline.window.log import LogView


def record_hit(bound: BoundLog, time_us: int, stamp_us: int, fingerprint: int, units: int | None = None) -> None:
    """Record the hit in the log, in the way of the log's algorithm."""
    log, log_limits = bound.log, bound.log_limits
    units = bound.cost if units is None else units
    if log_limits.keeps == "ids" and not fingerprint:
        return
    # A hit raises the high-water mark to its own stamp; a slot in the future only to now.
    log.trim(time_us - log_limits.retention_us)
    last_us = log.last_us()
    reader = bound.readers[0] if bound.readers else None
    level = 0
    if isinstance(reader, LevelReader):
        stamp_us, level = reader.raised(log, stamp_us, units)
    high_water_us = stamp_us if stamp_us <= time_us + 1 else time_us
    # A sum of hits is no hit's: under `sliding_log` a refund gives none back for another.
    ahead_us = int(not (fingerprint or isinstance(reader, NumberReader)))
    if isinstance(reader, LevelReader):
        if last_us == NEVER:
            log.record(stamp_us, level, high_water_us)
        else:
            log.extend(stamp_us, level - log.units_at(last_us), high_water_us)
    elif fingerprint in (0, DENIED) and is_sum_of(log, log_limits, last_us, stamp_us + ahead_us, fingerprint):
        log.extend(stamp_us + ahead_us, units, high_water_us + (high_water_us == stamp_us and ahead_us))
    else:
        log.record(stamp_us, units, high_water_us, fingerprint)
    bound.changed = True


def view_after(bound: BoundLog, stamp_us: int) -> LogView:
    """The log as an answer to this hit reads it: the sum of hits that it joins moves behind it."""
    if bound.log_limits.keeps != "sums" or bound.named or isinstance(bound.readers[0], NumberReader):
        return bound.log
    joins = is_sum_of(bound.log, bound.log_limits, bound.log.last_us(), stamp_us + 1)
    return LogJoined(bound.log, stamp_us + 1) if joins else bound.log  # pyright: ignore[reportReturnType] - it has the rest of its log


def is_sum_of(log: LogView, log_limits: LogLimits, last_us: int, stamp_us: int, mark: int = 0) -> bool:
    """Whether the last hit is the sum that this one belongs to, of hits or of refusals. One with an id is in no sum."""
    if log_limits.keeps != "sums" or not NEVER < last_us < stamp_us:
        return False
    return last_us // log_limits.grain_us == stamp_us // log_limits.grain_us and log.name_of(last_us) == mark


def has_room(bound: BoundLog, time_us: int, stamp_us: int, units: int) -> bool:
    """Whether the log can count so many units more."""
    horizon_us = time_us - bound.log_limits.retention_us
    if bound.log_limits.keeps == "sums":
        return all(reader.fits_in(bound.log, stamp_us, units, horizon_us) for reader in bound.readers)
    return bound.log.units_after(horizon_us) + units <= LARGEST_QUOTA


def shift_units(bound: BoundLog, stamp_us: int, units: int, time_us: int, now_us: int) -> None:
    """Add so many units (may be negative) to the sum, or the level, that the hit with this stamp was added to."""
    log, reader = bound.log, bound.readers[0]
    if units < 0:
        give_back(bound, stamp_us, -units, now_us)
        return
    if stamp_us <= bound.carried_us:
        stamp_us = bound.carried_us
        bound.carried += units
    if isinstance(reader, LevelReader):
        record_hit(bound, time_us, time_us, 0, units)
    else:
        sum_us = _sum_of(bound, stamp_us)
        if sum_us != NEVER:
            log.amend(sum_us, log.units_at(sum_us) + units)
            bound.changed = True


def _sum_of(bound: BoundLog, stamp_us: int) -> int:
    """The stamp of the sum that the hit with this stamp was added to: just behind its newest, or its only one's."""
    grain_us = bound.log_limits.grain_us
    end_us = stamp_us - stamp_us % grain_us + grain_us
    at_us = bound.log.next_stamp(stamp_us)
    while at_us != NEVER and bound.log.name_of(at_us):
        at_us = bound.log.next_stamp(at_us + 1)
    return at_us if at_us < end_us else NEVER


def give_back(bound: BoundLog, stamp_us: int, cost: int, now_us: int) -> bool:
    """Take the cost off the sum, or the level, that the hit with this stamp was added to.

    A hit of before a change is in none, so it takes only of what was carried over then, and at most what is left of it.
    """
    log, log_limits = bound.log, bound.log_limits
    reader = bound.readers[0]
    if stamp_us <= bound.carried_us:
        cost, stamp_us = min(cost, bound.carried), bound.carried_us
        if not cost:
            return False
        bound.carried -= cost
    if isinstance(reader, LevelReader):
        last_us = log.last_us()
        rest = 0 if last_us == NEVER else log.units_at(last_us)
        if rest:
            lower_us, level = reader.lowered(log, max(now_us, log.high_water_us), cost)
            log.extend(lower_us, level - rest, 0)
            bound.changed = True
        return rest > 0
    if log.next_stamp(stamp_us) == stamp_us:
        bound.changed = log.give_back(stamp_us, log.units_at(stamp_us) if log.name_of(stamp_us) else cost)
        return bound.changed
    # A sum is stamped just behind its newest hit.
    end_us = stamp_us - stamp_us % log_limits.grain_us + log_limits.grain_us
    at_us = log.next_stamp(stamp_us)
    while at_us != NEVER and at_us < end_us and not bound.changed:
        bound.changed = not log.name_of(at_us) and log.give_back(at_us, cost)
        at_us = log.next_stamp(at_us + 1)
    return bound.changed
