"""What a changed policy takes over from what it counted before: a limit begins with what `usage` would have shown.

The algorithms that keep numbers have a row for each limit, and the rows of a policy lie together. So each attempt finds
the rows as they were written, under whatever limits that was. Three things may have changed:

    numbers to numbers   `take_over`: a limit that has no row takes the units of the row whose window is nearest
    hits to numbers      `carry_hits`: each limit takes what the hits within its window add up to
    numbers to hits      `carry_numbers`: each window gets, as hits without an id, what the rows show beyond its hits

Each takes at most its quota. Numbers do not say when their units were used, so these are taken for recent: a new limit
errs towards refusing, never beyond what `usage` showed. The step that sees a change also writes what is taken over,
refused or not: worked out again at each refusal, the units would not fade.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter

import msgspec

from capline.window.bound_log import BoundLog, OpenLog
from capline.window.counters import LevelReader
from capline.window.limit_reader import LimitReader, WindowReader
from capline.window.log import CARRIED, NEVER, REFUNDED


class NumberRow(msgspec.Struct, gc=False):
    """The numbers of one limit; of the units carried over at `carried_us`, `carried` were not given back since."""

    reader: LimitReader
    log: OpenLog
    carried: int = 0
    carried_us: int = NEVER


def take_over(rows: Sequence[NumberRow], logs: Sequence[BoundLog], now_us: int, empty: Callable[[], OpenLog]) -> bool:
    """Bind the logs of single limits, behind the policy's own, to their rows; whether a limit had to take over.

    `empty` makes a log. Where several policies have the rows, a limit without one goes on with the log that it has.
    """
    bound_logs, shared = logs[1:], logs[0].log_limits.shared
    same = [row.reader for row in rows] == [bound.readers[0] for bound in bound_logs]
    ordered: Sequence[NumberRow] = rows
    if not same:
        found = {row.reader: row for row in rows}
        time_us, newest_us = _time_and_newest(rows, logs[0], now_us)
        ordered = [
            found.get(reader)
            or (NumberRow(reader, bound.log) if shared else _row_from(rows, reader, time_us, newest_us, empty))
            for bound in bound_logs
            for reader in bound.readers
        ]
    for bound, row in zip(bound_logs, ordered, strict=True):
        bound.log, bound.carried, bound.carried_us = row.log, row.carried, row.carried_us
    return not (same or shared)


def rows_of(rows: Sequence[NumberRow], logs: Sequence[BoundLog]) -> list[NumberRow]:
    """The rows to keep: those of these logs, and where several policies have the rows, the others' that still count."""
    main = logs[0]
    kept = [NumberRow(bound.readers[0], bound.log, bound.carried, bound.carried_us) for bound in logs[1:]]
    if main.log_limits.shared:
        readers = {row.reader for row in kept}
        horizon_us = max(row.log.high_water_us for row in kept) - main.log_limits.retention_us
        kept += [row for row in rows if row.reader not in readers and row.log.last_us() > horizon_us]
    return kept


def carry_hits(logs: Sequence[BoundLog], now_us: int, empty: Callable[[], OpenLog]) -> bool:
    """Give the logs of single limits what the policy's own log, the first, shows, where none of them has anything.

    As one sum at the newest stamp, or at this instant where that is in an earlier window and would count for less; as a
    level, now. A log that several policies have shows hits of the others too, so there nothing is taken over. Whether
    anything was.
    """
    main = logs[0]
    newest_us = main.log.newest_us()
    if (
        main.log_limits.keeps != "ids"
        or main.log_limits.shared
        or newest_us == NEVER
        or any(bound.log.last_us() != NEVER for bound in logs[1:])
    ):
        return False
    time_us = max(now_us, main.log.high_water_us)
    at_us = max(time_us, newest_us)
    for bound in logs[1:]:
        reader, window_us = bound.readers[0], bound.readers[0].limit.window_us
        units = min(reader.limit.quota, main.log.units_after(at_us - window_us))
        if units <= 0:
            continue
        bound.log, bound.rewrites = empty(), True
        level = isinstance(reader, LevelReader)
        stamp_us = newest_us if newest_us // window_us == at_us // window_us and not level else at_us
        bound.log.record(stamp_us, units * reader.rise if level else units, time_us)
        bound.carried, bound.carried_us = units, stamp_us
    return True


def carry_numbers(rows: Sequence[NumberRow], main: BoundLog, now_us: int, copy: Callable[[OpenLog], OpenLog]) -> None:
    """Add to a copy of the policy's own log, for each of its windows, the units that the rows show beyond its hits.

    Units beyond those of the narrower windows were used before these began, at the latest; the others at the newest
    stamp, at the latest, and so they are stamped, at instants that are no hit's.
    """
    time_us, newest_us = _time_and_newest(rows, main, now_us)
    at_us = edge_us = max(time_us, newest_us + 1)
    main.log, main.rewrites = copy(main.log), True
    windows = [
        (reader.cutoff_us(at_us, main.table), reader) for reader in main.readers if isinstance(reader, WindowReader)
    ]
    for cutoff_us, reader in sorted(windows, key=itemgetter(0), reverse=True):
        units = min(reader.limit.quota, _used(_nearest(rows, reader), at_us)) - main.log.units_after(cutoff_us)
        stamp_us = newest_us + 1 if cutoff_us <= newest_us < edge_us else max(edge_us, cutoff_us + 1, 0)
        if units > 0:
            marks = range(CARRIED, REFUNDED) if main.log_limits.keeps == "hits" else ()
            free = (mark for mark in marks if main.log.find(mark, NEVER) == NEVER)
            mark = next(free, CARRIED if marks else 0)
            main.log.record(main.log.free_stamp(stamp_us), units, min(at_us, time_us + 1), mark)
        edge_us = cutoff_us


def _time_and_newest(rows: Sequence[NumberRow], main: BoundLog, now_us: int) -> tuple[int, int]:
    """The time of an attempt on these rows and this log, and the newest stamp in any of them."""
    logs = [main.log, *(row.log for row in rows)]
    return max(now_us, *(log.high_water_us for log in logs)), max(log.newest_us() for log in logs)


def _nearest(rows: Sequence[NumberRow], reader: LimitReader) -> NumberRow:
    """The row of the same window, else of the shortest longer one, else of the longest."""
    window_us = reader.limit.window_us
    spans = [row.reader.limit.window_us - window_us for row in rows]
    return rows[min(range(len(rows)), key=lambda i: (spans[i] < 0, abs(spans[i])))]


def _used(row: NumberRow, at_us: int) -> int:
    """The units that `usage` shows of the row at this instant."""
    return row.reader.limit.quota - row.reader.left(row.log, at_us, ())


def _row_from(
    rows: Sequence[NumberRow], reader: LimitReader, time_us: int, newest_us: int, empty: Callable[[], OpenLog]
) -> NumberRow:
    """The row of a new limit: a counter of the same kind and window as before goes on, else the units as of now."""
    before = _nearest(rows, reader)
    level = isinstance(reader, LevelReader)
    if type(before.reader) is type(reader) and before.reader.limit.window_us == reader.limit.window_us and not level:
        return NumberRow(reader, before.log, before.carried, before.carried_us)
    at_us, row = max(time_us, newest_us), NumberRow(reader, empty())
    units = amount = min(reader.limit.quota, _used(before, at_us))
    if isinstance(reader, LevelReader):
        amount = units * reader.rise
        if isinstance(before.reader, LevelReader):
            amount = before.reader.level_of(reader, before.log, at_us)
    if units > 0:
        row.log.record(at_us, amount, time_us)
        row.carried, row.carried_us = units, at_us
    return row
