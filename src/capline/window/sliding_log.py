"""The rule of the sliding log, as pure functions of (logs, attempt, now).

    An attempt of cost c at t is allowed if and only if, for every limit (quota q, window W) over its log,
        (units of hits with a stamp in (t - W, t])  +  c  <=  q
    and then one hit is recorded at t. Otherwise nothing at all is recorded. A hit exactly W old is out.

Read by position this is one look a limit: of the newest q - c + 1 units, the oldest must be out of the window, so the
attempt fits from `stamp_of_unit(q - c + 1) + W` on. That instant minus now is `retry_after`; the latest over all limits
is the next free instant, which `schedule` takes. Both answers come from the same look, whatever the quota and whatever
the costs.

Time, per log, never runs back: t is at least the floor, and a stamp is later than every live hit's (two hits in one
instant are two hits, a microsecond apart). Where a slot is taken in the future, a plain attempt is refused until then:
nobody jumps the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capline.model.decision import Decision
from capline.model.errors import IdConflictError
from capline.model.limit import Limit
from capline.window.log import NEVER, Hit, Log, LogView, find, record, trim

if TYPE_CHECKING:
    from capline.model.policy import Rule

__all__ = ["Looks", "first_answer", "judge", "lift", "peek", "place", "step"]

Looks = Sequence[tuple[LogView, tuple[Limit, ...]]]
"""The logs that one attempt looks at, each with the limits that must hold over it."""


def judge(looks: Looks, cost: int, now_us: int) -> Decision:
    """Would this cost be allowed now? `hit` is the stamp to record it under; nothing is recorded here."""
    time_us, newest_us = _time(looks, now_us)
    queued = newest_us > time_us
    stamp_us = _stamp(looks, time_us, newest_us)
    fits_us, binding = _fits_at(looks, cost)
    if fits_us is None:
        return _answer(looks, stamp_us, 0, now_us, binding=binding, retry_at_us=None)
    if fits_us <= stamp_us and not queued:
        return _answer(looks, stamp_us, cost, now_us)
    # At the instant of the last slot itself, the next stamp is already one later.
    retry_at_us = newest_us if queued and fits_us <= newest_us + 1 else fits_us
    return _answer(looks, stamp_us, 0, now_us, binding=binding, retry_at_us=retry_at_us)


def place(looks: Looks, cost: int, now_us: int, max_wait_us: int | None, not_before_us: int = 0) -> Decision:
    """The next free instant for this cost, `not_before_us` from now or later, behind every slot taken.

    Refused where it is more than `max_wait_us` from now (None: no bound). An instant that is later than it needs to be
    is free as well, as nothing is taken behind the last slot.
    """
    time_us, newest_us = _time(looks, now_us)
    fits_us, binding = _fits_at(looks, cost)
    if fits_us is None:
        return _answer(looks, _stamp(looks, time_us, newest_us), 0, now_us, binding=binding, retry_at_us=None)
    stamp_us = _stamp(looks, max(time_us, fits_us, now_us + not_before_us), newest_us)
    if max_wait_us is not None and stamp_us - now_us > max_wait_us:
        return _answer(looks, stamp_us, 0, now_us, binding=binding, retry_at_us=stamp_us)
    return _answer(looks, stamp_us, cost, now_us, wait_us=max(0, stamp_us - now_us))


def first_answer(looks: Looks, hit: Hit, cost: int, now_us: int, horizon_us: int, *, slot: bool = False) -> Decision:
    """The answer that this hit was recorded with, for a retry; raises `IdConflictError` on another cost.

    Hits as old as the horizon are trimmed, or may be, and count no more in what remained.
    """
    if hit.units != cost:
        raise IdConflictError(
            f"this id was recorded with a cost of {hit.units}, not {cost}; "
            "a retry repeats the attempt, a new attempt takes a new id",
        )
    left, binding, widest_us = 1 << 62, None, 0
    for log, limits in looks:
        later = log.units_after(hit.stamp_us)
        for limit in limits:
            since_us = max(hit.stamp_us - limit.window_us, horizon_us)
            units = limit.quota - (log.units_after(since_us) - later)
            if units < left:
                left, binding = units, limit
            widest_us = max(widest_us, limit.window_us)
    return Decision(
        allowed=True,
        limit=binding,
        remaining=max(0, left),
        retry_after_us=0,
        reset_after_us=widest_us,
        hit=hit.stamp_us,
        wait_us=max(0, hit.stamp_us - now_us) if slot else 0,
    )


def step(
    logs: tuple[Log, ...],
    rule: Rule,
    cost: int,
    now_us: int,
    attempt_id: bytes = b"",
    *,
    slot: bool = False,
    max_wait_us: int | None = None,
    not_before_us: int = 0,
) -> tuple[tuple[Log, ...], Decision]:
    """One attempt as a pure function: the logs it leaves, and its answer. `slot` asks for the next free instant."""
    looks = [(log, look.limits) for log, look in zip(logs, rule.looks, strict=True)]
    time_us = max([now_us, *(log.floor_us for log in logs)])
    horizon_us = time_us - rule.looks[0].keep_us
    known = find(trim(logs[0], horizon_us), attempt_id) if attempt_id else None
    if known is not None:
        return logs, first_answer(looks, known, cost, now_us, horizon_us, slot=slot)
    decision = place(looks, cost, now_us, max_wait_us, not_before_us) if slot else judge(looks, cost, now_us)
    if decision.hit is None:
        return logs, decision
    hit, floor_us = Hit(decision.hit, cost, attempt_id), lift(time_us, decision.hit)
    return (
        tuple(
            record(trim(log, time_us - look.keep_us), hit, floor_us) for log, look in zip(logs, rule.looks, strict=True)
        ),
        decision,
    )


def lift(time_us: int, stamp_us: int) -> int:
    """The floor that a hit leaves: its own stamp, so that time goes on from there; a slot in the future, only now."""
    return stamp_us if stamp_us <= time_us + 1 else time_us


def peek(decision: Decision) -> Decision:
    """The same answer, with no hit to name, as none was recorded."""
    return Decision(
        decision.allowed,
        decision.limit,
        decision.remaining,
        decision.retry_after_us,
        decision.reset_after_us,
        None,
    )


def _time(looks: Looks, now_us: int) -> tuple[int, int]:
    """This attempt's now, never below a floor; and the newest live stamp of any of its logs."""
    return (
        max([now_us, *(log.floor_us for log, _ in looks)]),
        max((log.newest_us() for log, _ in looks), default=NEVER),
    )


def _stamp(looks: Looks, time_us: int, newest_us: int) -> int:
    """The first stamp from this instant on that is later than every live hit and names no other hit in any log."""
    stamp_us = max(time_us, newest_us + 1)
    while True:
        free_us = max(log.free_stamp(stamp_us) for log, _ in looks)
        if free_us == stamp_us:
            return stamp_us
        stamp_us = free_us


def _fits_at(looks: Looks, cost: int) -> tuple[int | None, Limit | None]:
    """From when on this cost fits every limit, and the limit that holds longest; None: it never fits."""
    fits_us, binding = NEVER, None
    for log, limits in looks:
        for limit in limits:
            if cost > limit.quota:
                return None, limit
            oldest_us = log.stamp_of_unit(limit.quota - cost + 1)
            if oldest_us != NEVER and oldest_us + limit.window_us > fits_us:
                fits_us, binding = oldest_us + limit.window_us, limit
    return fits_us, binding


def _answer(
    looks: Looks,
    stamp_us: int,
    cost: int,
    now_us: int,
    *,
    binding: Limit | None = None,
    retry_at_us: int | None = 0,
    wait_us: int = 0,
) -> Decision:
    """Put the answer together: allowed where it has a cost, with what is left at that stamp."""
    left, tightest, last_us, widest_us = 1 << 62, None, stamp_us if cost else NEVER, 0
    for log, limits in looks:
        last_us = max(last_us, log.newest_us())
        for limit in limits:
            units = limit.quota - log.units_after(stamp_us - limit.window_us) - cost
            if units < left:
                left, tightest = units, limit
            widest_us = max(widest_us, limit.window_us)
    return Decision(
        allowed=cost > 0,
        limit=tightest if binding is None else binding,
        remaining=max(0, left),
        retry_after_us=None if retry_at_us is None else 0 if cost else retry_at_us - now_us,
        reset_after_us=0 if last_us == NEVER else max(0, last_us + widest_us - now_us),
        hit=stamp_us if cost else None,
        wait_us=wait_us,
    )
