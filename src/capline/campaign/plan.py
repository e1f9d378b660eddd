"""The exact forecast: what `run` would do at this instant, by peeking. Nothing is consumed, and nothing is written.

It is exact because the subjects of an audience are all different, so no decision of the campaign affects another. It
cannot know whether messages will be delivered. Places that it loses to campaigns that wait, and takes from them, are
reported beside it.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import msgspec

from capline.campaign.attempts import Attempts
from capline.campaign.conflicts.find import Conflict, conflicts_of
from capline.campaign.prepare import Job
from capline.campaign.report import OutcomeCounts, Report
from capline.campaign.store.protocol import CampaignStore
from capline.campaign.store.rows import DELIVERED, PENDING
from capline.campaign.store_facts import new_store, store_facts
from capline.model.errors import NoStoreError


class Plan(Report, frozen=True, kw_only=True):
    """A forecast, and `conflicts` with the campaigns that wait, each at its time, on the logs as they are.

    `unread` says by name why one of them could not be looked at.
    """

    conflicts: list[Conflict]
    unread: dict[str, str]


def plan(job: Job, progress: Callable[[int], object] | None = None, beside: CampaignStore | None = None) -> Plan:
    """Forecast a campaign as if it were begun now; `progress` is called with the subjects so far.

    `beside` has the campaigns that wait.
    """
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
        attempts = Attempts(limiter, file, job.policy, job.audience.segments, job.audience.zones)
        for number in range(job.batches):
            part = job.part(number, texts=False)
            peeked = attempts.begin(part)
            decided = peeked.todo("decide")
            peeked.take_decisions(decided, attempts.peek(part, decided), file.holds)
            peeked.state[peeked.in_state(PENDING)] = DELIVERED
            counts.add(peeked)
            if progress is not None:
                progress(job.rows(number).stop)
    facts = replace(job.run().facts, run_id="")
    report = msgspec.structs.replace(counts.report(facts), store=store)
    places, unread = ([], {}) if beside is None else conflicts_of(job, beside)
    return Plan(**msgspec.structs.asdict(report), conflicts=places, unread=unread)
