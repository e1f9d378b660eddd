"""Batches: their rows in parts, the answers as columns, a receipt that makes them repeatable, and damaged logs.

Where a stored log cannot be read, its rows get the error, all others their answers:

    answer all rows  ->  one raises: nothing stays  ->  try each row, nothing stays  ->  answer the others

The rule: what an operation wrote before it raised is never committed, so nothing goes on within its transaction. It
costs nothing where no log is damaged, else twice the batch. A file that cannot be read raises for the whole batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from time import sleep, thread_time
from typing import Any, TypeVar

import msgspec

from capline.model.decision import Decision
from capline.model.errors import CaplineError, StoreDamagedError, StoreVersionError
from capline.model.limit import Limit
from capline.model.subject import Subject
from capline.store.columns import Decisions, plain
from capline.store.local.transaction import LogTransaction
from capline.store.protocol import Batch
from capline.store.receipts import DIGEST_BYTES, batch_digest, limits_of_texts, receipt_conflict, receipt_name

_T = TypeVar("_T")
Work = Callable[[LogTransaction, slice, dict[int, CaplineError]], Any]
"""Answers these rows in this transaction, as a list or as `Decisions`; a row that fails alone goes to the errors, and
has `NO_ANSWER`."""

ROWS_A_TRANSACTION, _FEWEST_ROWS = 8192, 256
"""The most rows of a batch in one transaction, and the fewest."""
_PART_S = 0.01
"""How long a part is to take, in processor time: a disk that is slow to sync makes no part smaller."""
_GIVE_WAY_S = 0.0002
"""Between two parts: whoever waits wakes up in some 0.05 ms, and a lock that is free goes to who asks first."""

NO_ANSWER = Decision(False, None, 0, None, None, None)
"""In place of a row's answer: the row has an error. A refusal says when its log will be empty."""


_UNREADABLE = (StoreDamagedError, StoreVersionError)


class _DroppedError(Exception):
    """Ends a transaction of which nothing is to stay."""


def as_columns(batch: Batch, parts: Iterable[list[Any]], errors: dict[int, CaplineError]) -> Decisions:
    """The answers part by part, each turned into columns at once: ten million row objects would fill the memory.

    `errors` has the rows without an answer when all parts are done.
    """
    limits = limits_of(batch)
    blocks = [
        block if isinstance(block, Decisions) else Decisions.of(block, limits) for part in parts for block in part
    ]
    decided = Decisions.joined(blocks, limits)
    decided.errors = errors
    return decided


def undamaged(work: Work, transaction: LogTransaction, rows: slice, errors: dict[int, CaplineError]) -> list[Any]:
    """The answers to these rows but those that have an error, block by block."""
    blocks: list[Any] = []
    first = rows.start
    for row in sorted(row for row in errors if rows.start <= row < rows.stop):
        blocks += work(transaction, slice(first, row), errors), [NO_ANSWER]
        first = row + 1
    return [*blocks, work(transaction, slice(first, rows.stop), errors)]


def past_damage(
    transact: Callable[[Callable[[LogTransaction], Any]], Any],
    answer: Callable[[LogTransaction, dict[int, CaplineError]], _T],
    rows: slice,
    work: Work,
    errors: dict[int, CaplineError],
) -> _T:
    """What `answer` gives in one transaction when it is told the errors of damaged rows; it adds those of others.

    `work` is tried on one row after the other. Raises what `answer` does if no single row is the cause.
    """
    damaged: dict[int, CaplineError] = {}

    def attempt(transaction: LogTransaction) -> tuple[_T, dict[int, CaplineError]]:
        found = dict(damaged)  # a transaction may run again
        return answer(transaction, found), found

    while True:
        try:
            answers, found = transact(attempt)
        except _UNREADABLE:
            unread = _unreadable(transact, [row for row in range(rows.start, rows.stop) if row not in damaged], work)
            if not unread:
                raise
            damaged.update(unread)
        else:
            errors.update(found)
            return answers


def _unreadable(
    transact: Callable[[Callable[[LogTransaction], Any]], Any], rows: Iterable[int], work: Work
) -> dict[int, CaplineError]:
    """Those of these rows whose logs cannot be read. Nothing is changed."""
    found: dict[int, CaplineError] = {}

    def trial(transaction: LogTransaction) -> None:
        found.clear()
        for row in rows:
            try:
                work(transaction, slice(row, row + 1), {})
            except _UNREADABLE as error:
                found[row] = error
        raise _DroppedError

    with contextlib.suppress(_DroppedError):
        transact(trial)
    return found


def parts_of(rows: int) -> Iterator[slice]:
    """So many rows in parts; each is to be a transaction of some 10 ms, and other callers get their turn after it.

    A row takes 1 to 200 µs, by store and log, so the size of a part follows the time of the one before.
    """
    first, size = 0, _FEWEST_ROWS
    while first < rows:
        begun = thread_time()
        yield slice(first, min(first + size, rows))
        first += size
        if first < rows:
            sleep(_GIVE_WAY_S)
        pace = _PART_S / max(thread_time() - begun, _PART_S / 4)
        size = min(max(int(size * pace), _FEWEST_ROWS), ROWS_A_TRANSACTION)


def decided_once(
    transaction: LogTransaction, batch: Batch, receipt: str, now_us: Callable[[], int], decide: Callable[[], Decisions]
) -> Decisions:
    """The answers kept under this receipt, or else new ones, which are kept; raises if it was another batch's."""
    name, asked = receipt_name(batch, receipt), batch_digest(batch)
    kept = transaction.receipt(name)
    if kept is not None:
        # A digest of the batch with its limits, then the columns: that is all the previous release wrote, and all it
        # reads of this. Then what the caller asked, and the limits that the columns point to.
        decided, more = Decisions.unpack(kept[DIGEST_BYTES:], limits_of(batch))
        if kept[:DIGEST_BYTES] != asked:
            if not more or more[:DIGEST_BYTES] != batch.asked:
                raise receipt_conflict(receipt)
            decided.limits = limits_of_texts(msgspec.msgpack.decode(more[DIGEST_BYTES:]))
        return decided
    decided = decide()
    retention_us = max(compiled.refs[0].retention_us for compiled in batch.compiled)
    more = batch.asked + msgspec.msgpack.encode([*map(str, decided.limits)]) if batch.asked else b""
    transaction.keep_receipt(name, asked + decided.pack() + more, now_us() + retention_us)
    return decided


def rows_of(batch: Batch, rows: slice) -> Iterable[tuple[int, Subject]]:
    """The code and the subject of each of these rows of a batch, as Python integers and text."""
    codes = repeat(0) if batch.codes is None else plain(batch.codes[rows])
    return zip(codes, plain(batch.subjects[rows]), strict=False)


def limits_of(batch: Batch) -> tuple[Limit, ...]:
    """Every limit that can bind a row, each object once."""
    seen = {id(limit): limit for compiled in batch.compiled for ref in compiled.refs for limit in ref.log_limits.limits}
    return tuple(seen.values())
