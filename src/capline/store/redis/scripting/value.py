"""Stored values read in Python, for `explain` and for maintenance; lua/log.lua has the forms."""

import struct
from itertools import pairwise
from typing import Any

import msgspec

from capline.model.clock import LATEST_US
from capline.model.errors import InvalidValueError, StoreDamagedError
from capline.model.limit import LARGEST_QUOTA, Limit
from capline.window.carry import NumberRow
from capline.window.counters import FixedReader, counter_of, level_of
from capline.window.log import Draft, Hit, Log

_LEAST_GENERAL = 64
_NUMBERS = 128
_READERS = {3: counter_of, 4: level_of, 5: FixedReader}
_ROW, _SUM = struct.Struct(">B7s7s7s7s7s3s"), struct.Struct(">7s7s")
_SPAN_TAGS = (5, 6, 7)
_BLOCK_TAGS, _IN_BLOCK, _BLOCKS = (203, 235), 1024, 256
_HEAD, _AHEAD = 22, struct.Struct(f">IH{_BLOCKS}q")
_AT_NEWEST = (1 << 56) - 1


class ParsedLog(msgspec.Struct, frozen=True):
    """The hits, oldest first, as (stamp, units, id's 64 bits); and the latest instant that the log has seen."""

    hits: list[tuple[int, int, int]]
    high_water_us: int
    rows: list[NumberRow] | None = None
    """If these are the numbers of a policy: what each row is; the hits are those of all rows."""


def read_value(value: bytes | None) -> ParsedLog:
    """Parse a value; raises `StoreDamagedError` if it is not a log."""
    if not value:
        return ParsedLog([], 0)
    tag = value[0]
    if tag == _NUMBERS and len(value) >= 8:  # noqa: PLR2004 - as log.lua has them
        return _numbers(value)
    return _checked(_plain(value, tag) if tag in _SPAN_TAGS else _general(value, tag))


def _plain(value: bytes, stamp_bytes: int) -> ParsedLog:
    rest = len(value) - 8
    if rest < 0 or rest % stamp_bytes:
        raise StoreDamagedError("a plain log of a length that none has")
    newest = int.from_bytes(value[1:8])
    span = 256**stamp_bytes
    stamps = [newest] + [
        newest - (newest - int.from_bytes(value[at : at + stamp_bytes])) % span
        for at in range(8, len(value), stamp_bytes)
    ]
    return ParsedLog([(stamp, 1, 0) for stamp in reversed(stamps)], newest)


def _general(value: bytes, tag: int) -> ParsedLog:
    skipped, ahead = 0, [0] * _BLOCKS
    if tag in _BLOCK_TAGS and len(value) > _HEAD + _AHEAD.size:
        narrow, skipped, *ahead = _AHEAD.unpack_from(value, _HEAD)
        head, entries, tag = value[:_HEAD], value[_HEAD + _AHEAD.size :], tag - 128
        if narrow and (not tag & 32 or 14 * narrow > len(entries)):
            raise StoreDamagedError("a log of a length that none has")
        # The first entries get the bytes for an id that they lack.
        wide = [entries[at : at + 14] + bytes(8) for at in range(0, 14 * narrow, 14)]
        value = b"".join((head, *wide, entries[14 * narrow :]))
    ids = 8 if tag & 32 else 0
    kind, stamp_bytes = (tag >> 2) & 7, tag & 3
    if not _LEAST_GENERAL <= tag < 2 * _LEAST_GENERAL or not stamp_bytes or kind > 2:  # noqa: PLR2004 - as log.lua has them
        raise StoreDamagedError("a form that is not known")
    stamp_bytes += 4
    sums = (0, 1, 7)[kind]
    start = 22 if sums == 7 else 15  # noqa: PLR2004 - as log.lua has them
    size = stamp_bytes + sums + ids
    if len(value) <= start or (len(value) - start) % size:
        raise StoreDamagedError("a log of a length that none has")
    first = int.from_bytes(value[8:15])
    before = int.from_bytes(value[15:22]) if sums == 7 else 0  # noqa: PLR2004 - as log.lua has them
    hits: list[tuple[int, int, int]] = []
    for at in range(start, len(value), size):
        stamp = first + int.from_bytes(value[at : at + stamp_bytes])
        total = int.from_bytes(value[at + stamp_bytes : at + stamp_bytes + sums]) if sums else before + 1
        total += ahead[min(_BLOCKS - 1, (skipped + len(hits)) // _IN_BLOCK)]
        if total < before:
            raise StoreDamagedError("units that fall")
        hits.append((stamp, total - before, int.from_bytes(value[at + stamp_bytes + sums : at + size])))
        before = total
    if before > LARGEST_QUOTA + 1:
        raise StoreDamagedError("more units than any quota")
    high_water_us = int.from_bytes(value[1:8])
    return ParsedLog(hits, hits[-1][0] if high_water_us == _AT_NEWEST else high_water_us)


def _numbers(value: bytes) -> ParsedLog:
    rows: list[NumberRow] = []
    kept: list[tuple[int, int, int]] = []
    pos = 8
    try:
        while pos < len(value):
            kind, *fields = _ROW.unpack_from(value, pos)
            window_us, quota, carried, carried_us, high_water_us, count = map(int.from_bytes, fields)
            start, pos = pos + _ROW.size, pos + _ROW.size + count * _SUM.size
            if pos > len(value):
                raise StoreDamagedError("numbers of a length that none have")
            sums = [
                (int.from_bytes(stamp), int.from_bytes(units), 0) for stamp, units in _SUM.iter_unpack(value[start:pos])
            ]
            if sum(units for _, units, _ in sums) > LARGEST_QUOTA + 1:
                raise StoreDamagedError("more units than any quota")
            hits = _checked(ParsedLog(sums, high_water_us)).hits
            draft: Any = Draft(Log(tuple(Hit(*hit) for hit in hits), high_water_us))
            rows.append(NumberRow(_READERS[kind](Limit(quota, window_us)), draft, carried, carried_us - 1))
            kept += hits
    except (struct.error, KeyError, InvalidValueError):
        raise StoreDamagedError("numbers of a form that is not known") from None
    return _checked(ParsedLog(kept, int.from_bytes(value[1:8]), rows))


def _checked(log: ParsedLog) -> ParsedLog:
    stamps = [] if log.rows else [hit[0] for hit in log.hits]
    if any(later <= earlier for earlier, later in pairwise(stamps)) or min(stamps, default=0) < 0:
        raise StoreDamagedError("stamps that do not increase")
    if max([*stamps[-1:], log.high_water_us]) >= LATEST_US:
        raise StoreDamagedError("a stamp that no clock shows")
    return log
