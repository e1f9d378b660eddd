"""Removes what is out of every window: a few logs at a time, as new ones come, or all at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from capline.model.errors import StoreDamagedError, StoreError
from capline.store.local.lmdb.keys import LOG_META, LOG_NUMBER
from capline.store.local.log_bytes import PAGED, read_words, unpack_log, unseal
from capline.store.local.log_pages import LEAD_WORDS

if TYPE_CHECKING:
    from capline.store.local.lmdb.transaction import LmdbTransaction

__all__ = ["SWEEP_EVERY", "Sweeper"]

SWEEP_EVERY = 64
"""After so many new subjects, half as many logs are checked in turn, and the stale ones removed."""
SWEEP_ROWS = 4096


class Sweeper:
    """Goes through the logs in turn. `fresh` counts the new subjects since it last was due."""

    def __init__(self) -> None:
        self.fresh = 0
        self._from = b""

    def due_rows(self) -> int:
        """How many logs to check for the new subjects; their count begins again."""
        rows = min(self.fresh // 2, SWEEP_ROWS)
        self.fresh = 0
        return rows

    def restart(self) -> None:
        """Begin at the first log."""
        self._from = b""

    def sweep(self, transaction: LmdbTransaction, now_us: int, rows: int, windows: int = 1) -> tuple[int, bool]:
        """Check so many logs; remove those older than so many widest windows.

        How many were removed, and whether that was the end of the table.
        """
        txn, tables = transaction.txn, transaction.tables
        retention_us: dict[bytes, int] = {}
        for key, value in txn.cursor(tables[b"meta"]):
            if key.startswith(b"log:"):
                with contextlib.suppress(StoreDamagedError):  # the next decision there raises it
                    number, kept_us = LOG_META.unpack(unseal(key, value))
                    retention_us[LOG_NUMBER.pack(number)] = kept_us
        stale: list[bytes] = []
        seen, cursor = 0, txn.cursor(tables[b"logs"])
        more = cursor.set_range(self._from)
        while more and seen < rows:
            key, value = cursor.item()
            if _is_stale(key, value, now_us - windows * retention_us.get(key[:4], now_us)):
                stale.append(key)
            seen, more = seen + 1, cursor.next()
        self._from = cursor.key() if more else b""
        for key in stale:
            transaction.remove_at(key)
        return len(stale), not more


def _is_stale(key: bytes, value: bytes, cutoff_us: int) -> bool:
    """Tell whether every hit is as old as the cutoff, and the log's time not ahead of it.

    A damaged value is left for its reader to report.
    """
    try:
        kind, words = read_words(value, key)
        log, _ = unpack_log(kind, words, LEAD_WORDS if kind & PAGED else 0)
    except StoreError:
        return False
    return max(log.last_us(), log.high_water_us) <= cutoff_us
