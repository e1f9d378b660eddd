"""The answer to an attempt: that of a new one, and for an id that is known that its hit was allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.errors import IdConflictError
from capline.model.limit import LARGEST_QUOTA
from capline.model.limit_status import states_of
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
            for reader in bound.readers:
                reading = reader.read(bound.log, stamp_us, cost, last_us, bound.table)
                if reading.left < left:
                    left, tightest = reading.left, (reader.limit, bound)
                empty_us = max(empty_us, reading.empty_us)
                numbers += reading.left, max(0, reading.more_us - now_us), max(0, reading.whole_us - now_us)
    limit, binds = binding or tightest or (None, stamped[0][0][0])
    binds.binds = True
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
            reading = reader.read_then(bound.log, stamp_us, horizon_us, time_us, bound.table)
            if reading.left < left:
                left, binding = reading.left, reader.limit
            empty_us = max(empty_us, reading.empty_us)
            numbers += max(0, reading.left), reading.more_us, reading.whole_us
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
