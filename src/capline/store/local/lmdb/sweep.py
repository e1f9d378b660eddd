"""Removes what is out of every window: a few logs at a time, as new ones come, or all at once."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING

from capline.model.errors import StoreDamagedError, StoreError
from capline.store.local.lmdb.keys import LOG_KEY, LOG_META, LOG_NUMBER
from capline.store.local.log_bytes import NUMBERS, PAGED, newest_word, read_words, unpack_log, unseal
from capline.store.local.log_pages import LEAD_WORDS
from capline.store.local.numbers import unpack_numbers
from capline.store.local.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from capline.store.local.lmdb.transaction import LmdbTransaction

_PAST_SUBJECTS = b"\xff"
"""Behind the number of a log, later than every subject's key."""


class Sweeper:
    """Goes through the logs in turn, at this `pace`."""

    def __init__(self) -> None:
        self.pace = Pace()
        self._from = b""
        self._names: dict[bytes, bytes] = {}
        """The key in `meta` of each number whose logs held something then. A log is never renamed."""
        self._entries = self._unknown = 0
        """Of `meta`, when it was last read whole; and how often a number was met since that has no name here."""

    def restart(self) -> None:
        """Begin at the first log, and with all names."""
        self._from, self._entries = b"", 0

    def sweep(self, transaction: LmdbTransaction, now_us: int, rows: int, grace: float = 0) -> tuple[int, bool]:
        """Check so many logs; remove those that are out by so many of their widest windows.

        How many were removed, and whether that was the end of the table.
        """
        txn, logs = transaction.txn, transaction.tables[b"logs"]
        self._read_names(transaction)
        stale: list[bytes] = []
        seen, cursor = 0, txn.cursor(logs)
        number, cutoff_us = b"", 0
        found: Iterable[tuple[bytes, bytes]] = cursor.iternext() if cursor.set_range(self._from) else ()
        for seen, (key, value) in enumerate(islice(found, rows), 1):  # noqa: B007 - how many, behind the loop
            if key[:4] != number:
                number = key[:4]
                cutoff_us = now_us - int((1 + grace) * self._retention_us(transaction, number, now_us))
            if newest_word(value) <= cutoff_us and _is_stale(key, value, cutoff_us):
                stale.append(key)
        more = seen == rows and cursor.next()
        self._from = cursor.key() if more else b""
        for key in stale:
            transaction.remove_at(key)
        self.pace.checked(seen, len(stale))
        return len(stale), not more

    def filled(self, transaction: LmdbTransaction, most: int) -> list[str] | None:
        """See `Store.filled`: a look at each, up to so many. None, too, where a name cannot be read."""
        numbers = [*islice(_numbers(transaction), most + 1)]
        if len(numbers) > most:
            return None
        if not self._names.keys() >= {*numbers}:
            self._entries = 0
            self._read_names(transaction)
        names = [self._names.get(number, b"")[len(LOG_KEY) :].decode() for number in numbers]
        return names if all(names) else None

    def _read_names(self, transaction: LmdbTransaction) -> None:
        """Read which logs there are, when their number has grown by a part: the cost of a new log stays the same."""
        meta = transaction.tables[b"meta"]
        entries = transaction.txn.stat(meta)["entries"]
        if max(entries - self._entries, self._unknown) <= self._entries // 8:
            return
        self._entries, self._unknown, self._names = entries, 0, {}
        filled = {*_numbers(transaction)}
        for key, value in transaction.txn.cursor(meta):
            if key.startswith(LOG_KEY):
                with contextlib.suppress(StoreDamagedError):  # the next decision there raises it
                    number = LOG_NUMBER.pack(LOG_META.unpack(unseal(key, value))[0])
                    if number in filled:
                        self._names[number] = key

    def _retention_us(self, transaction: LmdbTransaction, number: bytes, unknown_us: int) -> int:
        """How long the hits of this log are kept, as any process has it by now."""
        name = self._names.get(number)
        value = None if name is None else transaction.txn.get(name, db=transaction.tables[b"meta"])
        if name is None or value is None:
            self._unknown += 1
            return unknown_us
        try:
            return LOG_META.unpack(unseal(name, value))[1]
        except StoreDamagedError:
            return unknown_us


def _numbers(transaction: LmdbTransaction) -> Iterator[bytes]:
    """The numbers of the logs that hold something: a look at each."""
    cursor = transaction.txn.cursor(transaction.tables[b"logs"])
    more = cursor.first()
    while more:
        number = cursor.key()[:4]
        yield number
        more = cursor.set_range(number + _PAST_SUBJECTS)


def _is_stale(key: bytes, value: bytes, cutoff_us: int) -> bool:
    """Tell whether every hit is as old as the cutoff, and the log's time not ahead of it.

    A damaged value is left for its reader to report.
    """
    try:
        kind, words = read_words(value, key)
        lead = LEAD_WORDS if kind & PAGED else 0
        log = unpack_numbers(words) if kind == NUMBERS else unpack_log(kind, words, lead)[0]
    except StoreError:
        return False
    return max(log.last_us(), log.high_water_us) <= cutoff_us
