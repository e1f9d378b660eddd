"""`capline campaign run | plan | status`: cap a campaign and send it, forecast it, look how far it is.

A run that was stopped or killed is taken up by the same command. Answers go to standard output, progress and hints to
standard error. Modules are imported where they are used: `--help` stays instant.
"""

# ruff: noqa: PLC0415 - imports inside functions, for the reason above

from __future__ import annotations

import os
import shlex
import signal
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.common import JsonOption, answer_json, note, out
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.console import Console

    from capline.campaign import Report
    from capline.campaign.report import Eligible, SegmentReport

__all__ = ["app"]

app = typer.Typer(
    name="campaign",
    help="Cap a [bold]campaign[/] and send it, forecast it, look how far it is.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

CampaignArgument = Annotated[
    Path, typer.Argument(metavar="CAMPAIGN.YAML", help="The campaign file.", show_default=False)
]
LedgerOption = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="DIR",
        help="The run's directory; NAME.run beside NAME.yaml, if left out.",
        show_default=False,
    ),
]
ProgressOption = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show progress; on a terminal, if left out.", show_default=False),
]

_MOST_TIMES = 14
_MOST_REASONS = 5
_STATES = {
    "planned": "[bold]forecast[/], nothing consumed",
    "finished": "[bold green]finished[/]",
    "running": "[bold cyan]running[/]",
    "stopped": "[bold yellow]not finished[/], no process is in it",
}


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline campaign run summer-sale.yaml\n\n"
    "capline campaign run summer-sale.yaml --json > report.json",
)
def run(
    campaign: CampaignArgument,
    ledger: LedgerOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide, deliver and report; stopped or killed at any point, the same command goes on where it was.

    Ctrl-C finishes the step under way (exit code 130), a second one ends at once. Both can be resumed.
    """
    from capline.campaign import CampaignStopped, Stop, default_directory, load_campaign, open_run, prepare, report_of
    from capline.campaign import run as run_job

    directory = ledger or default_directory(campaign)
    job = prepare(load_campaign(campaign))
    with open_run(job, directory) as (limiter, opened), closing(Stop()) as stop:
        if opened.is_finished:
            note.print(
                f"{directory}: finished before; this is its report (a new run: --ledger DIR)",
                style="yellow",
                markup=False,
            )
        elif opened.next_batch():
            note.print(
                f"{directory}: going on at batch {opened.next_batch() + 1} of {job.batches}", style="dim", markup=False
            )
        try:
            with (
                stop.on_signals(_say_stopping, _say_ending),
                _progress("sending", len(job.audience), progress, opened.settled_rows()) as advance,
            ):
                run_job(job, limiter, opened, stop, progress=advance)
        except CampaignStopped as stopped:
            again = ["capline", "campaign", "run", str(campaign), *(["--ledger", str(ledger)] if ledger else [])]
            done = f"{opened.settled_rows():,} of {len(job.audience):,} subjects are done"
            note.print(
                f"stopped; {done}, nothing is lost. Resume with: {shlex.join(again)}",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )
            raise typer.Exit(128 + stopped.signum) from None
        _answer(report_of(opened), as_json=as_json)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline campaign plan summer-sale.yaml\n\n"
    "capline campaign plan summer-sale.yaml --json",
)
def plan(campaign: CampaignArgument, progress: ProgressOption = None, as_json: JsonOption = False) -> None:
    """Forecast exactly what a run begun now would send and refuse; consumes nothing, writes nothing."""
    from capline.campaign import load_campaign, prepare
    from capline.campaign import plan as plan_job

    job = prepare(load_campaign(campaign))
    with _progress("peeking", len(job.audience), progress, 0) as advance:
        report = plan_job(job, advance)
    _answer(report, as_json=as_json)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline campaign status summer-sale.yaml\n\n"
    "capline campaign status summer-sale.run --json",
)
def status(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="CAMPAIGN.YAML|DIR", help="The campaign file, or a run's directory.", show_default=False
        ),
    ],
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far a run is and what became of it so far; also while it runs, and after a kill."""
    from capline.campaign import Ledger, default_directory, report_of

    if not target.exists():
        raise CampaignError(f"{target}: no such file; name the campaign file, or the directory of a run")
    directory = ledger or (target if target.is_dir() else default_directory(target))
    with Ledger.read(directory) as opened:
        _answer(report_of(opened), as_json=as_json)


@contextmanager
def _progress(doing: str, total: int, wanted: bool | None, done: int) -> Generator[Callable[[int], object] | None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not (note.is_terminal if wanted is None else wanted):
        yield None
        return
    console: Console = Console(stderr=True, force_terminal=True) if wanted else note
    looks = (
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*looks, console=console, transient=not wanted) as bar:
        task = bar.add_task("", total=total, completed=done, rate="")

        def advance(completed: int) -> None:
            speed = bar.tasks[task].finished_speed or bar.tasks[task].speed
            bar.update(task, completed=completed, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance


def _say_stopping(signum: int) -> None:
    name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
    _say_now(f"{name}: finishing the step under way; again to end at once")


def _say_ending(_signum: int) -> None:
    _say_now("ended at once; nothing is lost: the same command goes on")


def _say_now(line: str) -> None:
    """Write a line past every buffer: a signal may have come while one was being written, and could not enter it again.

    On a terminal it takes the place of the progress bar's line, whose cursor is shown again.
    """
    on_terminal = os.isatty(2)
    os.write(2, (f"\r\x1b[K\x1b[?25h{line}\n" if on_terminal else f"{line}\n").encode())


def _answer(report: Report, *, as_json: bool) -> None:
    if as_json:
        answer_json(report)
        return
    channel = f", channel {report.channel}" if report.channel else ""
    out.print(f"[bold]{report.campaign}[/] under policy {report.policy}{channel}: {_STATES[report.state]}")
    _print_segments(report, out)
    if report.failures:
        listed = [f"{reason} ({count:,})" for reason, count in list(report.failures.items())[:_MOST_REASONS]]
        more = ", …" if len(report.failures) > _MOST_REASONS else ""
        out.print(f"failed and given back: {', '.join(listed)}{more}", markup=False, soft_wrap=True)
    if report.next_eligible is not None:
        _print_eligible(report.next_eligible, with_table=report.state == "planned")
    if report.state != "planned":
        out.print(f"{report.elapsed_s:,.1f} s, {report.per_s:,.0f} subjects/s")


def _print_segments(report: Report, console: Console) -> None:
    from rich.table import Table

    limits = list(report.total.refused_by)
    later = report.state in ("running", "stopped")
    table = Table("segment", box=None, header_style="bold")
    titles = [
        "audience",
        "would send" if report.state == "planned" else "sent",
        *(f"refused by {limit}" for limit in limits),
        *(() if report.state == "planned" else ("failed",)),
        *(("under way", "to come") if later else ()),
    ]
    for title in titles:
        table.add_column(title, justify="right")

    def add(name: str, part: SegmentReport, style: str = "") -> None:
        numbers = [part.audience, part.sent, *(part.refused_by.get(limit, 0) for limit in limits)]
        if report.state != "planned":
            numbers.append(part.failed)
        if later:
            numbers += [part.pending, part.undecided]
        table.add_row(name, *(f"{number:,}" for number in numbers), style=style)

    for part in report.segments:
        add(part.segment or "-", part)
    add("all", report.total, "bold")
    console.print(table)


def _print_eligible(eligible: Eligible, *, with_table: bool) -> None:
    from rich.table import Table

    if eligible.earliest is not None:
        out.print(
            f"the refused fit again: earliest {eligible.earliest}, median {eligible.median}, latest {eligible.latest}",
            soft_wrap=True,
        )
    if eligible.never:
        out.print(f"{eligible.never:,} never fit: the cost is above the quota")
    if not with_table or not eligible.by_time:
        return
    table = Table(f"{eligible.by} (UTC)", box=None, header_style="bold")
    table.add_column("fit again", justify="right")
    for start, count in eligible.by_time[:_MOST_TIMES]:
        table.add_row(start[:13].replace("T", " ") + "h" if eligible.by == "hour" else start[:10], f"{count:,}")
    if len(eligible.by_time) > _MOST_TIMES:
        table.add_row("later", f"{sum(count for _, count in eligible.by_time[_MOST_TIMES:]):,}")
    out.print(table)
