"""The exact forecast: what `run` would do at this instant, by peeking. Nothing is consumed, and nothing is written.

It is exact because the subjects of an audience are all different: no decision of the campaign changes another. Whether
messages will be delivered it cannot know.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from capline.campaign.prepare import limiter_kinds
from capline.campaign.report import Report, Tally
from capline.campaign.rows import DELIVERED, PENDING, BatchRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.campaign.prepare import Job

__all__ = ["plan"]


def plan(job: Job, progress: Callable[[int], object] | None = None) -> Report:
    """Forecast a campaign as if it were begun now; `progress` is called with the subjects so far."""
    file = job.file
    tally = Tally(job.audience.sizes())
    with job.open_limiter(_existing(file.store)) as limiter:
        for number in range(job.batches):
            part = job.part(number, texts=False)
            names, zones, codes = limiter_kinds(job.policy, part, job.audience.segments, job.audience.zones)
            at_us = limiter.now_us()
            answers = limiter.peek_many(
                job.policy.name, part.ids, segment=names, codes=codes, channel=file.channel, zone=zones, cost=file.cost
            )
            peeked = BatchRows.of(number, at_us, part.ids, part.codes, answers)
            peeked.state[peeked.where(PENDING)] = DELIVERED
            tally.add(peeked)
            if progress is not None:
                progress(job.rows(number).stop)
    return tally.report(job.facts(), "planned", 0)


def _existing(url: str) -> str:
    """The store to peek into: one that is not there yet is as empty as `memory://`, and must not be made by looking."""
    parts = urlsplit(url)
    if parts.scheme == "lmdb" and not Path(unquote(parts.netloc + parts.path), "data.mdb").exists():
        return "memory://"
    return url
