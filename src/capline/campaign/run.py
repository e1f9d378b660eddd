"""Runs a job in this process, with a ledger on disk. `deliver` has the steps of a batch.

Batches are delivered in order, one at a time, each with all its retries. So only one batch is in memory, and a kill
can leave only one half done.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from capline.campaign.breaker import Breaker
from capline.campaign.deliver import AGAIN, Delivery, as_campaign_errors
from capline.campaign.ledger.ledger import Ledger
from capline.campaign.ledger.rows import NOT_KNOWN
from capline.campaign.senders.protocol import RunInfo, asks_again
from capline.campaign.store_facts import refuse_new_run, store_input
from capline.model.clock import SystemClock
from capline.model.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from capline.campaign.ledger.rows import BatchRows
    from capline.campaign.part import Part
    from capline.campaign.prepare import Job
    from capline.campaign.stop import Stop
    from capline.limiter.limiter import Limiter


_LOOK_S = 0.5
"""How often a run that waits looks whether it was resumed."""


@contextmanager
def open_run(job: Job, directory: Path) -> Generator[tuple[Limiter, Ledger]]:
    """Open the store and the ledger of a run: the run in this directory, or a new one.

    Raises a `CaplineError` if either cannot be opened. A run with other inputs is refused before its store is opened. A
    resumed run never creates a missing store, and a new run whose store cannot be opened, or refuses it
    (`refuse_new_run`), leaves no ledger.
    """
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.begin(directory, job.facts(), job.inputs)) if directory.exists() else None
        limiter = stack.enter_context(job.open_limiter(create=ledger is None or not ledger.is_frozen))
        if ledger is None or not ledger.is_frozen:
            refuse_new_run(job.file, limiter)
        yield limiter, ledger or stack.enter_context(Ledger.begin(directory, job.facts(), job.inputs))


def run(
    job: Job,
    limiter: Limiter,
    ledger: Ledger,
    stop: Stop,
    *,
    retry_failed: bool = False,
    progress: Callable[[int], object] | None = None,
    pause: Callable[[float], object] | None = None,
    jitter: Callable[[], float] = random.random,
) -> None:
    """Finish a run, new or resumed; its report is then in the ledger.

    With `retry_failed`, those that failed are then decided and sent again: in further batches with their own receipts,
    but with the same message keys. A retry that was interrupted is finished instead. Messages that an earlier call left
    as not known are sent again with the same keys.

    `progress` is called with the number of subjects done. `pause` and `jitter` (0 to 1) are for tests. Raises
    `CampaignStopped` after a stop, `SenderFailingError` when the receiver accepts nothing, another `CaplineError` for
    what must be fixed first. After each of these, and after kill -9, another call resumes the run.
    """
    unknown = _unknown(ledger) if asks_again(job.file.sender.sender) else []
    was_cut_off = not ledger.is_finished and ledger.retries() > 0
    retry = retry_failed and not was_cut_off
    if retry and ledger.is_finished:
        ledger.retry_failed(job.batches, job.file.batch)
        retry = False
    if ledger.is_finished and not unknown:
        return
    info = RunInfo(job.file.campaign, ledger.facts.run_id, job.file.channel, tuple(job.audience.texts))
    sender = job.file.sender.sender
    ledger.steer(due_us=job.file.send_at_us)
    steps = _LedgerRecord(ledger, stop)
    steps.check()
    kinds = job.audience.segments, job.audience.zones
    first = ledger.next_batch()

    def done(batch: int, subjects: int) -> None:
        if progress is not None and batch >= first:
            before = job.rows(batch).start if batch < job.batches else ledger.done_rows()
            progress(before + subjects)

    breaker = Breaker(job.file.sender.breaker, size=job.file.sender.request_size)
    delivery = Delivery(job.file, job.policy, *kinds, limiter, info, steps, breaker, pause or stop.wait, done, jitter)
    try:
        with as_campaign_errors(job.file.sender.name):
            sender.open(info)
        ledger.freeze_inputs(store_input(limiter))
        for number in unknown:
            steps.check()
            rows = ledger.batch(number)
            if rows is not None and rows.ask_again():
                delivery.deliver(_part(job, ledger, number), rows)
        while True:
            _deliver_all(job, ledger, delivery)
            steps.finish()
            if not retry or not ledger.retry_failed(job.batches, job.file.batch):
                break
            retry = False
    except StoreError as error:
        raise type(error)(f"{error}; {AGAIN}") from None
    finally:
        sender.close()


def _deliver_all(job: Job, ledger: Ledger, delivery: Delivery) -> None:
    """Deliver every batch that is not done, in order."""
    for number in range(ledger.next_batch(), job.batches + ledger.retries()):
        delivery.record.check()
        delivery.deliver(_part(job, ledger, number), ledger.batch(number))


def _part(job: Job, ledger: Ledger, number: int) -> Part:
    """A batch of the audience, or a further batch of those that failed in earlier ones."""
    return job.part(number) if number < job.batches else job.part_of(number, ledger.retried_ids(number))


def _unknown(ledger: Ledger) -> list[int]:
    """The batches that have messages with an unknown outcome."""
    return [rows.number for rows in ledger.batches() if rows.where(NOT_KNOWN).size]


class _LedgerRecord:
    """The ledger as a `Record`; it also counts the time that processes spend in the run."""

    def __init__(self, ledger: Ledger, stop: Stop) -> None:
        self._ledger = ledger
        self._stop = stop
        self._began_us = time.monotonic_ns() // 1000 - ledger.elapsed_us

    def check(self) -> None:
        """Wait until the run is due; `CampaignStopped` as soon as a stop is asked for."""
        began_us = time.monotonic_ns() // 1000
        self._stop.check()
        while (left_us := self._ledger.due_us - SystemClock().now_us()) > 0:
            self._stop.wait(min(left_us / 1e6, _LOOK_S))
        self._began_us += time.monotonic_ns() // 1000 - began_us

    def add(self, rows: BatchRows) -> None:
        self._ledger.add(rows)

    def save(self, rows: BatchRows) -> None:
        self._ledger.save(rows, self._elapsed_us())

    def finish(self) -> None:
        self._ledger.finish(self._elapsed_us())

    def _elapsed_us(self) -> int:
        return time.monotonic_ns() // 1000 - self._began_us
