"""Time zones as tables of whole microseconds, so that a rule can tell a local midnight by arithmetic alone.

    (from_us, offset_us, from_us, offset_us, ...)      from each instant on, local time is that much ahead of UTC

A table covers a few years around one instant; before and after it the first and the last offset apply. Scripts on a
server get the same table, so every store has the same midnight.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from capline.model.errors import InvalidTypeError, UnknownNameError, quoted

UTC_ZONE = "UTC"

ZoneTable = tuple[int, ...]

_BLOCK_US = 366 * 86_400_000_000
_BEFORE, _AFTER = 1, 5
"""How many blocks of a year a table covers before the instant's own, and from it on."""
_LONGEST_NAME = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STEP = timedelta(days=2)
_LATEST_US = 250_000_000_000_000_000
"""The year 9892: Python's calendar ends some years later."""


def check_zone(name: str) -> str:
    """The name of a zone that is known here, or raise `UnknownNameError` that says the fix."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidTypeError(f"a time zone is a name like 'Asia/Singapore', not {quoted(name)}")
    _zone(name)
    return name


def zone_table(name: str, near_us: int) -> ZoneTable:
    """The table of a zone around `near_us`: from a year before to at least four years after; 2 ms, then cached."""
    return _table(name, min(max(near_us, 0), _LATEST_US) // _BLOCK_US)


@lru_cache(4096)
def _table(name: str, block: int) -> ZoneTable:
    zone = _zone(name)
    at = _EPOCH + timedelta(microseconds=max(0, block - _BEFORE) * _BLOCK_US)
    end = _EPOCH + timedelta(microseconds=(block + _AFTER) * _BLOCK_US)
    offset = _offset(zone, at)
    table = [_us(at - _EPOCH), _us(offset)]
    while at < end:
        after = at + _STEP
        if _offset(zone, after) != offset:
            after = _change(zone, at, after)
            offset = _offset(zone, after)
            table += [_us(after - _EPOCH), _us(offset)]
        at = after
    return tuple(table)


def _change(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The second at which the offset of `low` is left, before `high`."""
    offset = _offset(zone, low)
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=int((high - low).total_seconds()) // 2)
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta(0)


def _us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


@lru_cache(4096)
def _zone(name: str) -> ZoneInfo:
    try:
        if 0 < len(name) <= _LONGEST_NAME:
            return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        pass
    raise UnknownNameError(
        f"no time zone {name[:_LONGEST_NAME]!r}; use a name of the IANA database, like 'Asia/Singapore' or 'UTC'"
    )
