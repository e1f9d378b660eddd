"""The commonest answer in one look at each limit: the attempt is allowed now.

It is that of `rule.judge`, by two facts: with no slot in the future the attempt's stamp is its time, or the microsecond
after the last hit; and what fits is what is left. Whatever else may be the answer is left to `rule`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.limit import LARGEST_QUOTA
from capline.model.limit_status import states_of
from capline.window.limit_reader import QuietReader
from capline.window.log import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.window.bound_log import BoundLog

__all__ = ["allowed_now"]


def allowed_now(logs: Sequence[BoundLog], now_us: int) -> Decision | None:
    """The answer to an attempt of no known id that is allowed now; None where it may be another. Records nothing."""
    cost, time_us, last_us = logs[0].cost, now_us, NEVER
    for bound in logs:
        log = bound.log
        last_us = max(last_us, log.last_us())
        time_us = max(time_us, log.high_water_us)
    stamp_us = time_us if time_us > last_us else last_us + 1
    if not cost or last_us > time_us or stamp_us >= LATEST_US:
        return None
    left, tightest, empty_us = LARGEST_QUOTA + 1, None, NEVER
    numbers: list[int] = []
    for bound in logs:
        log, table = bound.log, bound.table
        for reader in bound.readers:
            if isinstance(reader, QuietReader):
                return None
            reading = reader.read(log, stamp_us, cost, stamp_us, table)
            if reading.left < 0:
                return None
            if reading.left < left:
                left, tightest = reading.left, reader.limit
            empty_us = max(empty_us, reading.empty_us)
            numbers += reading.left, max(0, reading.more_us - now_us), max(0, reading.whole_us - now_us)
    seen = (states_of, [bound.log_limits for bound in logs], numbers)
    return Decision(True, tightest, left, 0, max(0, empty_us - now_us), stamp_us, _seen=seen)
