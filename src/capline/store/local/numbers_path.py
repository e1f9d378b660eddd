"""The fast path of algorithms that keep numbers: one attempt that is allowed now, over the rows of a subject.

Where a store does not begin rows, it reads a log for each limit. It gives the answers of `capline.window`, which is
asked wherever a row is missing or another limit's, an id is known, a slot is taken ahead, or the attempt does not fit.
Quiet hours leave it to the rule as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import lt
from typing import TYPE_CHECKING, Any

from capline.model.clock import LATEST_US
from capline.model.decision import Decision
from capline.model.limit import LARGEST_QUOTA
from capline.model.limit_status import states_of
from capline.store.local.log import ColumnLog
from capline.window.counters import CounterReader, FixedReader, LevelReader
from capline.window.log import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.model.limit_status import LimitStatus
    from capline.model.policy import LogLimits
    from capline.store.local.fast_path import Quick
    from capline.store.protocol import Kind
    from capline.window.carry import NumberRow
    from capline.window.limit_reader import LimitReader

Judge = Callable[[Any, int, int], tuple[int, int, int, int]]
_READ = 4
_NONE = array("Q", (0,))  # units before the first hit
SAME = -1
"""In place of a level: the hit goes to the sum that is the log's last hit."""
MOST_UNITS = 1 << 32
"""A row that holds more leaves it to its reader whether it can count a cost."""


def numbers_path(  # noqa: C901, PLR0915 - two flat steps
    meters: Sequence[LimitReader], logs: tuple[LogLimits, ...]
) -> Quick:
    """The step on the rows of these limits, of a subject who has no hit with an id; `logs` are the rule's."""
    retention_us = logs[0].retention_us
    kept = [units for log_limits in logs for units in log_limits.keep_free or ()]
    judges = [_JUDGES[type(reader)](reader) for reader in meters]

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
        if fingerprint or not cost or (numbers.known is not meters and not is_known(numbers)):
            return None
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
        horizon_us = time_us - retention_us
        left, limit, empty_us = LARGEST_QUOTA + 1, None, now_us
        found: list[int] = []
        for at, row in enumerate(rows):
            log = row.log
            read = judges[at](log, stamp_us, cost)
            after, _, full_us, level = read
            if after < 0 or (
                level <= 0 and log.total >= MOST_UNITS and not row.reader.fits_in(log, stamp_us, cost, horizon_us)
            ):
                return None
            if after < left:
                left, limit = after, meters[at].limit  # the row's may be a former object
            if full_us > empty_us:  # noqa: PLR1730 - as above
                empty_us = full_us
            found += read
        if kept and any(map(lt, found[::_READ], kept)):
            return None
        seen = _states, logs, found, now_us
        if kind == "peek":
            return Decision(True, limit, left, 0, empty_us - now_us, None, "store", 0, 0, seen)
        for at, row in enumerate(rows):
            log, level = row.log, found[_READ * at + 3]
            log.trim(horizon_us)
            last_us, window_us = log.last_us(), row.reader.limit.window_us
            if last_us == NEVER or (level == 0 and last_us // window_us != stamp_us // window_us):
                log.record(stamp_us, level or cost, stamp_us)
            else:
                log.extend(stamp_us, level - log.units_at(last_us) if level > 0 else cost, stamp_us)
        return Decision(True, limit, left, 0, empty_us - now_us, stamp_us, "store", wait_us, 0, seen)

    def is_known(numbers: Any) -> bool:
        if [row.reader for row in numbers.rows] == meters:
            numbers.known = meters
        return numbers.known is meters

    def alone(
        numbers: Any, cost: int, fingerprint: int, kind: Kind, max_wait_us: int | None, now_us: int, *times: int
    ) -> Decision | None:
        """The same under a single limit, where the last hit takes the units or a new one; all else is for `step`."""
        if fingerprint or times or not cost or (numbers.known is not meters and not is_known(numbers)):
            return step(numbers, cost, fingerprint, kind, max_wait_us, now_us, *times)
        log = numbers.rows[0].log
        stamp_us, stamps, before = log.high_water_us, log.stamps, log.before
        last_us = stamps[-1] if len(stamps) > log.start else NEVER
        if now_us > stamp_us:  # noqa: PLR1730 - as above
            stamp_us = now_us
        time_us = stamp_us
        if last_us == stamp_us:
            stamp_us += 1
        read = after, _, full_us, level = judge(log, stamp_us, cost)
        if (
            after < least
            or last_us > stamp_us
            or full_us >= LATEST_US
            or (level <= 0 and log.total >= MOST_UNITS)
            or (max_wait_us is not None and stamp_us - now_us > max_wait_us)
        ):
            return step(numbers, cost, fingerprint, kind, max_wait_us, now_us)
        seen = _states, logs, read, now_us
        if kind == "peek":
            return Decision(True, limit, after, 0, full_us - now_us, None, "store", 0, 0, seen)
        if last_us == NEVER or (level == 0 and last_us // window_us != stamp_us // window_us):
            log.trim(time_us - retention_us)
            log.record(stamp_us, level or cost, stamp_us)
        elif level == 0 or before is None or log.denied or stamps[log.start] <= time_us - retention_us:
            return step(numbers, cost, fingerprint, kind, max_wait_us, now_us)
        else:
            stamps[-1] = log.high_water_us = stamp_us
            log.total = before[-1] + level if level > 0 else log.total + cost
        wait_us = stamp_us - now_us if kind == "schedule" else 0
        return Decision(True, limit, after, 0, full_us - now_us, stamp_us, "store", wait_us, 0, seen)

    judge, limit, least = judges[0], meters[0].limit, kept[0] if kept else 0
    window_us = limit.window_us
    return alone if len(meters) == 1 else step


def first_hit(
    reader: LimitReader, logs: tuple[LogLimits, ...]
) -> Callable[[int, int], tuple[Decision, ColumnLog] | None]:
    """The step of a cost now on nothing, under a single limit: the answer and the log; None where it is refused."""
    judge, nothing, least = _JUDGES[type(reader)](reader), ColumnLog(), max(0, *(logs[-1].keep_free or (0,)))

    def step(cost: int, now_us: int) -> tuple[Decision, ColumnLog] | None:
        read = after, _, full_us, level = judge(nothing, now_us, cost)
        if after < least or full_us >= LATEST_US:
            return None
        stamps, units = array("Q", (now_us,)), level or cost
        log = ColumnLog(stamps, 0, None, 0, now_us) if units == 1 else ColumnLog(stamps, 0, _NONE[:], units, now_us)
        seen = _states, logs, read, now_us
        return Decision(True, reader.limit, after, 0, full_us - now_us, now_us, "store", 0, 0, seen), log

    return step


def _states(logs: Sequence[LogLimits], found: Sequence[int], now_us: int) -> tuple[LimitStatus, ...]:
    numbers: list[int] = []
    for at in range(0, len(found), _READ):
        numbers += found[at], max(0, found[at + 1] - now_us), max(0, found[at + 2] - now_us)
    return states_of(logs, numbers)


def _fixed(reader: FixedReader) -> Judge:
    quota, window_us = reader.limit.quota, reader.limit.window_us

    def judge(log: ColumnLog, at_us: int, cost: int) -> tuple[int, int, int, int]:
        start_us = at_us - at_us % window_us
        stamps, before, ends_us = log.stamps, log.before, start_us + window_us
        i = len(stamps) - 1
        if i < log.start or stamps[i] < start_us:
            return quota - cost, ends_us, ends_us, 0
        if before is None or (i > log.start and stamps[i - 1] >= start_us):
            return quota - log.units_after(start_us - 1) - cost, ends_us, ends_us, 0
        return quota - log.total + before[i] - cost, ends_us, ends_us, SAME

    return judge


def _counter(reader: CounterReader) -> Judge:
    quota, window_us, tick_us, ticks = reader.limit.quota, reader.limit.window_us, reader.tick_us, reader.ticks

    def judge(log: ColumnLog, at_us: int, cost: int) -> tuple[int, int, int, int]:
        start_us = at_us - at_us % window_us
        stamps, before, ends_us = log.stamps, log.before, start_us + window_us
        i, units, place = len(stamps) - 1, cost, 0
        if i >= log.start and before is not None and stamps[i] >= start_us:
            units, place = units + log.total - before[i], SAME
            i -= 1
        if i >= log.start and stamps[i] >= start_us - window_us:
            return reader.after_hit(log, at_us, cost)
        frees_us = ends_us + window_us
        more_us = frees_us - (units - 1) * ticks // units * tick_us
        return quota - units, max(more_us, ends_us), frees_us, place

    return judge


def _level(reader: LevelReader) -> Judge:
    rise, fall, brim = reader.rise, reader.fall, reader.brim

    def judge(log: ColumnLog, at_us: int, cost: int) -> tuple[int, int, int, int]:
        stamps, before, level = log.stamps, log.before, cost * rise
        i = len(stamps) - 1
        if i >= log.start:
            rest, newest_us = 0 if before is None else log.total - before[i], stamps[i]
            if not rest:  # refunded, or a single unit
                newest_us = log.newest_us()
                rest = log.units_after(newest_us - 1)
            rest -= (at_us - newest_us) * fall
            if rest > 0:
                level += rest
        room = brim - level
        return room // rise, at_us - (room % rise - rise) // fall, at_us - -level // fall, level

    return judge


_JUDGES: dict[Any, Callable[[Any], Judge]] = {FixedReader: _fixed, CounterReader: _counter, LevelReader: _level}
"""Of each algorithm, on a log in one piece: what is left, when there is more, and when all, just after a hit later than
all; then the hit's level, 0 if it has none, or `SAME`."""
