"""`capline campaign outcome | outcomes`: what became of one recipient, and of all of them as a file."""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.input.campaigns import QueueOption, Target, TargetArgument
from capline.cli.input.declare import Commands
from capline.cli.input.options import LedgerOption
from capline.cli.render.console import Answer, out
from capline.model.errors import CampaignError, InvalidValueError

if TYPE_CHECKING:
    from capline.campaign.outcomes import Outcome

app = Commands()

_LARGEST_ID = 0xFFFF_FFFF
_ID = re.compile(r"[0-9]{1,10}")


@app.answers(
    "capline campaign outcome summer-sale.yaml 1001",
    "capline campaign outcome summer-sale 1001 --queue redis://127.0.0.1:6379/0 --json",
)
def outcome(
    target: TargetArgument,
    recipient: Annotated[str, typer.Argument(metavar="ID", help="The recipient.")],
    ledger: LedgerOption = None,
    queue: QueueOption = None,
) -> Answer:
    """Show what became of one recipient: sent, refused (by which limit, until when), failed (why), not known."""
    from capline.campaign.outcomes import outcome_of

    if not _ID.fullmatch(recipient) or int(recipient) > _LARGEST_ID:
        raise InvalidValueError(f"recipient {recipient!r}: a campaign's ids are whole numbers from 0 to {_LARGEST_ID}")
    with Target(target, ledger, queue).opened() as opened:
        found = outcome_of(opened, int(recipient))
        if found is None:
            end = "is not in its audience" if opened.is_finished else "was not decided yet, or is not in its audience"
            raise CampaignError(f"{opened.place}: {recipient} {end}")
    return Answer(found, _sentence(found))


@app.verb(
    "capline campaign outcomes summer-sale.yaml --to outcomes.parquet",
    "capline campaign outcomes summer-sale.yaml --to outcomes.csv",
)
def outcomes(
    target: TargetArgument,
    to: Annotated[Path, typer.Option(metavar="FILE", help="Where to write them: .parquet or .csv.")],
    ledger: LedgerOption = None,
    queue: QueueOption = None,
) -> None:
    """Write the outcomes so far to a Parquet or CSV file: one row for each recipient that was decided."""
    from capline.campaign.outcomes import export_outcomes

    with Target(target, ledger, queue).opened() as opened:
        count = export_outcomes(opened.facts, opened.batches(), to)
        left = opened.facts.audience - count
    rest = f"; {left:,} are not decided yet" if left else ""
    out.print(f"{to}: {count:,} recipients{rest}", markup=False, soft_wrap=True)


def _sentence(found: Outcome) -> str:
    words = f"{found.subject}: {found.outcome}"
    if found.outcome == "refused":
        until = "never fits: the cost is above the quota" if found.until is None else f"until {found.until}"
        words += f" by {found.limit}, {until}" if found.limit else f", {until}"
    if found.reason:
        words += f": {found.reason}"
    if found.given_back:
        words += "; given back"
    segment = f", segment {found.segment}" if found.segment else ""
    return f"{words} (decided {found.decided}{segment}, key {found.key})"
