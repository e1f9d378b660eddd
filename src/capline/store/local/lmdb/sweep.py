"""Removes what is out of every window: a few logs at a time, as new ones come, or all at once.

A look at every log in turn also tells when the first of them can be out. Until then nothing is looked at again.
"""

from __future__ import annotations

import contextlib
import math
from itertools import islice
from typing import TYPE_CHECKING

from capline.model.clock import LATEST_US
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
        self._least_us = 0
        """The least time that any log of it is kept."""
        self._began_us, self._first_us = 0, 0.0
        """When the first log was looked at; and when the first of those seen since can be out."""
        self._quiet = 0, 0.0, 0
        """From when until when no log can be out, where `meta` has so many entries."""

    def restart(self) -> None:
        """Begin at the first log, and with all names."""
        self._from, self._entries = b"", 0

    def sweep(self, transaction: LmdbTransaction, now_us: int, rows: int, grace: float = 0) -> tuple[int, bool]:
        """Check so many logs; remove those that are out by so many of their widest windows.

        How many were removed, and whether that was the end of the table.
        """
        txn, logs = transaction.txn, transaction.tables[b"logs"]
        self._read_names(transaction)
        if not self._from:
            self._began_us, self._first_us = now_us, math.inf
        stale: list[bytes] = []
        seen, cursor = 0, txn.cursor(logs)
        number, cutoff_us = b"", 0
        oldest_us = math.inf
        found: Iterable[tuple[bytes, bytes]] = cursor.iternext() if cursor.set_range(self._from) else ()
        for seen, (key, value) in enumerate(islice(found, rows), 1):  # noqa: B007 - how many, behind the loop
            if key[:4] != number:
                self._first_us = min(self._first_us, oldest_us + now_us - cutoff_us)
                number, oldest_us = key[:4], math.inf
                cutoff_us = now_us - int((1 + grace) * self._retention_us(transaction, number, now_us))
            last_us = newest_word(value) or _last_us(key, value)
            if last_us <= cutoff_us and _last_us(key, value) <= cutoff_us:
                stale.append(key)
            elif last_us < oldest_us:
                oldest_us = last_us
        self._first_us = min(self._first_us, oldest_us + now_us - cutoff_us)
        more = seen == rows and cursor.next()
        self._from = cursor.key() if more else b""
        if not more:  # what came meanwhile is kept for the least time too
            until_us = min(self._first_us, self._began_us + (1 + grace) * self._least_us)
            self._quiet = self._began_us, until_us, self._entries
        for key in stale:
            transaction.remove_at(key)
        self.pace.checked(seen, len(stale))
        return len(stale), not more

    def is_quiet(self, transaction: LmdbTransaction, now_us: int) -> bool:
        """Whether no log can be out now: all were seen since, or came later, and are kept for the least time."""
        since_us, until_us, entries = self._quiet
        return since_us <= now_us < until_us and entries == transaction.txn.stat(transaction.tables[b"meta"])["entries"]

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
        filled, self._least_us = {*_numbers(transaction)}, LATEST_US
        for key, value in transaction.txn.cursor(meta):
            if key.startswith(LOG_KEY):
                with contextlib.suppress(StoreDamagedError):  # the next decision there raises it
                    number, kept_us = LOG_META.unpack(unseal(key, value))
                    self._least_us = min(self._least_us, kept_us)
                    if (packed := LOG_NUMBER.pack(number)) in filled:
                        self._names[packed] = key

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


def _last_us(key: bytes, value: bytes) -> float:
    """The time of a log, or of its last hit if that is later.

    A damaged value is as one that never ends: it is left for its reader to report.
    """
    try:
        kind, words = read_words(value, key)
        lead = LEAD_WORDS if kind & PAGED else 0
        log = unpack_numbers(words) if kind == NUMBERS else unpack_log(kind, words, lead)[0]
    except StoreError:
        return math.inf
    return max(log.last_us(), log.high_water_us)
