"""Days, weeks and times of day by a table of offsets (`capline.model.zone`), as pure functions of whole microseconds.

A local time L begins at the first instant whose clock shows L or later. A skipped midnight begins at the next time that
does exist; a midnight that comes twice begins at the first. So periods follow each other without gap or overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.limit import DAY_US

if TYPE_CHECKING:
    from capline.model.zone import ZoneTable

_MONDAY_US = 4 * DAY_US
"""1970 began on a Thursday."""


def starts_us(table: ZoneTable, period_us: int, at_us: int) -> int:
    """The start of the period that this instant is in: a day, or a week from Monday on."""
    local_us = _local(period_us, at_us + table[_index(table, at_us) + 1])
    # A clock that was set back over midnight does not end the day that had begun.
    while _begins(table, local_us + period_us) <= at_us:
        local_us += period_us
    return _begins(table, local_us)


def ends_us(table: ZoneTable, period_us: int, at_us: int) -> int:
    """When the next period begins."""
    local_us = _local(period_us, at_us + table[_index(table, at_us) + 1])
    while True:
        local_us += period_us
        begins_us = _begins(table, local_us)
        if begins_us > at_us:
            return begins_us


def open_us(table: ZoneTable, from_us: int, until_us: int, at_us: int) -> int:
    """The first instant from this one on at which the clock does not show `from_us` to `until_us` (not included)."""
    index = _index(table, at_us)
    length_us = (until_us - from_us) % DAY_US
    while True:
        since_us = (at_us + table[index + 1] - from_us) % DAY_US
        if since_us >= length_us:
            return at_us
        open_at_us = at_us + length_us - since_us
        index += 2
        if index >= len(table) or open_at_us < table[index]:
            return open_at_us
        at_us = table[index]


def closes_us(table: ZoneTable, from_us: int, until_us: int, at_us: int) -> int:
    """Until when at least the clock goes on not to show `from_us` to `until_us`; this instant where it shows them."""
    index = _index(table, at_us)
    since_us = (at_us + table[index + 1] - from_us) % DAY_US
    if since_us < (until_us - from_us) % DAY_US:
        return at_us
    changes_us = table[index + 2] if index + 2 < len(table) else at_us + DAY_US
    return min(at_us + DAY_US - since_us, changes_us)


def _local(period_us: int, local_us: int) -> int:
    anchor_us = 0 if period_us == DAY_US else _MONDAY_US
    return local_us - (local_us - anchor_us) % period_us


def _index(table: ZoneTable, at_us: int) -> int:
    """The index of the table's entry that is in force at this instant."""
    index = len(table) - 2
    while index > 0 and table[index] > at_us:
        index -= 2
    return index


def _begins(table: ZoneTable, local_us: int) -> int:
    """The first instant whose clock shows this local time or later."""
    for index in range(0, len(table), 2):
        at_us = local_us - table[index + 1]
        if index and at_us < table[index]:
            at_us = table[index]
        if index + 2 >= len(table) or at_us < table[index + 2]:
            return at_us
    raise AssertionError("a table is never empty")
