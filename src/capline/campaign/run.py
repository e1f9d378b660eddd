"""Running a job, batch by batch: decide, write down, hand over, write down, give back, write down.

The rule: a step is in the ledger before the next one acts, and every step can be taken again: deciding by its receipt,
handing over by the messages' keys, giving back by the hits' stamps. So it does not matter where a process is killed;
the next one takes the first step that is not written down (again). `ledger` shows each place and what follows.

Batches are taken in order, one at a time, each to its end with all its retries: what is in memory, and what a kill can
leave half done, is one batch.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from capline.campaign.ledger import Ledger
from capline.campaign.rows import FAILED, REFUNDED, RETRY, BatchRows
from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, Messages, Outcomes, RunInfo
from capline.model.errors import CampaignError, CaplineError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from numpy.typing import NDArray

    from capline.campaign.file import Retry
    from capline.campaign.prepare import Job
    from capline.campaign.stop import Stop
    from capline.limiter.limiter import Limiter

__all__ = ["backoff_s", "open_run", "run"]

_AGAIN = "nothing is lost: mend it and run the same command again"


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

    `progress` is called with the number of subjects whose batch is settled. `pause` (default: the stop's wait) and
    `jitter` (0 to 1) are for tests. Raises `CampaignStopped` when that was asked, and a `CaplineError` for what cannot
    go on; after both, and after kill -9, `run` goes on where it was.
    """
    if ledger.is_finished:
        return
    info = RunInfo(job.file.campaign, ledger.facts.run_id, job.file.channel, tuple(job.audience.texts))
    sender = job.file.sender.sender
    try:
        with _as_campaign_errors(job.file.sender.name):
            sender.open(info)
        _Run(job, limiter, ledger, stop, info, pause or stop.wait, jitter).all(progress)
    except StoreError as error:
        raise type(error)(f"{error}; {_AGAIN}") from None
    finally:
        sender.close()


def backoff_s(tries: int, retry: Retry, asked_s: float, jitter: float) -> float:
    """How long to wait after so many tries: doubling up to the longest.

    `jitter` (0 to 1) takes off up to half. Not below what the far side asked for, but not above the longest either.
    """
    wait_s = min(retry.longest_s, retry.wait_s * 2.0 ** min(tries - 1, 60))
    return max(wait_s * (1 - jitter / 2), min(asked_s, retry.longest_s))


@contextmanager
def _as_campaign_errors(name: str) -> Generator[None]:
    """A sender is anyone's code: whatever it raises is one line, and the run can be gone on with."""
    try:
        yield
    except CaplineError:
        raise
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise CampaignError(f"sender {name!r} failed ({what}); {_AGAIN}") from error


class _Run:
    """One process's part in a run."""

    def __init__(
        self,
        job: Job,
        limiter: Limiter,
        ledger: Ledger,
        stop: Stop,
        info: RunInfo,
        pause: Callable[[float], object],
        jitter: Callable[[], float],
    ) -> None:
        self._job = job
        self._limiter = limiter
        self._ledger = ledger
        self._stop = stop
        self._info = info
        self._pause = pause
        self._jitter = jitter
        self._began = time.monotonic_ns() // 1000 - ledger.elapsed_us

    def all(self, progress: Callable[[int], object] | None) -> None:
        for number in range(self._ledger.next_batch(), self._job.batches):
            self._stop.check()
            rows = self._ledger.batch(number)
            self._settle(self._decide(number) if rows is None else rows)
            if progress is not None:
                progress(self._job.rows(number).stop)
        self._ledger.finish(self._elapsed_us())

    def _decide(self, number: int) -> BatchRows:
        rows = self._job.rows(number)
        names, codes = self._job.segment_terms(rows)
        ids = self._job.audience.ids[rows]
        now_us = self._limiter.now_us()
        answers = self._limiter.decide_many(
            self._job.policy.name,
            ids,
            segment=names,
            codes=codes,
            channel=self._job.file.channel,
            cost=self._job.file.cost,
            receipt=f"{self._info.campaign}/{self._info.run_id}/{number}",
        )
        for row, error in answers.errors.items():
            raise CampaignError(f"subject {ids[row]} could not be decided: {error}; {_AGAIN}")
        # Answers out of a receipt were given before a kill, and their `retry_after` counts from then: no hit is older.
        hits = answers.hit[answers.allowed]
        at_us = min(now_us, int(hits.max())) if hits.size else now_us
        decided = BatchRows.of(number, at_us, ids, self._job.audience.codes[rows], answers)
        self._ledger.add(decided)
        return decided

    def _settle(self, rows: BatchRows) -> None:
        """Hand the batch over until no row is due, giving back what failed for good as soon as that is known."""
        columns = self._job.audience.columns(self._job.rows(rows.number))
        everyone = Messages(self._info, rows.number, rows.ids, rows.codes, self._job.audience.segments, columns)
        self._give_back(rows)
        while True:
            due = rows.due()
            if not due.size:
                return
            asked_s = 0.0
            most = self._job.file.sender.sender.most or due.size
            for start in range(0, due.size, most):
                self._stop.check()
                asked_s = max(asked_s, self._hand_over(rows, due[start : start + most], everyone))
                self._give_back(rows)
            tries = rows.attempts[rows.where(RETRY)]
            if tries.size:
                self._pause(backoff_s(int(tries.max()), self._job.file.retry, asked_s, self._jitter()))

    def _hand_over(self, rows: BatchRows, due: NDArray[np.intp], everyone: Messages) -> float:
        outcomes = self._send(everyone.take(due))
        rows.take_outcomes(due, outcomes, self._job.file.retry.attempts)
        self._ledger.save(rows, self._elapsed_us())
        return outcomes.wait_s

    def _send(self, messages: Messages) -> Outcomes:
        name = self._job.file.sender.name
        with _as_campaign_errors(name):
            outcomes = self._job.file.sender.sender.send(messages)
        known = np.isin(outcomes.codes, (DELIVERED, PERMANENT, TRANSIENT))
        if len(outcomes.codes) != len(messages) or not known.all():
            raise CampaignError(f"sender {name!r} gave no sound outcome for each of {len(messages)} messages; {_AGAIN}")
        return outcomes

    def _give_back(self, rows: BatchRows) -> None:
        failed = rows.where(FAILED)
        if failed.size:
            # False for a hit means that a killed process gave it back already, or that it has left every window.
            self._limiter.refund_many(self._job.policy.name, rows.ids[failed], rows.hit[failed])
            rows.state[failed] = REFUNDED
            self._ledger.save(rows, self._elapsed_us())

    def _elapsed_us(self) -> int:
        return time.monotonic_ns() // 1000 - self._began
