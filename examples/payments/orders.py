"""The table of orders, in SQLite: who is charged what by which provider, and how far that has come.

    new  ->  charging, leased to a worker  ->  charged
     ^                |                    ->  failed, with what the provider said
     '----------------'  given back, or the lease is over: its worker is gone

The rule: an order is charged once. Its id goes with every call as the `Idempotency-Key`, so a provider that is called
again, by whoever takes the order over, does not charge again. So a machine that loses its last commits loses no
money: those orders are asked for again.
"""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

BUSY_SECONDS = 30
"""How long to wait for another worker's commit, which takes a fraction of a millisecond."""

_TABLE = """
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY,
    provider TEXT NOT NULL,
    cents INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'new',
    leased_until REAL,
    said TEXT
);
CREATE INDEX IF NOT EXISTS open_orders ON orders (provider, state, id) WHERE state IN ('new', 'charging');
"""
_CLAIM = """
UPDATE orders SET state = 'charging', leased_until = ?
WHERE id = coalesce(
    (SELECT id FROM orders WHERE provider = ? AND state = 'new' ORDER BY id LIMIT 1),
    (SELECT id FROM orders WHERE provider = ? AND state = 'charging' AND leased_until < ? ORDER BY id LIMIT 1))
RETURNING id, cents
"""


class Order(NamedTuple):
    """One to be charged."""

    id: int
    cents: int


class Orders:
    """The table, by one connection: use it in one thread at a time. Any number of processes may have one."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {_TABLE}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._database.close()

    def add(self, orders: Iterable[tuple[str, int]]) -> None:
        """New ones: (provider, cents) each."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT INTO orders (provider, cents) VALUES (?, ?)", orders)

    def claim(self, provider: str, seconds: float) -> Order | None:
        """The next order of this provider, leased for so long: a new one, else one whose lease is over."""
        now = time.time()
        found = self._database.execute(_CLAIM, (now + seconds, provider, provider, now)).fetchall()
        return Order(*found[0]) if found else None

    def charged(self, order: Order) -> None:
        """The provider has taken the money."""
        self._end(order, "charged", None)

    def failed(self, order: Order, said: str) -> None:
        """The provider will not: an answer that stays the same however often it is asked."""
        self._end(order, "failed", said)

    def give_back(self, order: Order) -> None:
        """For whoever is next."""
        self._end(order, "new", None)

    def states(self) -> dict[str, dict[str, int]]:
        """How many orders are in each state, by provider."""
        counted: dict[str, dict[str, int]] = {}
        for provider, state, number in self._database.execute(
            "SELECT provider, state, count(*) FROM orders GROUP BY provider, state"
        ):
            counted.setdefault(provider, {})[state] = number
        return counted

    def _end(self, order: Order, state: str, said: str | None) -> None:
        # Whoever was slower than its lease comes second: what is charged stays charged.
        self._database.execute(
            "UPDATE orders SET state = ?, leased_until = NULL, said = ? WHERE id = ? AND state = 'charging'",
            (state, said, order.id),
        )
