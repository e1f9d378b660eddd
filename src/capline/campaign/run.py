"""Running a job in this process, batch by batch, with a ledger on disk. `settle` has the way of a batch.

Batches are taken in order, one at a time, each to its end with all its retries: what is in memory, and what a kill can
leave half done, is one batch.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from capline.campaign.breaker import Breaker
from capline.campaign.ledger import Ledger
from capline.campaign.rows import NOT_KNOWN
from capline.campaign.senders.protocol import RunInfo, asks_again
from capline.campaign.settle import AGAIN, Settling, as_campaign_errors
from capline.model.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from capline.campaign.prepare import Job
    from capline.campaign.rows import BatchRows
    from capline.campaign.stop import Stop
    from capline.limiter.limiter import Limiter

__all__ = ["open_run", "run"]


@contextmanager
def open_run(job: Job, directory: Path) -> Generator[tuple[Limiter, Ledger]]:
    """Open the store and the ledger of a run, the one that is in this directory or a new one.

    A `CaplineError` where either cannot be had; a run that was begun with something else is refused before another
    store is touched, and a new run leaves no ledger where there is no store.
    """
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.begin(directory, job.facts(), job.inputs)) if directory.exists() else None
        limiter = stack.enter_context(job.open_limiter())
        yield limiter, ledger or stack.enter_context(Ledger.begin(directory, job.facts(), job.inputs))


def run(
    job: Job,
    limiter: Limiter,
    ledger: Ledger,
    stop: Stop,
    *,
    progress: Callable[[int], object] | None = None,
    pause: Callable[[float], object] | None = None,
    jitter: Callable[[], float] = random.random,
) -> None:
    """Bring a run to its end, from wherever it stands; the report is then in the ledger.

    What an earlier call left as not known is asked about once more, by the messages' keys. `progress` is called with
    the number of subjects that have come to their end. `pause` (default: the stop's wait) and `jitter` (0 to 1) are for
    tests. Raises `CampaignStopped` when that was asked, `SenderFailingError` where the far side takes nothing, and
    another `CaplineError` for what cannot go on; after all of them, and after kill -9, `run` goes on where it was.
    """
    unknown = _unknown(ledger) if asks_again(job.file.sender.sender) else []
    if ledger.is_finished and not unknown:
        return
    info = RunInfo(job.file.campaign, ledger.facts.run_id, job.file.channel, tuple(job.audience.texts))
    sender = job.file.sender.sender
    steps = _Steps(ledger, stop)
    kinds = job.audience.segments, job.audience.zones
    first = ledger.next_batch()

    def done(batch: int, subjects: int) -> None:
        if progress is not None and batch >= first:
            progress(job.rows(batch).start + subjects)

    breaker = Breaker(job.file.sender.breaker)
    settling = Settling(job.file, job.policy, *kinds, limiter, info, steps, breaker, pause or stop.wait, done, jitter)
    try:
        with as_campaign_errors(job.file.sender.name):
            sender.open(info)
        for number in unknown:
            stop.check()
            rows = ledger.batch(number)
            if rows is not None and rows.ask_again():
                settling.settle(job.part(number), rows)
        for number in range(ledger.next_batch(), job.batches):
            stop.check()
            settling.settle(job.part(number), ledger.batch(number))
        steps.finish()
    except StoreError as error:
        raise type(error)(f"{error}; {AGAIN}") from None
    finally:
        sender.close()


def _unknown(ledger: Ledger) -> list[int]:
    """The batches in which something is not known."""
    return [rows.number for rows in ledger.batches() if rows.where(NOT_KNOWN).size]


class _Steps:
    """The ledger as a `Record`, with the time that this process is in the run."""

    def __init__(self, ledger: Ledger, stop: Stop) -> None:
        self._ledger = ledger
        self._began_us = time.monotonic_ns() // 1000 - ledger.elapsed_us
        self.check = stop.check

    def add(self, rows: BatchRows) -> None:
        self._ledger.add(rows)

    def save(self, rows: BatchRows) -> None:
        self._ledger.save(rows, self._elapsed_us())

    def finish(self) -> None:
        self._ledger.finish(self._elapsed_us())

    def _elapsed_us(self) -> int:
        return time.monotonic_ns() // 1000 - self._began_us
