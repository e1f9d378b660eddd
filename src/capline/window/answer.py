"""The answer to an attempt, and what the logs say together for it.

A new attempt is answered from the time of its logs, its stamp, when it fits, and when quiet hours let it be. An id
that is known is answered as its hit was.
"""

from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.errors import IdConflictError
from capline.model.limit import LARGEST_QUOTA, Limit
from capline.model.limit_status import states_of
from capline.window.bound_log import BoundLog
from capline.window.limit_reader import QuietReader
from capline.window.log import NEVER
from capline.window.recording import view_after

Binding = tuple[Limit, BoundLog]
"""The binding limit of an answer, and the log that it is on."""


Stamped = Sequence[tuple[Sequence[BoundLog], int]]
"""The logs of each part, and the stamp that its hit would have."""


def time_of(logs: Sequence[BoundLog], now_us: int) -> int:
    """The attempt's time: now, or the latest high-water mark of its logs."""
    return max([now_us, *(bound.log.high_water_us for bound in logs)])


def newest_of(logs: Sequence[BoundLog]) -> int:
    """The newest stamp of a hit with units in any of the logs."""
    return max([bound.log.newest_us() for bound in logs])


TOGETHER_US = 1000
"""Logs of several policies whose times are no further apart are taken to be at one: a burst leaves them so."""


def parts_of(logs: Sequence[BoundLog], now_us: int) -> list[list[BoundLog]]:
    """The logs by policy, each at a time of its own; all as one where there is one policy, or their times are as one.

    A clock that stepped back leaves logs apart (decision 10): by the time of another log a hit would leave its window
    too early.
    """
    if not logs[-1].log_limits.part:
        return [[*logs]]
    parts: list[list[BoundLog]] = [[] for _ in range(logs[-1].log_limits.part + 1)]
    for bound in logs:
        parts[bound.log_limits.part].append(bound)
    times_us = [time_of(part, now_us) for part in parts]
    return parts if max(times_us) - min(times_us) > TOGETHER_US else [[*logs]]


def stamp_from(logs: Sequence[BoundLog], time_us: int, newest_us: int) -> int:
    """The first stamp at or after this instant that is later than every hit with units and free in every log."""
    stamp_us = max(time_us, newest_us + 1)
    while True:
        free_us = max([bound.log.free_stamp(stamp_us) for bound in logs])
        if free_us == stamp_us:
            return stamp_us
        stamp_us = free_us


def fits_all(logs: Sequence[BoundLog], time_us: int) -> tuple[int | None, int, Binding | None]:
    """When the attempt fits every limit (None: never), when it is allowed, and the limit that blocks it longest.

    It fits where its cost does together with the units that must stay free.
    It is allowed earlier than it fits by the stamp shift (`LimitReader.stamp_shift_us`), and stamped when it fits. The
    limit is None if the attempt fits already: an earlier block would depend on which old hits happen to be trimmed.
    """
    latest_us, latest_early_us, binding = NEVER, NEVER, None
    for bound in logs:
        for reader, kept in zip(bound.readers, bound.log_limits.keep_free or repeat(0), strict=False):
            fits_us = reader.fits_us(bound.log, bound.cost + kept, bound.table)
            if fits_us is None:
                return None, NEVER, (reader.limit, bound)
            latest_early_us = max(latest_early_us, fits_us - reader.stamp_shift_us(bound.log, fits_us))
            if fits_us > latest_us:
                latest_us, binding = fits_us, (reader.limit, bound) if fits_us > time_us else None
    return latest_us, latest_early_us, binding


MOST_TURNS = 64
"""After so many quiet hours in a row the answer is that there is no free instant."""


def opens_from(stamped: Stamped, at_us: int = NEVER) -> tuple[int | None, Binding | None]:
    """The first instant at or after `at_us` that no quiet hours forbid for any part, and the last quiet hours that did.

    None if there is no such instant. `at_us` itself (`NEVER`: now) if none forbid it.
    """
    quiet = [
        (reader, bound, stamp_us)
        for logs, stamp_us in stamped
        for bound in logs
        for reader in bound.readers
        if isinstance(reader, QuietReader)
    ]
    binding = None
    for _ in range(MOST_TURNS if quiet else 0):
        before_us = at_us
        for reader, bound, stamp_us in quiet:
            asked_us = max(at_us, stamp_us)
            opens_us = reader.opens_us(asked_us, bound.table)
            if opens_us > asked_us:
                at_us, binding = opens_us, (reader.limit, bound)
        if at_us == before_us:
            return at_us, binding
    return (None, binding) if quiet else (at_us, None)


def tightest_of(logs: Sequence[BoundLog], stamp_us: int) -> Binding | None:
    """The limit of this part with the fewest units left."""
    found = [
        (reader.left(bound.log, stamp_us, bound.table), (reader.limit, bound))
        for bound in logs
        for reader in bound.readers
    ]
    return min(found, key=itemgetter(0))[1] if found else None


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
        views = [view_after(bound, stamp_us) if consumes else bound.log for bound in logs]
        last_us = max([stamp_us if consumes else NEVER, *(view.newest_us() for view in views)])
        time_us = time_of(logs, now_us)
        for bound, view in zip(logs, views, strict=True):
            cost = bound.cost if consumes else 0
            for reader in bound.readers:
                reading = reader.read(view, stamp_us, cost, last_us, bound.table)
                if reading.left < left:
                    left, tightest = reading.left, (reader.limit, bound)
                if reading.empty_us > time_us:  # what has aged counts no more, though the clock has stepped back since
                    empty_us = max(empty_us, reading.empty_us)
                numbers += reading.left, max(0, reading.more_us - now_us), max(0, reading.full_us - now_us)
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


def replayed_answer(
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
    return answer_then(logs, stamp_us, time_us, now_us, slot=slot)


def answer_then(logs: Sequence[BoundLog], stamp_us: int, time_us: int, now_us: int, *, slot: bool) -> Decision:
    """That the hit with this stamp was allowed, with what was left just after it."""
    horizon_us = time_us - logs[0].log_limits.retention_us
    left, binding, empty_us = LARGEST_QUOTA + 1, None, 0
    numbers: list[int] = []
    for bound in logs:
        for reader in bound.readers:
            reading = reader.read_then(bound.log, stamp_us, horizon_us, time_us, bound.table)
            if reading.left < left:
                left, binding = reading.left, reader.limit
            empty_us = max(empty_us, reading.empty_us)
            numbers += max(0, reading.left), reading.more_us, reading.full_us
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
