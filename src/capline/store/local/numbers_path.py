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
    from collections.abc import Sequence

    from capline.model.policy import LogLimits
    from capline.store.local.fast_path import Quick
    from capline.store.local.transaction import LocalRule, LogTransaction
    from capline.store.protocol import Kind, Operation
    from capline.window.limit_reader import LimitReader

MOST_UNITS = 1 << 32
"""A row that holds more leaves it to its reader whether it can count a cost."""


def numbers_path(meters: Sequence[LimitReader], logs: tuple[LogLimits, ...]) -> Quick:  # noqa: C901 - one flat step
    """The step on the rows of these limits, of a subject who has no hit with an id; `logs` are the rule's."""
    retention_us = logs[0].retention_us

    def step(  # noqa: C901, PLR0912 - as above
        numbers: Any,
        cost: int,
        fingerprint: int,
        kind: Kind,
        max_wait_us: int | None,
        now_us: int,
        time_us: int = 0,
        last_us: int = NEVER,
    ) -> Decision | None:
        rows: Sequence[NumberRow] = numbers.rows
        if fingerprint or not cost:
            return None
        if numbers.known is not meters:
            if [row.reader for row in rows] != meters:
                return None
            numbers.known = meters
        if time_us < now_us:  # noqa: PLR1730 - a call of `max` takes as long as the look-up
            time_us = now_us
        for row in rows:
            log: Any = row.log
            if (at_us := log.high_water_us) > time_us:
                time_us = at_us
            stamps = log.stamps
            if len(stamps) > log.start and (at_us := stamps[-1]) > last_us:
                last_us = at_us
        stamp_us = time_us if time_us > last_us else last_us + 1
        wait_us = stamp_us - now_us if kind == "schedule" else 0
        if last_us > time_us or stamp_us >= LATEST_US or (max_wait_us is not None and wait_us > max_wait_us):
            return None
        # The time of the logs, or an instant before it: hits are kept so much longer.
        horizon_us = stamp_us - 1 - retention_us
        left, limit, empty_us = LARGEST_QUOTA + 1, None, now_us
        states: list[int] = []
        levels: list[int] = []
        for row in rows:
            log, reader = row.log, row.reader
            after, more_us, whole_us, level = reader.after_hit(log, stamp_us, cost, ())
            # A level that the quota covers can always be counted.
            if after < 0 or not (level or log.total < MOST_UNITS or reader.fits_in(log, stamp_us, cost, horizon_us)):
                return None
            if after < left:
                left, limit = after, reader.limit
            if whole_us > empty_us:  # noqa: PLR1730 - as above
                empty_us = whole_us
            states += after, more_us - now_us if more_us > now_us else 0, whole_us - now_us if whole_us > now_us else 0
            levels.append(level)
        seen = states_of, logs, states
        if kind == "peek":
            return Decision(True, limit, left, 0, empty_us - now_us, None, "store", 0, 0, seen)
        for i, row in enumerate(rows):
            log, level = row.log, levels[i]
            stamps, window_us = log.stamps, row.reader.limit.window_us
            if stamps and stamps[log.start] <= horizon_us:
                log.trim(horizon_us)
                stamps = log.stamps
            last_us = stamps[-1] if len(stamps) > log.start else NEVER
            if last_us == NEVER or (not level and last_us // window_us != stamp_us // window_us):
                log.record(stamp_us, level or cost, stamp_us)
            elif log.before is None or log.denied:
                log.extend(stamp_us, level - log.units_at(last_us) if level else cost, stamp_us)
            else:
                stamps[-1] = log.high_water_us = stamp_us
                log.total = log.before[-1] + level if level else log.total + cost
        return Decision(True, limit, left, 0, empty_us - now_us, stamp_us, "store", wait_us, 0, seen)

    return step


def numbers_step(transaction: LogTransaction, operation: Operation, now_us: int) -> Decision | None:
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
    begun = numbers
    if numbers is None:
        logs = [None if compiled.begins else transaction.stored(ref, subject) for ref in compiled.refs[1:]]
        found = [ColumnLog() if log is None else log for log in logs]
        if any(type(log) is not ColumnLog or log.ids or log.denied for log in found):
            return None
        begun = StoredNumbers(
            [NumberRow(ref.readers[0], log) for ref, log in zip(compiled.refs[1:], found, strict=True)]
        )
    quick: Any = compiled.quick
    decision = quick(begun, cost, 0, operation.kind, operation.max_wait_us, now_us, time_us, last_us)
    if decision is None or decision.hit is None:
        return decision
    if fingerprint:
        bound = BoundLog(ColumnLog() if own is None else own, ref.log_limits, (), cost)
        record_hit(bound, decision.hit - 1, decision.hit, fingerprint)
        transaction.save(ref, subject, bound.log)  # pyright: ignore[reportArgumentType] - the same
    if numbers is None and not compiled.begins:
        for row_ref, row in zip(compiled.refs[1:], begun.rows, strict=True):
            transaction.save(row_ref, subject, row.log)  # pyright: ignore[reportArgumentType] - from above
    else:
        transaction.save(rows_ref, subject, begun)  # pyright: ignore[reportArgumentType] - as above
    return decision
