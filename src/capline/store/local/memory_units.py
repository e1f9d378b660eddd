"""Single units in memory, many or several at a time: rows of a batch, parts of one attempt, logs of one subject.

    joint_path    an attempt over several logs that are there and in one piece
    decide_rows   rows of a batch, a few under one lock
    unit_step     one row, or one subject, on one log or several

Each judges as `fast_path.decide_one`, without an object for what it has judged; what it cannot is the rule's.
"""

from __future__ import annotations

from bisect import bisect_right
from time import time_ns
from typing import TYPE_CHECKING, Any

from capline.model.attempt import Attempt
from capline.model.clock import LATEST_US, SystemClock
from capline.model.decision import Decision, Joint
from capline.model.errors import InvalidValueError
from capline.model.limit import LARGEST_QUOTA
from capline.store.columns import NO_HIT, Decisions
from capline.store.local.batches import NO_ANSWER, limits_of, rows_of
from capline.store.local.fast_path import states_of_each
from capline.store.local.log import ColumnLog
from capline.store.protocol import Operation

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from capline.model.clock import Clock
    from capline.model.errors import CaplineError
    from capline.model.limit import Limit
    from capline.model.subject import Subject
    from capline.store.local.transaction import LocalRule, LogRef, LogTransaction
    from capline.store.protocol import Batch, Mode
    from capline.support.polled_lock import PolledLock
else:
    from capline.model.arrays import np

_ZERO, _ONE = 0, 1
ROWS_A_TURN = 64
"""Rows of a batch under one lock: some 50 us, as long as a thread that finds it locked sleeps."""


def wall_clock(clock: Any) -> Callable[[], int] | None:
    """What reads the system's clock with one call less; None for any other clock."""
    return time_ns if type(clock) is SystemClock else None


def logs_of(ref: LogRef) -> dict[Subject, Any]:
    """The logs of this name, by subject."""
    return ref.handle.logs  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType] - what `_handle` put there


def unit_parts(compiled: LocalRule, named: Callable[[Limit], Any]) -> list[tuple[Any, ...]]:
    """Each log of a rule for `unit_step`: its table, its widest window, its limits, what must stay free."""
    return [
        (
            logs_of(ref),
            ref,
            unit[1],
            [(edge, quota, window_us, named(limit)) for edge, window_us, limit, quota in unit[0]],
            unit[4].keep_free,
        )
        for ref, unit in zip(compiled.refs, compiled.units or (), strict=True)
    ]


def joint_path(  # noqa: C901 - one flat step
    clock: Clock, lock: PolledLock
) -> Callable[[Mapping[Any, LocalRule], Sequence[Attempt]], Joint | None]:
    """The step of several attempts of one unit each, as one."""
    now_us_of, wall_ns = clock.now_us, wall_clock(clock)
    try_acquire, wait, release = lock.try_acquire, lock.wait, lock.release

    def units(rules: Mapping[Any, LocalRule], attempts: Sequence[Attempt]) -> Joint | None:  # noqa: C901, PLR0911, PLR0912 - as above
        """Each judged as by `decide_one`, on logs that are there and in one piece, and one answer for all."""
        left, limit, binds, reset_us, stale = LARGEST_QUOTA + 1, None, 0, 0, False
        found: dict[Any, tuple[Any, ...]] = {}
        at, last = 0, attempts[-1]
        if type(last) is not Attempt or (rule := rules.get(last.policy)) is None or rule.single is None:
            return None  # before the others are judged
        if not try_acquire(False):
            wait()
        try:
            now_us = now_us_of() if wall_ns is None else wall_ns() // 1000
            for attempt in attempts:
                if type(attempt) is not Attempt or not (attempt.cost is _ONE and attempt.keep_free is _ZERO):
                    return None
                if not attempt.id is attempt.segment is attempt.channel is attempt.zone is attempt.limits is None:
                    return None
                rule, subject = rules.get(attempt.policy), attempt.subject
                kind, unit = type(subject), None if rule is None else rule.single
                if rule is None or unit is None or (kind is not str and kind is not int):
                    return None
                table: Any = rule.refs[0].handle
                log = table.logs.get(subject)
                if log is None or log.before is not None or log.reserved:
                    return None
                stamps, start, stamp_us = log.stamps, log.start, log.high_water_us
                n = len(stamps)
                if n == start or stamps[-1] != stamp_us:
                    return None
                oldest_us = stamps[start]
                stamp_us = now_us if now_us > stamp_us else stamp_us + 1
                limits, widest_us, _, _, _ = unit
                for edge, window_us, of, quota in limits:
                    i, cutoff_us = n - edge, stamp_us - window_us
                    if i >= start and stamps[i] > cutoff_us:
                        return None
                    free = quota - n + (start if oldest_us > cutoff_us else bisect_right(stamps, cutoff_us, start))
                    if free < left:
                        left, limit, binds = free, of, at
                empty_us = stamp_us + widest_us
                if empty_us > reset_us:  # noqa: PLR1730 - a call of `max` takes as long as the look-up
                    reset_us = empty_us
                if oldest_us + widest_us <= stamp_us:
                    stale = True
                found[log] = unit, stamps, start, n, stamp_us, now_us, True
                at += 1
            if reset_us >= LATEST_US or len(found) < at:  # a log that is asked for twice
                return None
            hits: list[int] = []
            for log, (unit, _, _, _, stamp_us, _, _) in found.items():
                if stale:
                    log.trim(max(now_us, log.high_water_us) - unit[4].retention_us)
                log.high_water_us = stamp_us
                log.stamps.append(stamp_us)
                hits.append(stamp_us)
        finally:
            release()
        seen = states_of_each, found.values()
        return Joint(True, limit, left - 1, 0, reset_us - now_us, (*hits,), binds, "store", 0, 0, seen)

    return units


def decide_rows(  # noqa: C901, PLR0912, PLR0915 - one flat step
    store: Any,
    clock: Clock,
    lock: PolledLock,
    batch: Batch,
    mode: Mode,
    rows: slice,
    errors: dict[int, CaplineError],
) -> Decisions:
    """Single units on the store in memory, a few under one lock and at one instant, without an object each.

    A log with fewer hits than the least edge has room. What the rule is asked for comes after the few, one by one.
    """
    limits, attempts = limits_of(batch), [*rows_of(batch, rows)]
    others: dict[int, Decision] = {}

    def alone(late: Iterable[int]) -> None:
        for row in late:
            code, subject = attempts[row]
            compiled = batch.compiled[code]
            try:
                ask = compiled.ask
                others[row] = ask(subject, 1, 0, mode) if ask else store.step(Operation(mode, compiled, subject))
            except InvalidValueError as error:
                clock.now_us()  # raises where the clock is what is wrong: then no row has an answer
                errors[rows.start + row], others[row] = error, NO_ANSWER

    if any(compiled.units is None for compiled in batch.compiled):
        alone(range(len(attempts)))  # two rules may be of one log: its rows stay in order
        return Decisions.of([*others.values()], limits)
    place_of = {id(limit): place for place, limit in enumerate(limits)}
    bound = [unit_parts(compiled, lambda limit: place_of[id(limit)]) for compiled in batch.compiled]
    firsts = [(len(parts) == 1, *parts[0][:4], min(parts[0][3])[0]) for parts in bound]
    hits, lefts, places, resets_us = list[int](), list[int](), list[int](), list[int]()
    refused: dict[int, int] = {}
    most, records = LARGEST_QUOTA + 1, mode == "decide"
    for first in range(0, len(attempts), ROWS_A_TURN):
        late: dict[int, Subject] = {}
        with lock:
            now_us = clock.now_us()
            for code, subject in attempts[first : first + ROWS_A_TURN]:
                single, logs, ref, widest_us, windows, least_edge = firsts[code]
                log = logs.get(subject) if single and not late else None
                if log is not None:
                    stamps, start = log.stamps, log.start
                    n = len(stamps)
                    if (
                        start < n < least_edge + start
                        and stamps[-1] == log.high_water_us < now_us
                        and log.before is None
                        and not log.reserved
                    ):
                        oldest_us, left, place = stamps[start], most, 0
                        for _, quota, window_us, limit in windows:
                            cutoff_us, free = now_us - window_us, quota - n
                            free += start if oldest_us > cutoff_us else bisect_right(stamps, cutoff_us, start)
                            if free < left:
                                left, place = free, limit
                        if records:
                            if oldest_us <= now_us - ref.retention_us:
                                log.trim(now_us - ref.retention_us)
                            log.stamps.append(now_us)
                            log.high_water_us = now_us
                        hits.append(now_us)
                        lefts.append(left - 1)
                        places.append(place)
                        resets_us.append(widest_us)
                        continue
                answer = None
                if not late or subject not in late.values():
                    answer = unit_step(store, subject, bound[code], now_us, records=records)
                if answer is None:
                    late[len(hits)] = subject
                    answer = 0, 0, 0, 0, 0, 0, ()
                hit_us, left, place, reset_us, wait_us, _, _ = answer
                if wait_us:
                    refused[len(hits)] = wait_us
                hits.append(hit_us)
                lefts.append(left - 1)
                places.append(place)
                resets_us.append(reset_us)
        alone(late)
    decided = Decisions(
        limits,
        np.ones(len(attempts), np.bool_),
        np.array(places, np.int16),
        np.array(lefts, np.int64),
        np.zeros(len(attempts), np.int64),
        np.array(resets_us, np.int64),
        np.array(hits, np.int64) if records else np.full(len(attempts), NO_HIT),
    )
    if refused:
        rows_refused = [*refused]
        decided.allowed[rows_refused] = False
        decided.retry_after_us[rows_refused] = [*refused.values()]
    if others:
        decided.put(np.array([*others]), Decisions.of([*others.values()], limits))
    return decided


def unit_step(  # noqa: C901, PLR0912 - one flat step
    store: LogTransaction, subject: Subject, parts: Sequence[tuple[Any, ...]], now_us: int, *, records: bool
) -> tuple[Any, ...] | None:
    """What `decide_one` says, on several logs if they are all behind now, and records; None: ask the rule.

    As (hit, units left before it, place of the limit that binds, when all is empty, wait), then the stamp, and of
    each log (itself, its stamps, the places of the first and behind the last).
    """
    found: list[tuple[ColumnLog, array[int], int, int]] = []
    fresh: list[tuple[LogRef, ColumnLog]] = []
    fits_us: Any = now_us
    stamp_us = now_us
    left, place, binds, newest_us, longest_us, keeps = LARGEST_QUOTA + 1, None, None, 0, 0, None
    windows: list[tuple[int, int, int, int]]
    for logs, ref, widest_us, windows, keep_free in parts:
        log: Any = logs.get(subject)
        if log is None:
            log = ColumnLog()
            fresh.append((ref, log))
        stamps, start, time_us = log.stamps, log.start, log.high_water_us
        n = len(stamps)
        if log.before is not None or log.reserved or (n > start and stamps[-1] != time_us):
            return None
        if time_us >= now_us:
            if len(parts) > 1 or time_us >= LATEST_US - 1:
                return None
            stamp_us = fits_us = time_us + (n > start)
        if n > start and time_us > newest_us:
            newest_us = time_us
        for edge, quota, window_us, limit in windows:
            i, cutoff_us = n - edge, stamp_us - window_us
            if i >= start and (at_us := stamps[i]) > cutoff_us:
                if at_us + window_us > fits_us:
                    fits_us, binds = at_us + window_us, limit
            elif binds is None:
                free = quota - n
                free += start if n == start or stamps[start] > cutoff_us else bisect_right(stamps, cutoff_us, start)
                if free < left:
                    left, place = free, limit
        longest_us, keeps = max(longest_us, widest_us), keeps or keep_free
        found.append((log, stamps, start, n))
    if binds is not None:
        if fits_us >= LATEST_US or keeps:
            return None
        reset_us = newest_us + longest_us - now_us
        return NO_HIT, 1, binds, reset_us, fits_us - now_us, stamp_us, found
    if records:
        retention_us = parts[0][1].retention_us
        for log, _, _, _ in found:
            log.trim(max(now_us, log.high_water_us) - retention_us)
            log.stamps.append(stamp_us)
            log.high_water_us = stamp_us
        for ref, log in fresh:  # when all are recorded: a sweep takes what is old
            store.save(ref, subject, log)
    return stamp_us, left, place, stamp_us + longest_us - now_us, 0, stamp_us, found
