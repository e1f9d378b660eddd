"""Runs a job in this process, with a store of its own in a directory (`ledger`). `deliver` has the steps of a batch.

Batches are delivered in order, one at a time, each with all its retries: one that is due later is waited for, but for
messages that are held. So only one batch is in memory, and a kill can leave only one half done.
"""

from __future__ import annotations

import random
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from capline.campaign import retry
from capline.campaign.breaker import Breaker
from capline.campaign.deliver import AGAIN, Delivery, Held, Later, Paused, Steps
from capline.campaign.ledger import Ledger
from capline.campaign.senders.protocol import asks_again
from capline.campaign.store.records import Claimed, Over
from capline.campaign.store.rows import NOT_KNOWN
from capline.campaign.store_facts import refuse_new_run, store_input
from capline.model.errors import CampaignError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from capline.campaign.prepare import Job
    from capline.campaign.stop import Stop
    from capline.limiter.limiter import Limiter


_WORKER = "run"
_LOOK_S = 0.5
"""How often a run that waits looks whether it is due, or was resumed."""


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
    state = ledger.state()
    was_cut_off = not state.finished and state.batches > job.batches
    asks = asks_again(job.file.sender.sender) and not state.cancelled
    retry_failed = retry_failed and not state.cancelled
    doubtful = {rows.number for rows in ledger.batches() if rows.where(NOT_KNOWN).size} if asks else set[int]()
    if state.finished:
        is_retried = retry_failed and retry.retry_failed(job, ledger)
        if not is_retried and not doubtful:
            return
    sender = job.file.sender
    breaker = Breaker(sender.breaker, size=sender.request_size)
    delivery = Delivery(ledger.run, job.file, job.policy, limiter, breaker, job, jitter=jitter)
    working = _Run(job, ledger, delivery, stop, doubtful, progress or (lambda _done: None), pause or stop.wait)
    try:
        job.heed(ledger.store, replace(job.run(), facts=ledger.facts), is_new=ledger.has_new_file)
        with working.opened():
            working.work()
            if retry_failed and not (state.finished or was_cut_off) and retry.retry_failed(job, ledger):
                working.work()
    except StoreError as error:
        raise type(error)(f"{error}; {AGAIN}") from None


@dataclass(slots=True)
class _Run:
    """A run that is open here."""

    job: Job
    ledger: Ledger
    delivery: Delivery
    stop: Stop
    doubtful: set[int]
    progress: Callable[[int], object]
    pause: Callable[[float], object]

    @contextmanager
    def opened(self) -> Generator[None]:
        """The sender is open in the block, and the batches are in the store, before anything is decided."""
        job, ledger = self.job, self.ledger
        self.stop.check()
        with self.delivery.closing:
            self.delivery.open_sender()
            state = ledger.state()
            if not (state.is_whole or state.cancelled):
                preparing = ledger.store.claim(ledger.name, _WORKER, 0)
                fence = preparing.fence if isinstance(preparing, Claimed) else 0
                missing = range(state.queued, job.batches)
                batches = ((number, _size(job.rows(number)), b"", job.due_us(number), None) for number in missing)
                for _ in ledger.store.put(ledger.run, batches, fence):
                    self.stop.check()
            ledger.freeze_inputs(store_input(self.delivery.limiter))
            if self.doubtful:
                retry.ask_again(job, ledger)
            yield

    def work(self) -> None:
        """Deliver every batch that is not settled, in order."""
        store, name = self.ledger.store, self.ledger.name
        while True:
            self.stop.check()
            answer = store.claim(name, _WORKER, 0)
            if isinstance(answer, Over):
                return
            if not isinstance(answer, Claimed):
                self.stop.wait(_LOOK_S)
                continue
            try:
                self._deliver(answer)
            except Paused:
                pass
            except Held as held:
                store.release(answer, "give_back", wait_s=held.wait_s)
            except Later as later:
                self.pause(later.wait_s)

    def _deliver(self, claimed: Claimed) -> None:
        try:
            part, rows = self.delivery.read(claimed)
        except CampaignError:
            raise CampaignError(
                f"{self.ledger.place}: the ledger is damaged at batch {claimed.number}; restore it from a copy"
            ) from None
        steps = Steps(self.ledger.store, claimed, self.stop)
        if claimed.number in self.doubtful:
            self.doubtful.discard(claimed.number)
            if rows is not None:
                rows.ask_again()
                steps.save(rows)
        done = self.ledger.state().done
        self.delivery.progress = lambda rows: self.progress(done + rows)
        self.delivery.deliver(steps, part, rows)


def _size(rows: slice) -> int:
    return rows.stop - rows.start
