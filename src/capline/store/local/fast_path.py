"""The fast paths of the rule, for logs in which no slot is taken: the last stamp is the log's time.

They give the answers of `capline.window`; the conformance suite, the state machine and random histories check that.

    decide_one     one unit, where every hit is one unit: a hit's position is its units, a refusal leaves 0 remaining
    logs_path      any cost on any hits, at most two looks at a log for each limit; it records the hit

Both are for rolling limits over one log. `logs_path` has also what is allowed where limits are of the calendar, hours
are quiet, refusals count, or a channel has a log of its own: a calendar limit is a window until its day is over.

A decision of `decide_one` keeps the array of stamps that it was made on, and builds `limits` from it on demand. So a
store may append to such an array, but must never change or remove its elements: then it makes a new array.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from operator import sub
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.limit import DAY_US, LARGEST_QUOTA, Limit, QuietHours
from capline.model.limit_status import LimitStatus, states_of
from capline.model.policy import LOGS, LogLimits
from capline.model.zone import zone_table
from capline.store.local.log import ColumnLog, StoredLog
from capline.window.calendar import closes_us, ends_us, starts_us
from capline.window.log import NEVER
from capline.window.recording import is_sum_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.model.policy import BoundPolicy
    from capline.store.protocol import Kind
    from capline.window.log import LogView

FastRule = tuple[tuple[tuple[int, int, Limit, int], ...], int, int, Limit, LogLimits]
"""(edge, window_us, limit, quota) of each limit of the only log; the widest window; the least quota and its limit; log.

The edge is the quota less the units that must stay free: the window has room for one more while it has fewer.
"""

Quick = Callable[..., Decision | None]
"""A fast path on what a subject has: (log, logs or numbers, cost, fingerprint, kind, max_wait_us, now_us). It records
the hit there; None, and nothing changed, where the rule is to be asked."""

Period = Callable[[int, int], tuple[int, int] | None]
"""Of a limit that needs a zone: (now, stamp) to (hits up to this instant do not count, the others until that one); None
in quiet hours, and for a stamp that is far ahead."""

_NO_STAMPS = array("Q")

MOST_UNITS = LARGEST_QUOTA // 2
"""A log that holds more leaves it to the rule whether it can count a cost."""


class Stamps(Protocol):
    """Stamps in order: an array, or pages of them."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> int: ...


def fast_rule(log_limits: LogLimits) -> FastRule | None:
    """The limits of this log; None where one admits nothing, or none counts units. Only rolling ones have a width."""
    limits = [limit for limit in log_limits.limits if not isinstance(limit, QuietHours)]
    quotas = [(limit.quota or LARGEST_QUOTA) for limit in log_limits.limits]
    edges = [*map(sub, quotas, log_limits.keep_free or repeat(0))]
    if not limits or not all(limit.quota for limit in limits) or min(edges) < 1:
        return None
    tightest = min(limits, key=lambda limit: limit.quota)
    return (
        tuple(
            (edge, limit.window_us, limit, quota)
            for edge, limit, quota in zip(edges, log_limits.limits, quotas, strict=True)
        ),
        max([0, *(limit.window_us for limit in limits if not limit.needs_zone)]),
        tightest.quota,
        tightest,
        log_limits,
    )


def unit_rules(rule: BoundPolicy) -> tuple[FastRule, ...] | None:
    """The rule of each of its logs for `decide_one`.

    None where that is not for all: another algorithm, a zone, reservations, a quota of 0.
    """
    if rule.algorithm != "sliding_log" or rule.zone or rule.denied_units or rule.reserved:
        return None
    found = [compiled for compiled in map(fast_rule, rule.logs) if compiled is not None]
    return tuple(found) if len(found) == len(rule.logs) else None


def first_decision(compiled: FastRule, now_us: int) -> Decision:
    """The answer to one unit on an empty log."""
    _, widest_us, quota, limit, _ = compiled
    seen = (_states, compiled, _NO_STAMPS, 0, 0, now_us, now_us, True)
    return Decision(True, limit, quota - 1, 0, widest_us, now_us, _seen=seen)


def decide_one(  # noqa: C901 - one flat step
    stamps: Stamps,
    start: int,
    n: int,
    oldest_us: int,
    last_us: int,
    compiled: FastRule,
    now_us: int,
    position: Callable[[Any, int, int], int] = bisect_right,
) -> Decision:
    """Decide one unit on `stamps[start:n]`, which is not empty, all of one unit, none in the future.

    O(1) a limit, O(log n) for `remaining`. The caller passes the first stamp and the last, which it has read already;
    `position` is `bisect_right` for these stamps. Pages, unlike an array, may change later: their states are built now.
    """
    limits, widest_us, _, _, log_limits = compiled
    stamp_us = now_us if now_us > last_us else last_us + 1
    left, tightest, binding = LARGEST_QUOTA + 1, None, None
    fits_us = stamp_us
    for edge, window_us, limit, quota in limits:
        i = n - edge
        if i >= start:
            at_us = stamps[i] + window_us
            if at_us > fits_us:
                fits_us, binding = at_us, limit
                continue
        if binding is None:
            cutoff_us = stamp_us - window_us
            free = quota - n + (start if oldest_us > cutoff_us else position(stamps, cutoff_us, start))
            if free < left:
                left, tightest = free, limit
    if binding is not None:
        left = 0 if log_limits.keep_free is None else _left(compiled, stamps, start, n, stamp_us, position)
    if fits_us >= LATEST_US:
        # Stamps end before that: it never fits.
        return Decision(False, binding or tightest, left, None, last_us + widest_us - now_us, None)
    if binding is None:
        seen = (_states, compiled, stamps, start, n, stamp_us, now_us, True)
        if position is not bisect_right:
            seen = (states_of, compiled[4:], _numbers(compiled, stamps, start, n, stamp_us, now_us, True, position))
        return Decision(True, tightest, left - 1, 0, stamp_us + widest_us - now_us, stamp_us, _seen=seen)
    seen = (_states, compiled, stamps, start, n, stamp_us, now_us, False)
    if position is not bisect_right:
        seen = (states_of, compiled[4:], _numbers(compiled, stamps, start, n, stamp_us, now_us, False, position))
    return Decision(False, binding, left, fits_us - now_us, last_us + widest_us - now_us, None, _seen=seen)


def _left(
    compiled: FastRule, stamps: Stamps, start: int, n: int, stamp_us: int, position: Callable[[Any, int, int], int]
) -> int:
    """Units left where an attempt was refused as some must stay free."""
    return max(0, min([quota - n + position(stamps, stamp_us - span, start) for _, span, _, quota in compiled[0]]))


def logs_path(rule: BoundPolicy) -> Quick | None:
    """The step on the log of this rule, or on a sequence of its logs; None where there is none."""
    if rule.algorithm not in LOGS:
        return None
    found = [fast_rule(log_limits) for log_limits in rule.logs]
    steps = [_units_path(compiled, rule) for compiled in found if compiled is not None]
    if len(steps) < len(found):
        return None
    return steps[0] if len(steps) == 1 else _logs_path(rule, steps)


def _period_of(limit: Limit, zone: str) -> Period | None:
    if not limit.needs_zone:
        return None
    known = 0, 0

    def period(now_us: int, at_us: int) -> tuple[int, int] | None:
        nonlocal known
        if at_us - now_us > DAY_US:  # a zone's table is that around now
            return None
        since_us, until_us = known
        if not since_us <= at_us < until_us:
            table = zone_table(zone, now_us)
            if isinstance(limit, QuietHours):
                since_us, until_us = at_us, closes_us(table, limit.from_us, limit.until_us, at_us)
            else:
                since_us, until_us = starts_us(table, limit.window_us, at_us), ends_us(table, limit.window_us, at_us)
            known = since_us, until_us
        if limit.quota:
            return since_us - 1, until_us
        return (at_us, now_us) if at_us < until_us else None

    return period


def _units_path(compiled: FastRule, rule: BoundPolicy) -> Quick:
    limits, widest_us, least_quota, _, log_limits = compiled
    windows = [
        (quota, window_us, limit, quota - edge, _period_of(limit, rule.zone))
        for edge, window_us, limit, quota in limits
    ]
    # A refusal that counts is recorded, and one of the calendar frees at midnight: the rule's.
    flags = not (rule.zone or rule.denied_units), bool(rule.zone), bool(rule.reserved)
    kept = log_limits.retention_us, log_limits.grain_us
    # One tuple, where a closure is an object a name.
    return partial(_units_step, (compiled, windows, log_limits, *kept, widest_us, least_quota, *flags))


def _units_step(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one flat step
    facts: tuple[
        FastRule, list[tuple[int, int, Limit, int, Period | None]], LogLimits, int, int, int, int, bool, bool, bool
    ],
    log: Any,
    cost: int,
    fingerprint: int,
    kind: Kind,
    max_wait_us: int | None,
    now_us: int,
) -> Decision | None:
    """The step on a log, for any cost and id. Slots that are not now are left to the rule.

    O(1) a limit while no hit is out of its window. States of limits are built at once where hits may change.
    """
    compiled, windows, log_limits, retention_us, grain_us, widest_us, least_quota, refuses, eager, reserves = facts
    if not cost or (log.reserved and not reserves) or (fingerprint and log.find(fingerprint, NEVER) != NEVER):
        return None
    if type(log) is not ColumnLog:
        return _slowly(log, compiled, cost, fingerprint, kind, now_us) if refuses else None
    stamps, before, start, time_us = log.stamps, log.before, log.start, log.high_water_us
    n = len(stamps)
    stamp_us = now_us if now_us > time_us else time_us + (n > start)
    wait_us = stamp_us - now_us if kind == "schedule" else 0
    # The sum that the hit joins is stamped behind it: it is no hit's.
    same_sum = grain_us and n > start and time_us // grain_us == (stamp_us + 1) // grain_us and not fingerprint
    if same_sum and (log.ids or log.denied) and log.name_of(time_us):
        same_sum = False
    last_us, end = (stamp_us + 1, n - 1) if same_sum else (stamp_us, n)
    reset_us = last_us + widest_us
    if (
        cost > least_quota
        or (n > start and stamps[-1] != time_us)
        or (before and n > start and log.total - before[start] > MOST_UNITS)
        or reset_us >= LATEST_US
        or (max_wait_us is not None and wait_us > max_wait_us)
    ):
        return _slowly(log, compiled, cost, fingerprint, kind, now_us) if refuses else None
    left, tightest = LARGEST_QUOTA + 1, None
    numbers: list[int] = []
    for quota, window_us, limit, kept, period in windows:
        cutoff_us, i, free = stamp_us - window_us, start, quota - cost
        if period is not None:
            span = period(now_us, stamp_us)
            if span is None:
                return None
            cutoff_us, until_us = span
            reset_us = max(reset_us, until_us)
        else:
            until_us = NEVER
        if i < n and stamps[i] <= cutoff_us:
            i = bisect_right(stamps, cutoff_us, i)
            if same_sum and i == n:
                return None  # a sum of yesterday, which is of today once it has moved
        if before is None:
            free -= n - i
            if cost != 1 or eager or same_sum:
                oldest_us = stamps[i] if i < end else last_us
                numbers += free, oldest_us + window_us - now_us, last_us + window_us - now_us
        else:
            oldest_us, used = last_us, log.total - before[i] if i < n else 0
            if used:
                if i + 1 < n and before[i] == before[i + 1]:  # refunded
                    i = bisect_right(before, before[i], i) - 1
                free, oldest_us = free - used, stamps[i] if i < end else last_us
            numbers += free, oldest_us + window_us - now_us, last_us + window_us - now_us
        if until_us != NEVER:
            numbers[-2:] = until_us - now_us, until_us - now_us
        if free < kept:
            return _slowly(log, compiled, cost, fingerprint, kind, now_us) if refuses else None
        if free < left:
            left, tightest = free, limit
    seen: Any = states_of, (log_limits,), numbers
    if not numbers:
        seen = _states, compiled, stamps, start, n, stamp_us, now_us, True
    if kind == "peek":
        return Decision(True, tightest, left, 0, reset_us - now_us, None, "store", 0, 0, seen)
    if (
        fingerprint
        or (n > start and stamps[start] <= stamp_us - retention_us)
        or (before is None and (cost != 1 or same_sum))
    ):
        record(log, log_limits, cost, fingerprint, stamp_us, max(now_us, time_us))
    else:
        log.high_water_us = stamp_us
        if same_sum:
            log.high_water_us = stamps[-1] = last_us
        else:
            stamps.append(stamp_us)
            if before is not None:
                before.append(log.total)
        if before is not None:
            log.total += cost
    return Decision(True, tightest, left, 0, reset_us - now_us, stamp_us, "store", wait_us, 0, seen)


def _slowly(
    log: StoredLog, compiled: FastRule, cost: int, fingerprint: int, kind: Kind, now_us: int
) -> Decision | None:
    """What is refused, and logs in pages: two looks at the log for each limit."""
    decision = None if kind == "schedule" else decide_units(log, compiled, cost, now_us, fingerprint)
    if decision is None or decision.hit is None:
        return decision
    if kind == "peek":
        return replace(decision, hit=None)
    record(log, compiled[4], cost, fingerprint, decision.hit, max(now_us, log.high_water_us))
    return decision


def record(log: StoredLog, log_limits: LogLimits, cost: int, fingerprint: int, stamp_us: int, time_us: int) -> None:
    """Record a hit that is allowed."""
    log.trim(time_us - log_limits.retention_us)
    if not fingerprint and is_sum_of(log, log_limits, log.last_us(), stamp_us + 1):
        log.extend(stamp_us + 1, cost, stamp_us + 1)
    else:
        log.record(stamp_us, cost, stamp_us, fingerprint)


def _logs_path(rule: BoundPolicy, steps: Sequence[Quick]) -> Quick:  # noqa: C901 - one flat step
    """The step on several logs that are all behind now: one stamp in each, the id in the first."""
    others, last = [*zip(steps, rule.logs, strict=True)][:-1], steps[-1]

    def step(
        logs: Sequence[StoredLog], cost: int, fingerprint: int, kind: Kind, _max_wait_us: int | None, now_us: int
    ) -> Decision | None:
        for log in logs:
            if log.high_water_us >= now_us:  # else all are stamped now
                return None
        answers: list[Decision] = []
        name = fingerprint
        for (of_log, _), log in zip(others, logs, strict=False):
            answer = of_log(log, cost, name, "peek", None, now_us)
            if answer is None or not answer.allowed:
                return None
            answers.append(answer)
            name = 0
        answer = last(logs[-1], cost, 0, kind, None, now_us)
        if answer is None or not answer.allowed:
            return None
        answers.append(answer)
        least, reset_us, name = answers[0], 0, fingerprint
        for part in answers:
            if part.remaining < least.remaining:
                least = part
            if part.reset_after_us > reset_us:  # type: ignore[operator]
                reset_us: Any = part.reset_after_us
        for (_, log_limits), log in zip(others if kind != "peek" else (), logs, strict=False):
            record(log, log_limits, cost, name, now_us, now_us)
            name = 0
        seen = _states_of_all, answers
        return Decision(True, least.limit, least.remaining, 0, reset_us, answer.hit, "store", 0, 0, seen)

    return step


def _states_of_all(answers: Sequence[Decision]) -> tuple[LimitStatus, ...]:
    return tuple([state for answer in answers for state in answer.limits])


def decide_units(  # noqa: C901 - as above
    log: LogView, compiled: FastRule, cost: int, now_us: int, fingerprint: int = 0
) -> Decision | None:
    """Decide so many units under a new id (0: none); records nothing. None where the rule is to be asked.

    O(log n) a limit. States of limits are built now, as the units of a hit may change later.
    """
    limits, widest_us, least_quota, _, log_limits = compiled
    last_us = log.high_water_us
    if not 0 < cost <= least_quota or log.last_us() != last_us or log.units_after(NEVER) > MOST_UNITS:
        return None
    stamp_us = now_us if now_us > last_us else last_us + 1
    left, tightest, binding, fits_us = LARGEST_QUOTA + 1, None, None, stamp_us
    numbers: list[int] = []
    for edge, window_us, limit, quota in limits:
        used = log.units_after(stamp_us - window_us)
        free = quota - used
        if free < left:
            left, tightest = free, limit
        if edge - used < cost:
            if cost > edge:
                return None
            at_us = log.stamp_of_unit(edge - cost + 1) + window_us
            if at_us > fits_us:
                fits_us, binding = at_us, limit
        numbers += free, log.stamp_of_unit(min(used, quota)) + window_us - now_us if used else 0, window_us
    if fits_us >= LATEST_US:
        return None
    if binding is None:
        joins = not fingerprint and is_sum_of(log, log_limits, last_us, stamp_us + 1)
        behind_us = stamp_us + joins
        for i, (_, window_us, _, _) in enumerate(limits):
            numbers[3 * i] -= cost
            if not numbers[3 * i + 1] or (joins and numbers[3 * i + 1] == last_us + window_us - now_us):
                numbers[3 * i + 1] = behind_us + window_us - now_us
            numbers[3 * i + 2] += behind_us - now_us
        seen = (states_of, (log_limits,), numbers)
        return Decision(True, tightest, left - cost, 0, behind_us + widest_us - now_us, stamp_us, _seen=seen)
    newest_us = log.newest_us()
    for i in range(0, len(numbers), 3):
        numbers[i + 2] = numbers[i + 2] + newest_us - now_us if numbers[i + 1] else 0
    seen = (states_of, (log_limits,), numbers)
    return Decision(False, binding, max(0, left), fits_us - now_us, newest_us + widest_us - now_us, None, _seen=seen)


def _states(
    compiled: FastRule, stamps: array[int], start: int, n: int, stamp_us: int, now_us: int, allowed: bool
) -> tuple[LimitStatus, ...]:
    """The states after a unit was allowed, or was not, with this stamp on `stamps[start:n]`, an array."""
    if allowed and len(compiled[0]) == 1:  # what headers tell of nearly every answer
        ((_, window_us, limit, quota),) = compiled[0]
        first = bisect_right(stamps, stamp_us - window_us, start, n)
        left = quota - n + first - 1
        if left >= 0:
            frees_us = (stamps[first] if first < n else stamp_us) + window_us - now_us
            return (LimitStatus(limit, left, frees_us, stamp_us + window_us - now_us, compiled[4].title),)
    return states_of(compiled[4:], _numbers(compiled, stamps, start, n, stamp_us, now_us, allowed, bisect_right))


def states_of_each(found: Sequence[Any]) -> tuple[tuple[LimitStatus, ...], ...]:
    """The states of several, each told as to `_states`."""
    return tuple([_states(*seen) for seen in found])


def states_of_logs(
    units: Sequence[FastRule], found: Sequence[tuple[Any, ...]], stamp_us: int, now_us: int, allowed: bool
) -> tuple[LimitStatus, ...]:
    """The states of all, told of each log as `_states` is: (log, stamps, start, n)."""
    each = [(unit, *log[1:], stamp_us, now_us, allowed) for unit, log in zip(units, found, strict=True)]
    return (*chain(*states_of_each(each)),)


def _numbers(
    compiled: FastRule,
    stamps: Stamps,
    start: int,
    n: int,
    stamp_us: int,
    now_us: int,
    allowed: bool,
    position: Callable[[Any, int, int], int],
) -> list[int]:
    """Three numbers for each limit, as `states_of` takes them."""
    numbers: list[int] = []
    last_us = stamp_us if allowed or n == start else stamps[n - 1]
    for _, window_us, _, quota in compiled[0]:
        # Stamps recorded since are after n.
        used = n - min(n, position(stamps, stamp_us - window_us, start)) + allowed
        if used == 0:
            numbers += quota, 0, 0
            continue
        index = n - (min(used, quota) - allowed)
        oldest_us = stamps[index] if index < n else stamp_us
        numbers += quota - used, oldest_us + window_us - now_us, last_us + window_us - now_us
    return numbers
