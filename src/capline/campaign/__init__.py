"""Campaigns: one message to many subjects, capped by a policy, delivered by a sender, written down step by step.

    file       campaign.yaml to a `CampaignFile`, or every fault with its line
    prepare    the files that it names, read and checked: a `Job`; nothing is consumed or written before it is whole
    plan       a job's exact forecast, by peeking; `conflicts`: what campaigns that wait do to each other
    store      campaigns, their batches and steps: in a SQLite file of this machine, or on a Redis or Valkey server
    deliver    the steps of one batch: decide, send, refund; each is recorded before the next one begins
    breaker    the circuit breaker: stops a campaign early where the receiver accepts nothing
    ledger     a run in its store, from which a killed one resumes; `retry`: further batches of those that failed
    run        a job in one process, batch by batch, with a store of its own in a directory
    report     the counts, of a run or a forecast; `store_facts`: the limits' store of the run
    outcomes   what became of one recipient, or of all as a file; `response`: what came back after them
    queue      campaigns across workers: `enqueue` fills a store, `worker` delivers, `status` reports;
               `part` is a batch as bytes
    senders    deliver the messages: file, webhook, smtp, queues, or a third party's

A job is a list of batches, each with its own receipt, steps and sends; no batch refers to another.
"""

from capline.model.errors import CampaignError

try:
    import numpy as np  # noqa: F401  # pyright: ignore[reportUnusedImport] - what follows counts on arrays
except ModuleNotFoundError:
    raise CampaignError('campaigns need numpy: pip install "capline[campaign]"') from None

from capline.campaign.file import CampaignFile, load_campaign
from capline.campaign.ledger import Ledger, default_directory
from capline.campaign.plan import plan
from capline.campaign.prepare import Job, accept, begun_version, open_segments, prepare
from capline.campaign.report import Report, report_of
from capline.campaign.run import open_run, run
from capline.campaign.stop import CampaignStopped, Stop

__all__ = [
    "CampaignFile",
    "CampaignStopped",
    "Job",
    "Ledger",
    "Report",
    "Stop",
    "accept",
    "begun_version",
    "default_directory",
    "load_campaign",
    "open_run",
    "open_segments",
    "plan",
    "prepare",
    "report_of",
    "run",
]
