"""Further batches of a run, for those that failed: `capline campaign run --retry-failed`.

Rows that failed and were refunded (REFUNDED) become RETRIED, and a row of the table `retry` names the batches whose
RETRIED rows make a further batch. Both in one transaction, so that a kill leaves no further batch or all of them. The
subjects are not stored again.

A further batch is a batch like any other: decided under the limits as they then are, with a receipt of its own number,
so that nobody is counted twice. A batch has rows REFUNDED only until the next retry takes them all, so each is the
source of at most one further batch. Cost: each batch is read once, about 1 ms for 10,000 rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from capline.campaign.ledger.rows import BatchRows


def put_retries(db: sqlite3.Connection, batches: Iterable[BatchRows], number: int, most: int) -> int:
    """Put all failed rows into further batches of at most `most`; returns how many rows. Call it in a transaction.

    `number` is the number of the run's first further batch.
    """
    total = 0
    groups: list[tuple[int, int, int]] = []
    for rows in batches:
        count = rows.retry_failed()
        if not count:
            continue
        total += count
        update = "UPDATE batch SET outcome = ?, retried = ? WHERE number = ?"
        db.execute(update, (rows.pack_outcome(), count, rows.number))
        if groups and groups[-1][2] + count <= most:
            groups[-1] = groups[-1][0], rows.number, groups[-1][2] + count
        else:
            groups.append((rows.number, rows.number, count))
    begin = number + db.execute("SELECT count(*) FROM retry").fetchone()[0]
    numbered = [(begin + index, first, last) for index, (first, last, _) in enumerate(groups)]
    db.executemany("INSERT INTO retry VALUES (?, ?, ?)", numbered)
    if total:
        db.execute("DELETE FROM run WHERE key = 'finished'")
    return total
