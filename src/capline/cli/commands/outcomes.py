"""`capline campaign outcome | outcomes`: what became of one recipient, and of all of them as a file."""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.input.campaigns import Target
from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer, out

if TYPE_CHECKING:
    from capline.campaign.outcomes import Outcome

app = Commands()


@app.answers(
    "capline campaign outcome summer-sale.yaml 1001",
    "capline campaign outcome summer-sale 1001 --queue redis://127.0.0.1:6379/0 --json",
)
def outcome(of: Target, recipient: Annotated[str, typer.Argument(metavar="ID", help="The recipient.")]) -> Answer:
    """Show what became of one recipient: sent, refused (by which limit, until when), failed (why), not known."""
    from capline.campaign.outcomes import recipients_outcome

    if (served := of.served) is not None:
        found = served.outcome(of.name, recipient)
    else:
        with of.opened() as opened:
            found = recipients_outcome(opened, recipient)
    return Answer(found, _sentence(found))


@app.verb(
    "capline campaign outcomes summer-sale.yaml --to outcomes.parquet",
    "capline campaign outcomes summer-sale.yaml --to outcomes.csv",
)
def outcomes(
    of: Target, to: Annotated[Path, typer.Option(metavar="FILE", help="Where to write them: .parquet or .csv.")]
) -> None:
    """Write the outcomes so far to a Parquet or CSV file: one row for each recipient that was decided."""
    from capline.campaign.outcomes import export_outcomes, tables_of

    if (served := of.served) is not None:
        count = export_outcomes(served.tables(of.name), to)
        left = served.report(of.name).total.audience - count
    else:
        with of.opened() as opened:
            count = export_outcomes(tables_of(opened.facts, opened.batches()), to)
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
