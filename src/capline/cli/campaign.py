"""`capline campaign run | plan | status | enqueue`: cap and send a campaign, forecast it, show its progress.

The same command resumes a run that was stopped or killed. `enqueue` leaves it to workers (`worker`). Answers go
to standard output, progress and hints to standard error. Modules are imported where they are used: `--help` stays
instant.
"""

# ruff: noqa: PLC0415 - imports inside functions, for the reason above

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli import outcomes
from capline.cli.campaign_report import show_queue, show_report
from capline.cli.common import FAILED, JsonOption, answer_json, group, note, out
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.console import Console

    from capline.campaign.report import StoreFacts

__all__ = ["app"]

app = group("campaign", "Cap a [bold]campaign[/] and send it, forecast it, look how far it is.")

outcomes.register(app)

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

QueueOption = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="URL",
        envvar="CAPLINE_QUEUE",
        help="The Redis or Valkey server of the queue; the campaign's store, if left out and it is one.",
        show_default=False,
    ),
]

_WATCH_S = 1.0


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline campaign run summer-sale.yaml\n\n"
    "capline campaign run summer-sale.yaml --json > report.json",
)
def run(
    campaign: CampaignArgument,
    ledger: LedgerOption = None,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="Decide and hand over again, once, exactly those whose delivery failed."),
    ] = False,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide, deliver and report; stopped or killed at any point, the same command resumes it.

    Exit code 1 where a delivery failed or is not known, also where the run was finished before, and where the run stops
    early because the receiver accepts nothing.

    Ctrl-C finishes the step under way (exit code 130), a second one ends at once. All can be resumed.
    """
    from msgspec.structs import replace
    from rich.markup import escape

    from capline.campaign import (
        CampaignStopped,
        Ledger,
        Stop,
        begun_version,
        default_directory,
        load_campaign,
        open_run,
        prepare,
        report_of,
    )
    from capline.campaign import run as run_job
    from capline.campaign.breaker import SenderFailingError
    from capline.campaign.senders.protocol import asks_again
    from capline.campaign.store_facts import store_facts

    directory = ledger or default_directory(campaign)
    if retry_failed and not directory.exists():
        raise CampaignError(f"{directory}: no run here, so nobody failed; begin it without --retry-failed")
    job = prepare(load_campaign(campaign), begun_version(Ledger.begun_inputs(directory)))
    again = ["capline", "campaign", "run", str(campaign), *(["--ledger", str(ledger)] if ledger else [])]
    with open_run(job, directory) as (limiter, opened), closing(Stop()) as stop:
        store = store_facts(job.file.store, limiter)
        _warn_of_new(store)
        if opened.is_finished and not retry_failed:
            doubts = report_of(opened).total.not_known if asks_again(job.file.sender.sender) else 0
            what = f"asking again about {doubts:,} messages that are not known" if doubts else "this is its report"
            note.print(
                f"{directory}: finished before; {what} (a new run: --ledger DIR)",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )
        elif opened.next_batch() and not opened.is_finished:
            batches = job.batches + opened.retries()
            note.print(
                f"{directory}: going on at batch {opened.next_batch() + 1} of {batches}", style="dim", markup=False
            )
        try:
            with (
                stop.on_signals(_say_stopping, _say_ending),
                _progress("sending", len(job.audience), progress, opened.done_rows()) as advance,
            ):
                run_job(job, limiter, opened, stop, retry_failed=retry_failed, progress=advance)
        except CampaignStopped as stopped:
            resume = [*again, *(["--retry-failed"] if retry_failed else [])]
            done = f"{opened.done_rows():,} of {len(job.audience):,} subjects are done"
            note.print(
                f"stopped; {done}, nothing is lost. Resume with: {shlex.join(resume)}",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )
            raise typer.Exit(128 + stopped.signum) from None
        except SenderFailingError as error:
            note.print(f"[bold red]capline:[/] {escape(str(error))}", soft_wrap=True)
            show_report(replace(report_of(opened), store=store), as_json=as_json)
            raise typer.Exit(FAILED) from None
        report = replace(report_of(opened), store=store)
    show_report(report, as_json=as_json)
    if report.total.failed:
        note.print(
            f"{report.total.failed:,} failed; try these again with: {shlex.join([*again, '--retry-failed'])}",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    if report.total.failed or report.total.not_known:
        raise typer.Exit(FAILED)


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
    _warn_of_new(report.store)
    show_report(report, as_json=as_json)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline campaign status summer-sale.yaml\n\n"
    "capline campaign status summer-sale.run --json\n\n"
    "capline campaign status summer-sale --queue redis://127.0.0.1:6379/0 --watch",
)
def status(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="CAMPAIGN.YAML|DIR|NAME",
            help="The campaign file, a run's directory, or the name of a queued campaign.",
            show_default=False,
        ),
    ],
    ledger: LedgerOption = None,
    queue: QueueOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until it is finished.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a run's progress and outcomes so far; also while it runs, and after a kill.

    With --queue, over all workers; so too for a file without a ledger whose store can hold the queue.
    """
    from capline.campaign import Ledger, default_directory, load_campaign, report_of

    directory = ledger or (target if target.is_dir() else default_directory(target))
    url = None if ledger else queue
    if not target.exists() and (url is None or target.suffix in (".yaml", ".yml")):
        raise CampaignError(
            f"{target}: no such file; name the campaign file, the directory of a run, or a campaign with --queue URL"
        )
    if url is None and target.is_file() and not directory.exists():
        url = _as_queue(load_campaign(target).store)
    if url is not None:
        _answer_queue(url, target, watch=watch, as_json=as_json)
        return
    while True:
        with Ledger.read(directory) as opened:
            report = report_of(opened)
        show_report(report, as_json=as_json)
        if not watch or report.state == "finished":
            return
        time.sleep(_WATCH_S)


@app.command(
    epilog="[bold]Examples[/]\n\n"
    "capline campaign enqueue summer-sale.yaml --queue redis://127.0.0.1:6379/0\n\n"
    "capline worker --queue redis://127.0.0.1:6379/0      # on as many hosts as you like",
)
def enqueue(
    campaign: CampaignArgument,
    queue: QueueOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Split a campaign into batches for workers; killed midway, the same command resumes it.

    Checks the whole file first, as run does. Workers need no file of it: capline worker --queue URL.
    """
    from capline.campaign import begun_version, load_campaign, prepare
    from capline.campaign.queue.enqueue import enqueue as enqueue_job
    from capline.campaign.queue.queue import Queue
    from capline.campaign.queue.server import QueueServer

    file = load_campaign(campaign)
    url = queue or _as_queue(file.store)
    if url is None:
        raise CampaignError(f"{campaign}: its store cannot hold a queue; name one: --queue redis://127.0.0.1:6379/0")
    with QueueServer(url) as server:
        for warning in server.check():
            note.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
        shared = Queue(server)
        begun = shared.find(file.campaign)
        job = prepare(file, None if begun is None else begun_version(begun.inputs))
        with _progress("queueing batches", job.batches, progress, 0) as advance:
            queued = enqueue_job(job, shared, advance)
    if as_json:
        answer_json(queued)
        return
    count = f"{queued.batches:,} batches, {queued.audience:,} subjects"
    if queued.state == "finished":
        out.print(f"[bold]{queued.campaign}[/]: finished before ({count}); nothing was queued")
    else:
        how = f"{queued.put:,} of them now" if queued.put < queued.batches else "all of them now"
        out.print(f"[bold]{queued.campaign}[/]: {count} in the queue {queued.queue}, {how}", soft_wrap=True)
        out.print(f"work on it: capline worker --queue {queued.queue}", soft_wrap=True)
    out.print(f"look at it: capline campaign status {queued.campaign} --queue {queued.queue}", soft_wrap=True)


def _as_queue(store: str) -> str | None:
    """The store's URL, where it is a server that can hold the queue."""
    return store if store.partition("://")[0] in ("redis", "rediss", "valkey", "valkeys") else None


def _answer_queue(url: str, target: Path, *, watch: bool, as_json: bool) -> None:
    from capline.campaign import load_campaign
    from capline.campaign.queue.queue import Queue
    from capline.campaign.queue.server import QueueServer
    from capline.campaign.queue.status import QueueStatus
    from capline.model.policy import check_name

    name = load_campaign(target).campaign if target.is_file() else check_name(str(target), "campaign")
    with QueueServer(url) as server:
        server.check()
        status = QueueStatus(Queue(server), name)
        while True:
            report = status.report()
            show_report(report, as_json=as_json)
            if not as_json:
                show_queue(report.queue)
            if not watch or report.state == "finished":
                return
            sys.stdout.flush()
            time.sleep(_WATCH_S)


@contextmanager
def _progress(doing: str, total: int, wanted: bool | None, done: int) -> Generator[Callable[[int], object] | None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if not (note.is_terminal if wanted is None else wanted):
        yield None
        return
    console: Console = Console(stderr=True, force_terminal=True) if wanted else note
    columns = (
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=not wanted) as bar:
        task = bar.add_task("", total=total, completed=done, rate="")

        def advance(completed: int) -> None:
            speed = bar.tasks[task].finished_speed or bar.tasks[task].speed
            bar.update(task, completed=completed, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance


def _warn_of_new(store: StoreFacts | None) -> None:
    if store is not None and store.is_new:
        note.print(
            f"warning: the store {store.url} is new: nobody is counted in it yet, so no earlier message caps anyone; "
            "look at 'store:' in the campaign file if that is not meant",
            style="bold yellow",
            markup=False,
            soft_wrap=True,
        )


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
