"""Puts a job's run and its batches into the queue, for workers to claim.

A worker reads no files. The queue holds the text of the campaign file and of the policies, and the subjects of each
batch. Secrets stay out: `${NAME}` is queued as written, and each worker fills it from its own environment.

A call that was killed midway is simply repeated: it goes on after the last queued batch, and puts dead letters back.
Two calls at once still queue each batch once.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import msgspec

from capline.campaign.ledger import Ledger
from capline.campaign.retry import ask_again, retry_failed
from capline.campaign.senders.protocol import asks_again
from capline.campaign.store.inputs import changed_inputs
from capline.campaign.store_facts import refuse_new_run
from capline.model.errors import CampaignConflictError, CampaignError, NoStoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from capline.campaign.file import CampaignFile
    from capline.campaign.prepare import Job
    from capline.campaign.store.protocol import Batch, CampaignStore


class Enqueued(msgspec.Struct, frozen=True):
    """The result. `state`: "new", "continued" or "finished" (already before); `put`: batches queued by this call."""

    campaign: str
    run: str
    queue: str
    state: str
    audience: int
    batches: int
    put: int


def enqueue(
    job: Job, queue: CampaignStore, progress: Callable[[int], object] | None = None, *, run_id: str | None = None
) -> Enqueued:
    """Queue the batches that are not queued yet; `progress` is called with the number of queued batches.

    A run that begins now has this id, or one of its own.

    `CampaignError` where the campaign was enqueued with other inputs, or where workers could not open its store.
    """
    wanted = job.run(_store_for_workers(job.file))
    wanted = replace(wanted, facts=replace(wanted.facts, run_id=run_id or wanted.facts.run_id))
    name = wanted.facts.campaign
    if queue.find(name) is None:
        # Where the store is not reached from here, workers find the same. A rate is claimed there.
        create = job.file.rate is not None
        with suppress(NoStoreError, StoreUnavailableError), job.open_limiter(create=create) as limiter:
            refuse_new_run(job.file, limiter)
    begun = queue.begin(wanted)
    run = queue.find(name)
    if run is None:
        raise CampaignError(f"queue {queue.url}: the run of {name!r} is gone; enqueue it again")
    changed = changed_inputs(run.inputs, wanted.inputs)
    if changed:
        raise CampaignError(
            f"queue {queue.url}: campaign {name!r} was enqueued with another {', another '.join(changed)}; "
            "put it back to go on, or begin a new run under another name ('campaign:')"
        )
    state = queue.state(name)
    if not state.finished:  # before the first batch is there to be claimed
        job.heed(queue, replace(wanted, facts=run.facts), is_new=run.text != wanted.text)
    missing = [] if state.finished else [*state.aside, *range(state.queued, job.batches)]
    for queued in queue.put(run, _batches(job, missing)):
        if progress is not None:
            progress(queued)
    outcome = "new" if begun else "finished" if state.finished else "continued"
    return Enqueued(name, run.facts.run_id, queue.url, outcome, len(job.audience), job.batches, len(missing))


def retry(job: Job, queue: CampaignStore) -> Enqueued:
    """Put those that failed, or are not known, back into the queue; `CampaignError` where it is not finished."""
    queued = enqueue(job, queue)
    opened = Ledger.of(queue, job.file.campaign)
    state = opened.state()
    if not state.finished or state.cancelled:
        what = "was cancelled" if state.cancelled else "is not finished; retry what failed when it is"
        raise CampaignConflictError(f"campaign {job.file.campaign!r} {what}")
    asks = asks_again(job.file.sender.sender)
    return msgspec.structs.replace(queued, put=retry_failed(job, opened) + (ask_again(job, opened) if asks else 0))


def _batches(job: Job, numbers: list[int]) -> Iterator[Batch]:
    for number in numbers:
        part = job.part(number)
        yield number, len(part), part.pack(), job.due_us(number)


def _store_for_workers(file: CampaignFile) -> str:
    """The store's URL for workers: an lmdb path made absolute; empty where the URL in the file works as it is."""
    parts = urlsplit(file.store_text)
    if parts.scheme == "memory":
        raise CampaignError(
            "store memory:// belongs to one process; workers need one that they share: redis:// or lmdb://"
        )
    if parts.password and "${" not in parts.password:
        raise CampaignError(
            "the store's password would be stored in the queue; write it as ${NAME} in the campaign file's 'store:', "
            "and set that variable for enqueue and for each worker"
        )
    if parts.scheme != "lmdb" or "${" in file.store_text:
        return ""
    parts = urlsplit(file.store)
    path = os.path.realpath(unquote(parts.netloc + parts.path))
    return f"lmdb://{quote(path)}{'?' + parts.query if parts.query else ''}"
