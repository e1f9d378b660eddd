"""Which store a campaign uses and what it holds: shown before anything is sent, and stored with the run.

A URL says where a store is, but not whether it is still the same store. For that the embedded store has an identity, a
random number from its creation. Servers have none, so their URL must do.

The store also knows which run a campaign has, by a hit with the run's id: ledgers and queues do not know of each other.
"""

import hashlib

from capline.campaign.file import CampaignFile
from capline.campaign.rate import RATE, RATES, claim_rate
from capline.campaign.report import StoreFacts
from capline.campaign.store.records import Input, Rate
from capline.limiter.limiter import Limiter
from capline.limiter.policies.unnamed import unnamed_policy
from capline.model.clock import SystemClock
from capline.model.decision import Decision
from capline.model.errors import CampaignConflictError, CampaignError
from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.store.redis.io.url import safe_url
from capline.support.instant import instant_text

_RUNS = "capline/runs"
_ONE_RUN = "1/3650 days"
_NOBODYS = [unnamed_policy(_RUNS, [_ONE_RUN]), *(Policy(name, [_ONE_RUN]) for name in (RATE, RATES))]
"""Their logs count runs and rates, and no recipient."""


def claim_run(limiter: Limiter, file: CampaignFile, run_id: str, rate: Rate | None) -> None:
    """Make this run the campaign's, and this rate its key's, or find that they are; else `CampaignError`."""
    _refuse_unless(limiter.decide(_RUNS, file.campaign, id=run_id, limits=[_ONE_RUN]), limiter, file.campaign)
    claim_rate(limiter, file.rate_key, rate)


def why_no_rehearsal(file: CampaignFile, limiter: Limiter) -> str | None:
    """Why the campaign's instant may not be used on this store: None where it has come, or only rehearsals meet it."""
    if file.rehearsal or file.as_of_us is None or file.as_of_us <= SystemClock().now_us():
        return None
    if _recipients_logs(limiter) == 0:
        return None
    return (
        f"{file.path}: 'as_of:' is in the future, and the store may be in use: its subjects would be counted there and "
        "refused until then; name an empty store, or write 'rehearsal: true' if only rehearsals use this one"
    )


def refuse_new_run(file: CampaignFile, limiter: Limiter, rate: Rate | None = None) -> None:
    """`CampaignError` where a run that begins now may not: `why_no_rehearsal`, or the store knows another run."""
    if problem := why_no_rehearsal(file, limiter):
        raise CampaignError(problem)
    _refuse_unless(limiter.peek(_RUNS, file.campaign, limits=[_ONE_RUN]), limiter, file.campaign)
    claim_rate(limiter, file.rate_key, rate or (file.rate and Rate(str(file.rate))))


def _refuse_unless(free: Decision, limiter: Limiter, campaign: str) -> None:
    if not free:
        begun_us = limiter.now_us() + (free.retry_after_us or 0) - Limit.parse(_ONE_RUN).window_us
        raise CampaignConflictError(
            f"campaign {campaign!r} has another run, of {instant_text(begun_us)}; this one would send the same "
            "messages again: go on with that one (its --ledger DIR, or capline worker where it was enqueued), or give "
            "this one another name ('campaign:')"
        )


def store_facts(url: str, limiter: Limiter) -> StoreFacts:
    """The facts of an open store. Cost: it reads a log for each campaign that was ever run with it."""
    logs = _recipients_logs(limiter)
    begun = None if logs is None else instant_text(limiter.stats()["begun_us"])
    return StoreFacts(safe_url(url), logs, begun, None if logs is None else not logs)


def _recipients_logs(limiter: Limiter) -> int | None:
    """How many subjects have a log, without campaigns and keys of rates; None where the store cannot tell."""
    logs = limiter.stats().get("logs")
    if not logs:
        return logs
    nobodys = {(record.log, record.subject) for record in limiter.beside(_NOBODYS).export()}
    return logs - len(nobodys)


def new_store(url: str) -> StoreFacts:
    """The facts of a store that does not exist yet."""
    return StoreFacts(safe_url(url), 0, None, is_new=True)


def store_input(limiter: Limiter) -> Input:
    """The store's identity as an input of a run."""
    stats = limiter.stats()
    digest = hashlib.sha256(str(stats.get("identity", "")).encode()).hexdigest()
    return Input("store identity", digest, f"made {instant_text(stats['begun_us'])}" if "begun_us" in stats else "")
