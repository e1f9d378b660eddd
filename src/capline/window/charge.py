"""What was used already, and what becomes of a recorded hit.

charge   records units whatever the limits say
refund   gives a hit back; its stamp stays
settle   gives a hit, made as an estimate, the units that it really cost
"""

from collections.abc import Sequence

import msgspec

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.errors import InvalidValueError
from capline.window.answer import build_answer, parts_of, replayed_answer, stamp_from, time_of
from capline.window.bound_log import BoundLog
from capline.window.log import NEVER
from capline.window.recording import give_back, has_room, record_hit, shift_units


def charge(logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0) -> Decision:
    """Record the cost, whatever the limits say; the answer is as of after it.

    It is stamped now, before slots that are taken. Raises `InvalidValueError`, and records nothing, for more units than
    a log can count; `IdConflictError` if the id was recorded with another cost.
    """
    time_us = time_of(logs, now_us)
    known = replayed_answer(logs, fingerprint, time_us, now_us, slot=False)
    if known is not None:
        return known
    stamp_us = stamp_from(logs, time_us, NEVER)
    if stamp_us >= LATEST_US:
        raise too_many(logs[0].cost)
    record_all(logs, now_us, stamp_us, fingerprint)
    after = build_answer([(logs, stamp_us)], now_us)
    return msgspec.structs.replace(after, allowed=True, retry_after_us=0, hit=stamp_us)


def record_all(logs: Sequence[BoundLog], now_us: int, stamp_us: int, fingerprint: int) -> None:
    """Record a hit in all of these logs at the time of each, its id in the first; raises as `check_room` does."""
    parts = [(part, time_of(part, now_us)) for part in parts_of(logs, now_us)]
    for part, time_us in parts:
        check_room(part, time_us, stamp_us)
    for part, time_us in parts:
        for bound in part:
            record_hit(bound, time_us, stamp_us, fingerprint if bound is logs[0] else 0)


def check_room(logs: Sequence[BoundLog], time_us: int, stamp_us: int) -> None:
    """Raise `InvalidValueError` if one of these logs cannot count its cost more."""
    if not all(has_room(bound, time_us, stamp_us, bound.cost) for bound in logs):
        raise too_many(logs[0].cost)


class NoRoomError(InvalidValueError):
    """A cost that a log cannot count; in a batch the error of its row alone."""


def too_many(cost: int) -> NoRoomError:
    """The error of a cost that a log cannot count."""
    return NoRoomError(
        f"{cost} units are more than this log can count beside what it holds; ask for less, or in larger units"
    )


def refund(logs: Sequence[BoundLog], stamp_us: int, cost: int, now_us: int) -> bool:
    """Refund the hit with this stamp, in the policy's own log (the first) and in every other; False if there is none.

    Where hits are kept as sums, `cost` units are taken off the sum, unless the hit has an id.
    """
    main = logs[0]
    if stamp_us <= time_of(logs, now_us) - main.log_limits.retention_us or main.log.is_carried(stamp_us):
        return False
    if main.log_limits.keeps == "sums":
        return give_back(main, stamp_us, cost, now_us)
    units = main.log.units_at(stamp_us)
    if main.log_limits.keeps == "ids":
        if units:
            main.changed = main.log.give_back(stamp_us, units)
        elif main.log.free_stamp(stamp_us) != stamp_us:
            return False
        given_back = [give_back(bound, stamp_us, units or cost, now_us) for bound in logs[1:]]
        # What was recorded as a hit, before the policy kept numbers, may be in none of these yet.
        return any(given_back) or (units > 0 and all(bound.log.last_us() == NEVER for bound in logs[1:]))
    if not units:
        return False
    for bound in logs:
        bound.changed = bound.log.give_back(stamp_us, units)
    return True


def settle(logs: Sequence[BoundLog], stamp_us: int, now_us: int) -> bool:
    """Give the hit with this stamp, made as an estimate, the units that it really cost: the bound logs' `cost`.

    The hit is in the policy's own log (the first). False, and nothing changed, if it is not there: it is older than
    every window, was given back, or has no id where hits without one are kept as sums. Settled again it is changed
    again, so the same cost twice is once. Its stamp and its id stay; with a cost of 0 it is refunded. Raises
    `InvalidValueError`, and changes nothing, for more units than a log can count.
    """
    main, cost = logs[0], logs[0].cost
    time_us = time_of(logs, now_us)
    units = main.log.units_at(stamp_us)
    if not units or stamp_us <= time_us - main.log_limits.retention_us or main.log.is_carried(stamp_us):
        return False
    if main.log_limits.keeps != "hits" and not main.log.name_of(stamp_us):
        return False
    if not cost:
        refund(logs, stamp_us, units, now_us)
        return True
    more = cost - units
    holding = [
        bound for bound in logs if bound is main or main.log_limits.keeps == "ids" or bound.log.units_at(stamp_us)
    ]
    if more > 0 and not all(has_room(bound, time_us, time_us, more) for bound in holding):
        raise too_many(cost)
    for bound in holding if more else ():
        if bound.log_limits.keeps == "sums" and bound is not main:
            shift_units(bound, stamp_us, more, time_us, now_us)
        else:
            bound.log.amend(stamp_us, cost)
            bound.changed = True
    return True
