"""A log as bytes, for stores that keep bytes. Little-endian; every value carries a checksum of itself and its key.

     0      1      2          4            8
    +------+------+----------+------------+---------------------------------------------------------------+
    | kind | form | 0        | CRC-32     | words of 8 bytes                                              |
    +------+------+----------+------------+---------------------------------------------------------------+

    kind   bits: UNITS 1, IDS 2, FLOOR 4, PAGED 8          form   2: this layout
           BLOCKS 32, of heads: see `capline.store.local.log_pages`
           or NUMBERS 16: rows, see `capline.store.local.numbers`
    words  [floor]           with FLOOR: the floor, where it is not the last stamp, or a reservation may be pending
           [total]           with UNITS: units of all hits here
           lead words        of heads (with PAGED) and pages: see `capline.store.local.log_pages`
           stamps * n
           before * n        with UNITS: units of the hits before each
           ids * n           with IDS: fingerprints of the attempts' ids or marks (`capline.window.log`), 0 for none

A usual log, every hit one unit, is 8 bytes and 8 more for each hit. The CRC starts from kind and form, goes over the
words and then over the key, so it covers all of them: a value under another key fails the check. A value that fails the
check is an error: nothing is ever allowed on it.

Other small values (`seal`, `unseal`) are the CRC-32 of value and key, then the value.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from zlib import crc32

from capline.model.errors import StoreDamagedError, StoreVersionError
from capline.store.local.log import ColumnLog

UNITS, IDS, FLOOR, PAGED, NUMBERS, BLOCKS = 1, 2, 4, 8, 16, 32
FORM = 2
_PAIR = struct.Struct("<II")
HEAD_BYTES = _PAIR.size
_SEED = {kind: kind | FORM << 8 for kind in (*range(NUMBERS + 1), *range(PAGED | BLOCKS, 2 * BLOCKS - NUMBERS))}
_UNIT_SEED = _SEED[0]
_COUNTS = [(kind // FLOOR + kind % 2, 1 + kind % 2 + kind // IDS % 2) for kind in range(2 * FLOOR)]
"""Words before the columns, and columns, by what a kind has of UNITS, IDS and FLOOR."""
_pack_pair, _unpack_pair = _PAIR.pack, _PAIR.unpack_from
_CRC = struct.Struct("<I")
_WORD = struct.Struct("<Q")


if sys.byteorder != "little":  # pragma: no cover - no such machine is supported by the wheels that we stand on
    raise ImportError("capline's packed logs are little-endian, and so must the machine be")


def pack_words(kind: int, words: array[int], key: bytes) -> bytes:
    """Put the head before the words."""
    body, head = words.tobytes(), _SEED[kind]
    return _pack_pair(head, crc32(key, crc32(body, head))) + body


def pack_unit_log(stamps: array[int], key: bytes) -> bytes:
    """A log whose every hit is one unit, without ids, its floor at its last stamp: the usual one."""
    body = stamps.tobytes()
    return _pack_pair(_UNIT_SEED, crc32(key, crc32(body, _UNIT_SEED))) + body


def pack_first_hits(stamp_us: int, keys: Sequence[bytes]) -> list[bytes]:
    """`pack_unit_log` of one hit, the same for each of these keys."""
    body = _WORD.pack(stamp_us)
    seed = crc32(body, _UNIT_SEED)
    return [_pack_pair(_UNIT_SEED, crc32(key, seed)) + body for key in keys]


def read_words(value: bytes, key: bytes) -> tuple[int, array[int]]:
    """The kind and the words of this key's value; raises `StoreDamagedError` or `StoreVersionError`. About 0.5 µs."""
    if len(value) < HEAD_BYTES:
        raise _damaged("shorter than its head")
    head, crc = _unpack_pair(value)
    kind, body = head & 255, value[HEAD_BYTES:]
    if _SEED.get(kind) != head or len(body) % 8:
        if (form := head >> 8 & 255) != FORM:
            raise StoreVersionError(
                f"a stored log has form {form}, this capline reads form {FORM}; it is left as it is"
            )
        raise _damaged("no such kind")
    if crc32(key, crc32(body, head)) != crc:
        raise _damaged("its checksum does not match")
    return kind, array("Q", body)


def read_plain(value: bytes, key: bytes, kind: int = 0) -> array[int] | None:
    """The words of this key's value, if it is of exactly this kind; None for any other.

    It is `read_words`, made short for the usual kinds. Of kind 0 they are the stamps of a log whose every hit is one
    unit and whose floor is its last stamp. Raises `StoreDamagedError` for a value that does not check. About 0.4 µs.
    """
    if len(value) <= HEAD_BYTES:
        return None
    head, crc = _unpack_pair(value)
    if head != _SEED[kind]:
        return None
    body = value[HEAD_BYTES:]
    if crc32(key, crc32(body, head)) != crc or len(body) % 8:
        raise _damaged("its checksum does not match")
    return array("Q", body)


def newest_word(value: bytes) -> int:
    """The last stamp of a log of plain units, without a check of it; 0 for any other kind. About 0.1 µs."""
    return _WORD.unpack_from(value, len(value) - 8)[0] if len(value) > HEAD_BYTES and not value[0] else 0


def pack_log(log: ColumnLog, key: bytes, kind: int = 0, lead: tuple[int, ...] = ()) -> bytes:
    """The log as its key's value, in the shortest kind that holds it; `lead` are words before its columns."""
    bits, words = log_words(log, lead)
    return pack_words(kind | bits, words, key)


def log_words(log: ColumnLog, lead: tuple[int, ...] = ()) -> tuple[int, array[int]]:
    """The shortest kind that holds the log, and its words."""
    if log.start:
        log.pack()
    stamps, before, time_us = log.stamps, log.before, log.high_water_us
    floor = log.reserved or not stamps or stamps[-1] != time_us
    words = array("Q", ((time_us,) if floor else ()) + (() if before is None else (log.total,)) + lead)
    words += stamps
    if before is not None:
        words += before
    kind = FLOOR * floor | UNITS * (before is not None)
    if log.ids or log.denied:
        kind |= IDS
        named = log.names()
        words.extend(named.get(stamp_us, 0) for stamp_us in stamps)
    return kind, words


def unpack_log(kind: int, words: array[int], lead: int = 0) -> tuple[ColumnLog, tuple[int, ...]]:
    """The log that `pack_log` wrote, and its `lead` words."""
    extra, columns = _COUNTS[kind & (UNITS | IDS | FLOOR)]
    n, rest = divmod(len(words) - extra - lead, columns)
    if rest or n < 0 or (not n and not kind & (FLOOR | PAGED)):
        raise _damaged("its columns differ in length")
    first = extra + lead
    stamps, before, total = words[first : first + n], None, 0
    if kind & UNITS:
        before, total = words[first + n : first + 2 * n], words[extra - 1]
    time_us = words[0] if kind & FLOOR else stamps[-1]
    log = ColumnLog(stamps, 0, before, total, time_us, reserved=bool(kind & FLOOR))
    if kind & IDS:
        for stamp_us, fingerprint in zip(log.stamps, words[-n:], strict=True):
            if fingerprint:
                log.name(stamp_us, fingerprint)
    return log, tuple(words[extra:first]) if lead else ()


def seal(key: bytes, value: bytes) -> bytes:
    """A value that is no log, with its checksum before it."""
    return _CRC.pack(crc32(key, crc32(value))) + value


def unseal(key: bytes, sealed: bytes) -> bytes:
    """The value that was sealed under this key; raises `StoreDamagedError`."""
    value = sealed[_CRC.size :]
    if len(sealed) < _CRC.size or _CRC.unpack_from(sealed)[0] != crc32(key, crc32(value)):
        raise StoreDamagedError("a stored value is damaged: its checksum does not match; it is left as it is")
    return value


def _damaged(why: str) -> StoreDamagedError:
    return StoreDamagedError(f"a stored log is damaged: {why}; nothing is decided on it and it is left as it is")
