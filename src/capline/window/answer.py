"""The answer to an attempt: that of a new one, and for an id that is known that its hit was allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.errors import IdConflictError
from capline.model.limit import LARGEST_QUOTA
from capline.model.limit_status import states_of
from capline.window.limit_reader import QuietReader
from capline.window.log import NEVER
from capline.window.reading import newest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.window.bound_log import BoundLog
    from capline.window.reading import Binding, Stamped

__all__ = ["build_answer", "known_answer"]


def build_answer(
    stamped: Stamped,
    now_us: int,
    *,
    allowed: bool = False,
    binding: Binding | None = None,
    retry_at_us: int | None = 0,
    wait_us: int = 0,
) -> Decision:
    """Build the answer, with the units left for each part at its stamp.

    Stamps end at `LATEST_US`: an attempt that would be stamped later never fits.
    """
    if allowed and any(stamp_us >= LATEST_US for _, stamp_us in stamped):
        allowed, retry_at_us, wait_us = False, None, 0
    elif retry_at_us is not None and retry_at_us >= LATEST_US:
        retry_at_us = None
    left, empty_us = LARGEST_QUOTA + 1, NEVER
    tightest: Binding | None = None
    numbers: list[int] = []
    for logs, stamp_us in stamped:
        consumes = allowed and logs[0].cost > 0
        last_us = max(newest_of(logs), stamp_us if consumes else NEVER)
        for bound in logs:
            cost = bound.cost if consumes else 0
            own_last_us = stamp_us if consumes else bound.log.newest_us()
            for reader in bound.readers:
                units = reader.left(bound.log, stamp_us, bound.table) - cost
                if units < left:
                    left, tightest = units, (reader.limit, bound)
                if last_us != NEVER:
                    empty_us = max(empty_us, reader.empty_us(bound.log, last_us, cost, bound.table))
                whole_us = more_us = reader.more_us(bound.log, stamp_us, cost, bound.table)
                if more_us != NEVER and not isinstance(reader, QuietReader):
                    whole_us = reader.empty_us(bound.log, own_last_us, cost, bound.table)
                numbers += units, max(0, more_us - now_us), max(0, whole_us - now_us)
    limit, own = binding or tightest or (None, stamped[0][0][0])
    own.binds = True
    return Decision(
        allowed=allowed,
        limit=limit,
        remaining=max(0, left),
        retry_after_us=None if retry_at_us is None else 0 if allowed else retry_at_us - now_us,
        reset_after_us=0 if empty_us == NEVER else max(0, empty_us - now_us),
        hit=stamped[0][1] if allowed else None,
        wait_us=wait_us,
        _seen=(states_of, [bound.log_limits for logs, _ in stamped for bound in logs], numbers),
    )


def known_answer(
    logs: Sequence[BoundLog], fingerprint: int, time_us: int, now_us: int, *, slot: bool
) -> Decision | None:
    """That the hit of this id was allowed, for a retry; None for a new id.

    Hits as old as the horizon may have been trimmed, so they do not count in `remaining`. For an algorithm that keeps
    no hits `remaining` is as of now.
    """
    if not fingerprint:
        return None
    own = logs[0]
    horizon_us = time_us - own.log_limits.retention_us
    stamp_us = own.log.find(fingerprint, horizon_us)
    if stamp_us == NEVER:
        return None
    units = own.log.units_at(stamp_us)
    if units != own.cost:
        raise IdConflictError(
            f"this id was recorded with a cost of {units}, not {own.cost}; "
            "a retry repeats the attempt, a new attempt takes a new id",
        )
    left, binding, empty_us = LARGEST_QUOTA + 1, None, 0
    numbers: list[int] = []
    for bound in logs:
        for reader in bound.readers:
            rest = reader.left_then(bound.log, stamp_us, horizon_us, time_us, bound.table)
            if rest < left:
                left, binding = rest, reader.limit
            whole_us = reader.empty_us(bound.log, stamp_us, 0, bound.table) - stamp_us
            empty_us = max(empty_us, whole_us)
            more_us = reader.more_then_us(bound.log, stamp_us, horizon_us, time_us, bound.table)
            numbers += max(0, rest), more_us, max(0, whole_us) if more_us else 0
    return Decision(
        allowed=True,
        limit=binding,
        remaining=max(0, left),
        retry_after_us=0,
        reset_after_us=empty_us,
        hit=stamp_us,
        wait_us=max(0, stamp_us - now_us) if slot else 0,
        late_us=max(0, now_us - stamp_us) if slot else 0,
        _seen=(states_of, [bound.log_limits for bound in logs], numbers),
    )
