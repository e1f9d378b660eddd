"""Further batches of a run, for those that failed, and batches to ask about again: `--retry-failed`.

Rows that failed and were refunded (REFUNDED) become RETRIED, in the step that stores the further batch with their
subjects. It is a batch like any other: decided under the limits as they then are, with a receipt of its own number, so
that nobody is counted twice. Messages keep their keys. Cost: each batch is read once, about 1 ms for 10,000 rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from capline.campaign.ledger import Ledger
from capline.campaign.prepare import Job
from capline.campaign.store.packed import Ids
from capline.campaign.store.records import RetryBatch
from capline.campaign.store.rows import NOT_KNOWN, REFUNDED, BatchRows


def retry_failed(job: Job, run: Ledger) -> int:
    """Put all failed rows into further batches of at most `batch` rows; returns how many batches."""
    return run.store.put_again(run.run, _further(job, run))


def retry_unknown(job: Job, run: Ledger) -> int:
    """Put back the settled batches that have messages with an unknown outcome; returns how many."""
    return run.store.put_again(run.run, _doubtful(job, run))


def _further(job: Job, run: Ledger) -> Iterator[RetryBatch]:
    number = run.state().batches
    ids: list[Ids] = []
    sources: list[BatchRows] = []

    def group() -> RetryBatch:
        subjects = np.sort(np.concatenate(ids))
        return RetryBatch(number, subjects.size, job.part_of(number, subjects).pack(), tuple(sources), subjects.size)

    for rows in run.batches():
        failed = rows.ids[rows.in_state(REFUNDED)]
        if not rows.retry_failed():
            continue
        if ids and sum(map(len, ids)) + len(failed) > job.file.batch:
            yield group()
            number += 1
            ids, sources = [], []
        ids.append(failed)
        sources.append(rows)
    if ids:
        yield group()


def _doubtful(job: Job, run: Ledger) -> Iterator[RetryBatch]:
    for rows in run.batches():
        if rows.is_done and rows.in_state(NOT_KNOWN).size:
            rows.retry_unknown()
            part = job.part_of(rows.number, rows.ids)
            yield RetryBatch(rows.number, len(rows), part.pack(), (rows,), len(rows))
