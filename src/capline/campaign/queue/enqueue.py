"""Enqueueing a job: its run and its batches go to the queue, from where workers take them.

A worker reads no file: it is given the campaign file's text, the policies' text, and with each batch its subjects. What
is secret stays behind: `${NAME}` goes as it stands, and each worker fills it from its own environment.

Killed midway and asked again, it goes on behind the last batch that is queued; batches that were set aside are put
again. Two at once put each batch once.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import msgspec

from capline.campaign.ledger.ledger import changed_inputs
from capline.campaign.queue.queue import QueuedRun
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from capline.campaign.file import CampaignFile
    from capline.campaign.prepare import Job
    from capline.campaign.queue.queue import Queue

__all__ = ["Enqueued", "enqueue"]


class Enqueued(msgspec.Struct, frozen=True):
    """What came of it: `state` is "new", "continued" or "finished" (before); `put` batches were queued by this call."""

    campaign: str
    run: str
    queue: str
    state: str
    audience: int
    batches: int
    put: int


def enqueue(job: Job, queue: Queue, progress: Callable[[int], object] | None = None) -> Enqueued:
    """Put what is not in the queue yet; `progress` is called with the number of batches that are.

    `CampaignError` where the campaign's run was begun with something else, or where workers could not use it.
    """
    wanted = _run_of(job)
    name = wanted.facts.campaign
    begun = queue.begin(wanted)
    run = queue.find(name)
    if run is None:
        raise CampaignError(f"queue {queue.server.url}: the run of {name!r} is gone; enqueue it again")
    changed = changed_inputs(run.inputs, wanted.inputs)
    if changed:
        raise CampaignError(
            f"queue {queue.server.url}: campaign {name!r} was enqueued with another {', another '.join(changed)}; "
            "put it back to go on, or begin a new run under another name ('campaign:')",
        )
    state = queue.state(name)
    if not state.finished and not begun:
        queue.put_files(replace(wanted, facts=run.facts))
    missing = [] if state.finished else [*state.aside, *range(state.queued, job.batches)]
    for queued in queue.put(run, _batches(job, missing)):
        if progress is not None:
            progress(queued)
    said = "new" if begun else "finished" if state.finished else "continued"
    return Enqueued(name, run.facts.run_id, queue.server.url, said, len(job.audience), job.batches, len(missing))


def _batches(job: Job, numbers: list[int]) -> Iterator[tuple[int, int, bytes]]:
    for number in numbers:
        part = job.part(number)
        yield number, len(part), part.pack()


def _run_of(job: Job) -> QueuedRun:
    file = job.file
    return QueuedRun(
        replace(job.facts(), run_id=secrets.token_hex(8)),
        job.inputs,
        file.text,
        os.path.abspath(file.path),  # noqa: PTH100 - `resolve` would follow links, and paths start where the file is
        _store_for_workers(file),
        job.policies_text,
        tuple(job.audience.texts),
        () if job.audience.zone_codes is None else job.audience.zones,
        job.batches,
    )


def _store_for_workers(file: CampaignFile) -> str:
    """What stands for the file's store elsewhere: an lmdb path without links; empty where the text will do."""
    parts = urlsplit(file.store_text)
    if parts.scheme == "memory":
        raise CampaignError(
            "store memory:// is one process's own; workers need one that they share: redis:// or lmdb://"
        )
    if parts.password and "${" not in parts.password:
        raise CampaignError(
            "the store's password would stand in the queue; write it as ${NAME} in the campaign file's 'store:', "
            "and set that variable for enqueue and for each worker",
        )
    if parts.scheme != "lmdb" or "${" in file.store_text:
        return ""
    parts = urlsplit(file.store)
    path = os.path.realpath(unquote(parts.netloc + parts.path))
    return f"lmdb://{quote(path)}{'?' + parts.query if parts.query else ''}"
