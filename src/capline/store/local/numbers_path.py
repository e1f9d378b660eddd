"""The fast path of algorithms that keep numbers: one attempt that is allowed now, over the rows of a subject.

It gives the answers of `capline.window`, which is asked wherever a row is missing or another limit's, an id is known, a
slot is taken ahead, or the attempt does not fit. Quiet hours leave it to the rule as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from capline.model.limit import LARGEST_QUOTA
from capline.store.local.log import ColumnLog
from capline.store.local.numbers import StoredNumbers
from capline.window.answer import answer_now
from capline.window.bound_log import BoundLog
from capline.window.carry import NumberRow
from capline.window.log import NEVER
from capline.window.recording import record_hit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.model.decision import Decision
    from capline.store.local.transaction import LocalRule, LogRef, LogTransaction, StoredLog
    from capline.store.protocol import Operation
    from capline.window.limit_reader import LimitReader
    from capline.window.log import LogView

__all__ = ["numbers_step"]

MOST_UNITS = 1 << 32
"""A row that holds more leaves it to its reader whether it can count a cost."""


def numbers_step(transaction: LogTransaction, operation: Operation, now_us: int) -> Decision | None:
    """Decide, peek, or take a slot, and record the hit; None, and nothing changed, where the rule is to be asked."""
    compiled: LocalRule = operation.compiled
    subject, cost, fingerprint = operation.subject, operation.cost, operation.fingerprint
    ref, rows_ref = compiled.refs[0], cast("LogRef", compiled.numbers)
    own, stored = transaction.stored(ref, subject), transaction.stored(rows_ref, subject)
    if own is not None and (
        stored is None or own.find(fingerprint, NEVER) != NEVER or own.units_after(NEVER) + cost > LARGEST_QUOTA
    ):
        return None
    numbers = cast("StoredNumbers", stored) or StoredNumbers([NumberRow(one, ColumnLog()) for one in compiled.meters])
    rows = numbers.rows
    if [row.reader for row in rows] != compiled.meters:
        return None
    opened: list[tuple[LogView, Sequence[LimitReader]]] = [(row.log, (row.reader,)) for row in rows]
    if own is not None:
        opened.append((own, ()))
    levels: list[int] = []
    decision = answer_now(opened, compiled.rule.logs, cost, now_us, (), levels)
    if decision is None or decision.hit is None or operation.kind == "peek":
        return decision and replace(decision, hit=None)
    # The time of the logs, or an instant before it: hits are kept so much longer.
    stamp_us, time_us = decision.hit, decision.hit - 1
    horizon_us = time_us - ref.retention_us
    if operation.kind == "schedule":
        decision = replace(decision, wait_us=stamp_us - now_us)
    if _is_late(decision, operation) or not _has_room(rows, levels, stamp_us, cost, horizon_us):
        return None
    for row, level in zip(rows, levels, strict=True):
        _record(cast("ColumnLog", row.log), row.reader.limit.window_us, horizon_us, stamp_us, cost, level)
    if fingerprint:
        bound = BoundLog(ColumnLog() if own is None else own, ref.log_limits, (), cost)
        record_hit(bound, time_us, stamp_us, fingerprint)
        transaction.save(ref, subject, cast("StoredLog", bound.log))
    transaction.save(rows_ref, subject, cast("StoredLog", numbers))
    return decision


def _is_late(slot: Decision, operation: Operation) -> bool:
    return operation.max_wait_us is not None and slot.wait_us > operation.max_wait_us


def _has_room(rows: Sequence[NumberRow], levels: list[int], stamp_us: int, cost: int, horizon_us: int) -> bool:
    """Whether the rows can count the cost; a level that the quota covers always can."""
    return levels[0] > 0 or all(
        cast("ColumnLog", row.log).total < MOST_UNITS or row.reader.fits_in(row.log, stamp_us, cost, horizon_us)
        for row in rows
    )


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
