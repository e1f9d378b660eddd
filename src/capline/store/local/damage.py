"""Batches in which a stored log cannot be read: its rows get the error, all others their answers.

    decide all rows  ->  one raises: nothing stays  ->  try each row, nothing stays  ->  decide the others

The rule: what an operation wrote before it raised is never committed, so nothing goes on within its transaction. It
costs nothing where no log is damaged, else twice the batch. A file that cannot be read raises for the whole batch.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from capline.model.errors import CaplineError, StoreDamagedError, StoreVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from capline.store.local.transaction import LogTransaction

__all__ = ["past_damage"]

_T = TypeVar("_T")
_UNREADABLE = (StoreDamagedError, StoreVersionError)


class _DroppedError(Exception):
    """Ends a transaction of which nothing is to stay."""


def past_damage(
    transact: Callable[[Callable[[LogTransaction], Any]], Any],
    decide: Callable[[dict[int, CaplineError]], _T],
    rows: range,
    try_row: Callable[[LogTransaction, int], object],
) -> _T:
    """What `decide` answers when it is given the rows to leave out, each with its error.

    `try_row` does for one row what `decide` does for all. Raises what `decide` does if no single row is the cause.
    """
    damaged: dict[int, CaplineError] = {}
    while True:
        try:
            return decide(damaged)
        except _UNREADABLE:
            found = _unreadable(transact, [row for row in rows if row not in damaged], try_row)
            if not found:
                raise
            damaged.update(found)


def _unreadable(
    transact: Callable[[Callable[[LogTransaction], Any]], Any],
    rows: Iterable[int],
    try_row: Callable[[LogTransaction, int], object],
) -> dict[int, CaplineError]:
    """Those of these rows whose logs cannot be read. Nothing is changed."""
    found: dict[int, CaplineError] = {}

    def work(transaction: LogTransaction) -> None:
        found.clear()
        for row in rows:
            try:
                try_row(transaction, row)
            except _UNREADABLE as error:
                found[row] = error
        raise _DroppedError

    with contextlib.suppress(_DroppedError):
        transact(work)
    return found
