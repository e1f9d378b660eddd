"""The exact forecast: what `run` would do at this instant, by peeking. Nothing is consumed, and nothing is written.

It is exact because the subjects of an audience are all different, so no decision of the campaign affects another. It
cannot know whether messages will be delivered.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from capline.campaign.prepare import limiter_kinds
from capline.campaign.report import OutcomeCounts, Report
from capline.campaign.store.packed import subjects
from capline.campaign.store.rows import DELIVERED, PENDING, BatchRows
from capline.campaign.store_facts import new_store, store_facts
from capline.model.errors import NoStoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.campaign.prepare import Job


def plan(job: Job, progress: Callable[[int], object] | None = None) -> Report:
    """Forecast a campaign as if it were begun now; `progress` is called with the subjects so far."""
    file = job.file
    counts = OutcomeCounts(job.audience.sizes())
    with ExitStack() as stack:
        try:
            limiter = stack.enter_context(job.open_limiter(create=False))
            store = store_facts(file.store, limiter)
        except NoStoreError:
            # A missing store is as empty as `memory://`, and a plan must not create it.
            limiter = stack.enter_context(job.open_limiter("memory://"))
            store = new_store(file.store)
        for number in range(job.batches):
            part = job.part(number, texts=False)
            names, zones, codes = limiter_kinds(job.policy, part, job.audience.segments, job.audience.zones)
            at_us = limiter.now_us()
            answers = limiter.peek_many(
                job.policy.name,
                subjects(part.ids),
                segment=names,
                codes=codes,
                channel=file.channel,
                zone=zones,
                cost=file.cost,
            )
            peeked = BatchRows.of(number, at_us, part.ids, part.codes, answers)
            peeked.state[peeked.where(PENDING)] = DELIVERED
            counts.add(peeked)
            if progress is not None:
                progress(job.rows(number).stop)
    return msgspec.structs.replace(counts.report(job.facts()), store=store)
