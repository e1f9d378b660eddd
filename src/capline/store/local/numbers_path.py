"""The fast path of algorithms that keep numbers: one attempt that is allowed now, over the rows of a subject.

Where a store does not begin rows, it reads a log for each limit. It gives the answers of `capline.window`, which is
asked wherever a row is missing or another limit's, an id is known, a slot is taken ahead, or the attempt does not fit.
Quiet hours leave it to the rule as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.limit import LARGEST_QUOTA
from capline.model.limit_status import states_of
from capline.store.local.log import ColumnLog
from capline.store.local.numbers import StoredNumbers
from capline.window.bound_log import BoundLog
from capline.window.carry import NumberRow
from capline.window.log import NEVER
from capline.window.recording import record_hit

if TYPE_CHECKING:
    from capline.store.local.transaction import LocalRule, LogTransaction
    from capline.store.protocol import Operation
    from capline.window.limit_reader import LimitReader

MOST_UNITS = 1 << 32
"""A row that holds more leaves it to its reader whether it can count a cost."""


def numbers_step(  # noqa: C901, PLR0911, PLR0912, PLR0915 - one flat step
    transaction: LogTransaction, operation: Operation, now_us: int
) -> Decision | None:
    """Decide, peek, or take a slot, and record the hit; None, and nothing changed, where the rule is to be asked."""
    compiled: LocalRule = operation.compiled
    subject, cost, fingerprint = operation.subject, operation.cost, operation.fingerprint
    ref, rows_ref = compiled.refs[0], compiled.numbers
    numbers: Any = transaction.stored(rows_ref, subject)  # pyright: ignore[reportArgumentType] - with meters there is one
    own: Any = transaction.stored(ref, subject)
    time_us, last_us = now_us, NEVER
    if own is not None:
        if numbers is None or own.find(fingerprint, NEVER) != NEVER or own.units_after(NEVER) + cost > LARGEST_QUOTA:
            return None
        time_us, last_us = max(now_us, own.high_water_us), own.last_us()
    rows: list[tuple[LimitReader, Any]]
    if numbers is None:
        logs = [None if compiled.begins else transaction.stored(ref, subject) for ref in compiled.refs[1:]]
        found = [ColumnLog() if log is None else log for log in logs]
        rows = [*zip(compiled.meters, found, strict=True)]
        if any(type(log) is not ColumnLog or log.ids or log.denied for _, log in rows):
            return None
    else:
        rows = [(row.reader, row.log) for row in numbers.rows]
        if [reader for reader, _ in rows] != compiled.meters:
            return None
    for _, log in rows:
        time_us = max(time_us, log.high_water_us)
        if len(log.stamps) > log.start and log.stamps[-1] > last_us:
            last_us = log.stamps[-1]
    stamp_us = time_us if time_us > last_us else last_us + 1
    kind, max_wait_us = operation.kind, operation.max_wait_us
    wait_us = stamp_us - now_us if kind == "schedule" else 0
    if not cost or last_us > time_us or stamp_us >= LATEST_US or (max_wait_us is not None and wait_us > max_wait_us):
        return None
    # The time of the logs, or an instant before it: hits are kept so much longer.
    time_us = stamp_us - 1
    horizon_us = time_us - ref.retention_us
    left, limit, empty_us = LARGEST_QUOTA + 1, None, now_us
    states: list[int] = []
    levels: list[int] = []
    for reader, log in rows:
        after, more_us, whole_us, level = reader.after_hit(log, stamp_us, cost, ())
        # A level that the quota covers can always be counted.
        if after < 0 or not (level or log.total < MOST_UNITS or reader.fits_in(log, stamp_us, cost, horizon_us)):
            return None
        if after < left:
            left, limit = after, reader.limit
        empty_us = max(empty_us, whole_us)
        states += after, more_us - now_us if more_us > now_us else 0, whole_us - now_us if whole_us > now_us else 0
        levels.append(level)
    hit, seen = None if kind == "peek" else stamp_us, (states_of, compiled.rule.logs, states)
    decision = Decision(True, limit, left, 0, empty_us - now_us, hit, "store", wait_us, 0, seen)
    if hit is None:
        return decision
    for (reader, log), level in zip(rows, levels, strict=True):
        _record(log, reader.limit.window_us, horizon_us, stamp_us, cost, level)
    if fingerprint:
        bound = BoundLog(ColumnLog() if own is None else own, ref.log_limits, (), cost)
        record_hit(bound, time_us, stamp_us, fingerprint)
        transaction.save(ref, subject, bound.log)  # pyright: ignore[reportArgumentType] - the same
    if numbers is None and not compiled.begins:
        for row_ref, (_, log) in zip(compiled.refs[1:], rows, strict=True):
            transaction.save(row_ref, subject, log)
    else:
        kept = numbers or StoredNumbers([NumberRow(reader, log) for reader, log in rows])
        transaction.save(rows_ref, subject, kept)  # pyright: ignore[reportArgumentType] - as above
    return decision


def _record(log: ColumnLog, window_us: int, horizon_us: int, stamp_us: int, cost: int, level: int) -> None:
    """Add the cost to the sum of its window, or make the last hit this level."""
    stamps = log.stamps
    if stamps and stamps[log.start] <= horizon_us:
        log.trim(horizon_us)
        stamps = log.stamps
    last_us = stamps[-1] if len(stamps) > log.start else NEVER
    if last_us == NEVER or (not level and last_us // window_us != stamp_us // window_us):
        log.record(stamp_us, level or cost, stamp_us)
    else:
        log.extend(stamp_us, level - log.units_at(last_us) if level else cost, stamp_us)
