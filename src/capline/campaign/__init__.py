"""Campaigns: one message to many subjects, capped by a policy, delivered by a sender, written down step by step.

    file       campaign.yaml to a `CampaignFile`, or every fault with its line
    prepare    the files that it names, read and checked: a `Job`; nothing is consumed or written before it is whole
    plan       a job's exact forecast, by peeking
    settle     the way of one batch: decide, deliver, refund; each step is in the record before the next one acts
    breaker    whether the far side takes anything at all; where it does not, a campaign stops early
    run        a job in one process, batch by batch, with a ledger as the record
    ledger     the steps, in a run directory; what makes a killed run go on to the same end; `ledger_retry`: further
               batches of those who failed
    report     the counts, from a ledger or a forecast; `store_facts`: the store that they rest on
    outcomes   what became of one recipient, or of all as a file
    enqueue    a job to the queue, for workers on any hosts; `worker` is one of them, `queue_status` looks at all
    queue      the batches and their record on a Redis or Valkey server; `lua/` has each verb, `part` a batch as bytes
    senders    who takes the messages: file, webhook, smtp, or a third party's

A job is a list of batches, each with its own receipt, row in the ledger and hand-overs; none refers to another.
"""

from capline.campaign.file import CampaignFile, load_campaign
from capline.campaign.ledger.ledger import Ledger, default_directory
from capline.campaign.plan import plan
from capline.campaign.prepare import Job, prepare
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
    "default_directory",
    "load_campaign",
    "open_run",
    "plan",
    "prepare",
    "report_of",
    "run",
]
