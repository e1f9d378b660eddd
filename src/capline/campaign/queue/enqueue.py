"""Puts a job's run and its batches into the queue, for workers to claim.

The queue holds the text of the campaign file and of the policies, and the subjects of each batch. Secrets stay out:
`${NAME}` is queued as written, and each worker fills it from its own environment.

Who prepares a campaign, a worker or this process, reads its audience and puts the batches. A call that was killed
midway is simply repeated: it goes on after the last queued batch, and puts dead letters back; else, when its lease has
ended, a worker that reaches the audience goes on. Calls at once still queue each batch once.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote, urlsplit

import msgspec

from capline.campaign.file import CampaignFile
from capline.campaign.ledger import Ledger
from capline.campaign.prepare import Accepted, Job
from capline.campaign.rate import refuse_other_rate
from capline.campaign.retry import retry_failed, retry_unknown
from capline.campaign.store.packed import span_of
from capline.campaign.store.protocol import Batch, CampaignStore
from capline.campaign.store.records import PREPARE, Claimed, StoredRun
from capline.campaign.store_facts import refuse_new_run
from capline.model.errors import CampaignConflictError, CampaignError, NoStoreError, StoreUnavailableError
from capline.store.open import lmdb_path

_PREPARER = "enqueue"
"""The worker's name of every process that enqueues, so that a repeated command goes on at once."""
_LEASE_S = 60.0
_LOOK_S = 0.1


class Enqueued(msgspec.Struct, frozen=True):
    """The result. `state`: "new", "continued" or "finished" (already before); `put`: batches queued by this call.

    `audience` and `batches` are None where a worker is to find out.
    """

    campaign: str
    run: str
    queue: str
    state: str
    audience: int | None
    batches: int | None
    put: int


def begin(
    accepted: Accepted, queue: CampaignStore, run_id: str | None = None, worker: str = ""
) -> tuple[StoredRun, str]:
    """Begin a campaign, or find it begun; returns the stored run, and "new", "continued" or "finished".

    A run that begins now has this id, or one of its own; this worker, or any, prepares it. One that was refused begins
    again. `CampaignError` where it was begun with other inputs, or where workers could not open its store.
    """
    wanted = accepted.run(_store_for_workers(accepted.file))
    name = wanted.facts.campaign
    found = queue.find(name)
    if found is None:
        # Where the store is not reached from here, workers find the same. A rate is claimed there.
        refuse_other_rate(queue, wanted)
        create = accepted.file.rate is not None
        with suppress(NoStoreError, StoreUnavailableError), accepted.open_limiter(create=create) as limiter:
            refuse_new_run(accepted.file, limiter, queue.rate(accepted.file.rate_key))
    elif found.rate and wanted.rate not in ("", found.rate):
        raise CampaignConflictError(
            f"campaign {name!r} was begun with rate {found.rate}; put it back, and change it by: "
            f"capline campaign set {name} --rate {wanted.rate}"
        )
    run_id = run_id or (wanted.facts.run_id if found is None else found.facts.run_id)
    wanted = replace(wanted, facts=replace(wanted.facts, run_id=run_id))
    begun = queue.begin(wanted, worker, _LEASE_S)
    run = queue.find(name)
    if run is None:
        raise CampaignError(f"queue {queue.url}: the run of {name!r} is gone; enqueue it again")
    if changed := accepted.changed(run):
        raise CampaignError(
            f"queue {queue.url}: campaign {name!r} was enqueued with another {', another '.join(changed)}; "
            "put it back to go on, or begin a new run under another name ('campaign:')"
        )
    state = queue.state(name)
    if not state.finished:  # before the first batch is there to be claimed
        accepted.take_over_file(queue, replace(wanted, facts=run.facts), is_new=run.text != wanted.text)
    return run, "new" if begun and found is None else "finished" if state.finished else "continued"


def enqueue(job: Job, queue: CampaignStore, progress: Callable[[int], object] | None = None) -> Enqueued:
    """Begin a campaign as `begin` does, and put its batches; `progress` is called with the number of queued batches."""
    run, how = begin(job, queue, worker=_PREPARER)
    name = job.file.campaign
    state, before = queue.state(name), queue.state(name).queued
    dead = [] if state.finished else [number for number in state.aside if number != PREPARE]
    deque(queue.put(run, _batches(job, dead)), 0)
    while not (state.is_whole or state.finished or state.cancelled):
        answer = queue.claim(name, _PREPARER, _LEASE_S)
        if isinstance(answer, Claimed) and answer.number == PREPARE:
            fill(job, queue, answer, progress)
        elif isinstance(answer, Claimed):  # a worker was faster
            queue.release(answer, "give_back")
        elif state.refused is None:
            time.sleep(_LOOK_S)
        else:
            begin(job, queue, worker=_PREPARER)
        state = queue.state(name)
    return Enqueued(
        name, run.facts.run_id, queue.url, how, len(job.audience), job.batches, state.queued - before + len(dead)
    )


def fill(
    job: Job,
    queue: CampaignStore,
    claimed: Claimed,
    progress: Callable[[int], object] | None = None,
    *,
    here: bool = False,
) -> None:
    """Put the missing batches, as the owner of the batch that prepares; stops when that batch is lost.

    `here`: without their subjects, for this process alone. `CampaignError` where the audience is not the one that the
    run was begun with.
    """
    run = queue.find(claimed.campaign)
    if run is not None and not run.batches and not job.changed(run):
        queue.describe(claimed, job.described(run))
        run = queue.find(claimed.campaign)
    if run is None:
        return
    if changed := job.changed(run):
        raise CampaignError(
            f"{job.file.path}: since the campaign was accepted there is another {', another '.join(changed)}; put it "
            "back and begin it again, or give it another name ('campaign:')"
        )
    job.set_times(queue)  # before the last batch is there: then they can be claimed
    missing = range(queue.state(claimed.campaign).queued, job.batches)
    for queued in queue.put(run, _batches(job, missing, here=here), claimed.fence):
        queue.renew(claimed)
        if progress is not None:
            progress(queued)


def retry(job: Job, queue: CampaignStore) -> Enqueued:
    """Put those that failed, or are not known, back into the queue; `CampaignError` where it is not finished."""
    queued = enqueue(job, queue)
    opened = Ledger.of(queue, job.file.campaign)
    state = opened.state()
    if not state.finished or state.cancelled:
        what = "was cancelled" if state.cancelled else "is not finished; retry what failed when it is"
        raise CampaignConflictError(f"campaign {job.file.campaign!r} {what}")
    asked = retry_unknown(job, opened) if job.file.sender.asks_again else 0
    return msgspec.structs.replace(queued, put=retry_failed(job, opened) + asked)


def _batches(job: Job, numbers: Iterable[int], *, here: bool = False) -> Iterator[Batch]:
    for number in numbers:
        part = job.part(number, texts=not here)
        yield number, len(part), b"" if here else part.pack(), job.due_us(number), span_of(part.ids)


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
    query = urlsplit(file.store).query
    return f"lmdb://{quote(str(lmdb_path(file.store).resolve()))}{'?' + query if query else ''}"
