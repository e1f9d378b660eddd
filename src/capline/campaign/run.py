"""Runs a job in this process, with a store of its own in a directory (`ledger`), by the loop of all workers.

Its batches have no subjects: they are in the job. So a kill can leave only one of them half done.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from capline.campaign import retry
from capline.campaign.breaker import Breaker
from capline.campaign.deliver import AGAIN, Delivery
from capline.campaign.ledger import Ledger
from capline.campaign.prepare import Job
from capline.campaign.queue.enqueue import fill
from capline.campaign.queue.worker import Worker
from capline.campaign.stop import Stop
from capline.campaign.store.records import PREPARE, Claimed
from capline.campaign.store.rows import NOT_KNOWN
from capline.campaign.store_facts import refuse_new_run, store_input
from capline.limiter.limiter import Limiter
from capline.model.errors import StoreError

AGAIN_S = 60.0
"""How soon a run that waits tries a receiver again that accepts nothing."""


@contextmanager
def open_run(job: Job, directory: Path) -> Generator[tuple[Limiter, Ledger]]:
    """Open the store and the ledger of a run: the run in this directory, or a new one.

    Raises a `CaplineError` if either cannot be opened. A run with other inputs is refused before its store is opened. A
    resumed run never creates a missing store, and a new run whose store cannot be opened, or refuses it
    (`refuse_new_run`), leaves no ledger.
    """
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.begin(directory, job.run())) if directory.exists() else None
        limiter = stack.enter_context(job.open_limiter(create=ledger is None or not ledger.is_frozen))
        if ledger is None or not ledger.is_frozen:
            refuse_new_run(job.file, limiter)
        yield limiter, ledger or stack.enter_context(Ledger.begin(directory, job.run()))


def run(
    job: Job,
    limiter: Limiter,
    ledger: Ledger,
    stop: Stop,
    *,
    retry_failed: bool = False,
    waits: bool = False,
    say: Callable[[str], object] = lambda _line: None,
    progress: Callable[[int], object] | None = None,
    pause: Callable[[float], object] | None = None,
    jitter: Callable[[], float] = random.random,
) -> None:
    """Finish a run, new or resumed; its report is then in the ledger.

    With `retry_failed`, those that failed are then decided and sent again: in further batches with their own receipts,
    but with the same message keys. A retry that was interrupted is finished instead. Messages that an earlier call left
    as not known are sent again with the same keys.

    `progress` is called with the number of subjects done. With `waits` it waits for a receiver or a store that is down,
    and says so. `pause` and `jitter` (0 to 1) are for tests. Raises `CampaignStopped` after a stop,
    `SenderFailingError` when the receiver accepts nothing, another `CaplineError` for what must be fixed first. After
    each of these, and after kill -9, another call resumes the run.
    """
    state = ledger.state()
    was_cut_off = not state.finished and state.batches > job.batches
    asks = job.file.sender.asks_again and not state.cancelled
    retry_failed = retry_failed and not state.cancelled
    doubtful = {rows.number for rows in ledger.batches() if rows.in_state(NOT_KNOWN).size} if asks else set[int]()
    if state.finished:
        is_retried = retry_failed and retry.retry_failed(job, ledger)
        if not is_retried and not doubtful:
            return
    sender, store, done = job.file.sender, ledger.store, 0

    def advance(rows: int) -> None:
        nonlocal done
        if progress is not None:
            done = max(done, store.state(ledger.name).done + rows)
            progress(done)

    breaker = Breaker(sender.breaker, size=sender.request_size)
    delivery = Delivery(ledger.run, job.file, job.policy, limiter, breaker, job, advance, jitter, doubtful=doubtful)
    worker = Worker(store, stop, takeover_s=AGAIN_S, only=delivery, waits=waits, say=say, pause=pause)
    try:
        job.take_over_file(store, replace(job.run(), facts=ledger.facts), is_new=ledger.has_new_file)
        stop.check()
        with delivery.closing:
            delivery.open_sender()
            preparing = None if state.is_whole else store.claim(ledger.name, worker.name, 0)
            if isinstance(preparing, Claimed) and preparing.number == PREPARE:
                fill(job, store, preparing, lambda _queued: stop.check(), here=True)
            ledger.freeze_inputs(store_input(limiter))
            if doubtful:
                retry.retry_unknown(job, ledger)
            worker.work()
            if retry_failed and not (state.finished or was_cut_off) and retry.retry_failed(job, ledger):
                worker.work()
    except StoreError as error:
        raise type(error)(str(error) if AGAIN in str(error) else f"{error}; {AGAIN}") from None
