"""`capline campaign run | plan | list | status | conflicts | pause | resume | cancel | enqueue | upload`.

The same command resumes a run that was stopped or killed. `enqueue` leaves the work to workers (`worker`). Answers go
to standard output, progress and hints to standard error. Modules are imported where they are used, so that `--help` is
instant.
"""

# ruff: noqa: PLC0415 - imports inside functions, for the reason above

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.commands import outcomes
from capline.cli.input.campaigns import Service, Shared, Target, queue_of_store
from capline.cli.input.declare import Commands
from capline.cli.input.options import LedgerOption, ProgressOption
from capline.cli.render.campaign import conflicts_answer, plan_answer, print_list, report_answer
from capline.cli.render.console import FAILED, FAILED_FOR_GOOD, Answer, note, out, plain, stop_lines, warn
from capline.cli.render.progress import progress_bar
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from capline.campaign import CampaignFile, Job, Ledger
    from capline.campaign.queue.enqueue import Enqueued
    from capline.campaign.report import Report, StoreFacts
    from capline.campaign.store.protocol import Change

app = Commands("campaign", "Send a [bold]campaign[/] under its caps, forecast it, show its progress.")
app.add_typer(outcomes.app)

CampaignArgument = Annotated[Path, typer.Argument(metavar="CAMPAIGN.YAML", help="The campaign file.")]
RetryOption = Annotated[
    bool, typer.Option("--retry-failed", help="Decide and send again, once, to exactly those whose delivery failed.")
]

OnlyOption = Annotated[
    str | None,
    typer.Option(
        "--only", metavar="ID,ID…", help="A test send, to these of the audience: at once, and counted for nobody."
    ),
]
_WATCH_S = 1.0


@app.answers("capline campaign run summer-sale.yaml", "capline campaign run summer-sale.yaml --json > report.json")
def run(
    campaign: CampaignArgument,
    ledger: LedgerOption = None,
    retry_failed: RetryOption = False,
    only: OnlyOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a receiver that accepts nothing, and for a store that is away.")
    ] = False,
    progress: ProgressOption = None,
) -> Answer:
    """Decide, deliver and report. After a stop or a kill, the same command resumes the run.

    Exits 1 where a delivery failed or is not known, and where the receiver accepts nothing; 3 where all that failed
    were refused by the receiver for good.

    Ctrl-C finishes the step under way and exits 130; a second one ends at once.
    """
    from msgspec.structs import replace

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
    from capline.campaign.store_facts import store_facts

    file = load_campaign(campaign, _only(only, retry_failed=retry_failed))
    directory = ledger or (campaign.with_name(f"{file.campaign}.run") if only else default_directory(campaign))
    if retry_failed and not directory.exists():
        raise CampaignError(
            f"{directory}: no run here; name its directory with --ledger DIR; a campaign that was enqueued has none"
        )
    job = prepare(file, begun_version(Ledger.begun_inputs(directory)))
    options = {"--ledger": ledger, "--only": only}
    again = ["capline", "campaign", "run", str(campaign), *(["--wait"] if wait else [])]
    again += [word for name, value in options.items() if value for word in (name, str(value))]
    with open_run(job, directory) as (limiter, opened), closing(Stop()) as stop:
        store = store_facts(job.file.store, limiter)
        _warn_of_new(store)
        _say_where(opened, job, retry_failed=retry_failed, target=ledger or campaign)
        try:
            with (
                stop.on_signals(*stop_lines("the same command resumes the run")),
                progress_bar("sending", len(job.audience), wanted=progress, done=opened.state().done) as advance,
            ):
                run_job(job, limiter, opened, stop, retry_failed=retry_failed, waits=wait, say=warn, progress=advance)
        except CampaignStopped as stopped:
            resume = [*again, *(["--retry-failed"] if retry_failed else [])]
            done = f"{opened.state().done:,} of {len(job.audience):,} subjects are done"
            warn(f"stopped; {done}, nothing is lost. Resume with: {shlex.join(resume)}")
            raise typer.Exit(128 + stopped.signum) from None
        except SenderFailingError as error:
            note.print(f"[bold red]capline:[/] {plain(error)}", soft_wrap=True)
            return report_answer(replace(report_of(opened), store=store, state="stopped"), FAILED)
        report = replace(report_of(opened), store=store)
        gone = opened.refused_for_good(job.file.retry.attempts)
    if report.state == "cancelled":
        warn(f"{directory}: cancelled; what was not sent is given back")
        return report_answer(report)
    if report.total.failed > gone:
        warn(f"{report.total.failed:,} failed; try these again with: {shlex.join([*again, '--retry-failed'])}")
    again_helps = report.total.failed > gone or report.total.not_known
    return report_answer(report, FAILED if again_helps else FAILED_FOR_GOOD if gone else 0)


def _only(words: str | None, *, retry_failed: bool = False) -> list[str]:
    """The recipients of a test send; none where it is not one."""
    if words is None:
        return []
    if retry_failed:
        raise CampaignError("what failed in a test send is not tried again: leave out --only or --retry-failed")
    return [word.strip() for word in words.split(",")]


def _say_where(opened: Ledger, job: Job, *, retry_failed: bool, target: Path) -> None:
    from capline.campaign import report_of
    from capline.model.clock import SystemClock
    from capline.support.instant import instant_text

    state, place = opened.state(), opened.place
    if state.cancelled:
        return
    if state.finished and not retry_failed:
        doubts = report_of(opened).total.not_known if job.file.sender.asks_again else 0
        what = f"asking again about {doubts:,} messages that are not known" if doubts else "this is its report"
        warn(f"{place}: finished before; {what} (a new run: under another name)")
    elif 0 < state.settled < state.batches:
        note.print(f"{place}: resumes, {state.settled} of {state.batches} batches are done", style="dim", markup=False)
    if math.isinf(state.due_us):
        warn(f"{place}: paused; go on with: capline campaign resume {shlex.quote(str(target))}")
    elif job.file.send_at_us > SystemClock().now_us():
        note.print(f"waits until {instant_text(job.file.send_at_us)}", style="dim", markup=False)


@app.answers(
    "capline campaign plan summer-sale.yaml",
    "capline campaign plan summer-sale.yaml --queue redis://127.0.0.1:6379/0 --json",
)
def plan(
    campaign: CampaignArgument, shared: Shared, only: OnlyOption = None, progress: ProgressOption = None
) -> Answer:
    """Forecast exactly what a run started now would send and refuse. Consumes and writes nothing.

    Beside a queue also which campaigns that wait there take places from it by its time, and it from them: on empty
    logs. With --server the service forecasts: paths in the file are those of the service.
    """
    from capline.campaign import load_campaign, prepare
    from capline.campaign import plan as plan_job
    from capline.campaign.store.open import open_store
    from capline.cli.input.served import form_of

    if (served := shared.served) is not None:
        return plan_answer(served.plan(form_of(campaign, _only(only))))
    job = prepare(load_campaign(campaign, _only(only)))
    with ExitStack() as stack:
        beside = None if shared.queue is None else stack.enter_context(open_store(shared.queue))
        with progress_bar("peeking", len(job.audience), wanted=progress) as advance:
            report = plan_job(job, advance, beside)
    _warn_of_new(report.store)
    return plan_answer(report)


@app.answers(
    "capline campaign status summer-sale.yaml",
    "capline campaign status summer-sale.run --json",
    "capline campaign status summer-sale --queue redis://127.0.0.1:6379/0 --watch",
)
def status(
    of: Target,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every second until it is finished.")] = False,
    *,
    json: bool,
) -> None:
    """Show a run's progress and outcomes so far, during the run or after it.

    With --queue or --server: over all workers. The same for a campaign file that has no ledger and whose store can hold
    the queue.
    """
    with closing(_reports(of)) as reports:
        for state, answer in reports:
            answer.show(json=json)
            if not watch or state in ("finished", "cancelled", "refused"):
                return
            sys.stdout.flush()
            time.sleep(_WATCH_S)


@app.answers(
    "capline campaign list",
    "capline campaign list --queue redis://127.0.0.1:6379/0 --json",
    "capline campaign list --server http://127.0.0.1:8080 --token-file token.txt",
)
def list_(
    shared: Shared,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, help="Where to look for runs, without a queue.")
    ] = Path(),
) -> Answer:
    """List campaigns and how far each is: of a queue or a service, else of the runs in a directory."""
    from capline.campaign import Ledger
    from capline.campaign.queue.status import every
    from capline.campaign.store.open import open_store

    with ExitStack() as stack:
        if (served := shared.served) is not None:
            lines = list(served.every())
        elif shared.queue is not None:
            lines = list(every(stack.enter_context(open_store(shared.queue))))
        else:
            runs = (
                stack.enter_context(Ledger.read(found.parent)) for found in sorted(directory.glob("*/ledger.sqlite"))
            )
            lines = sorted((line for run in runs for line in every(run.store)), key=attrgetter("campaign"))
    return Answer({"campaigns": lines}, partial(print_list, lines))


@app.answers(
    "capline campaign conflicts --queue redis://127.0.0.1:6379/0",
    "capline campaign conflicts --queue sqlite:///campaigns.sqlite --history --json",
    "capline campaign conflicts --server http://127.0.0.1:8080 --token-file token.txt",
)
def conflicts(
    shared: Shared,
    history: Annotated[
        bool, typer.Option("--history", help="On the logs as they are now: of all that was sent before.")
    ] = False,
) -> Answer:
    """Say which pending campaign takes whose place: for how many users, under which limit, by segment.

    Each is decided at its time, by priority, on empty logs. Where a limit refuses a message, each campaign that has
    units in its window took the place, once. Exits 1 where a campaign cannot be looked at.
    """
    from capline.campaign.conflicts.find import conflicts_in
    from capline.campaign.store.open import open_store

    if (served := shared.served) is not None:
        found = served.conflicts(history=history)
    elif shared.queue is None:
        raise CampaignError("conflicts of which campaigns? name their store with --queue URL, or a service: --server")
    else:
        with open_store(shared.queue) as store:
            found = conflicts_in(store, history=history)
    return conflicts_answer(found)


@app.verb(
    "capline campaign pause summer-sale.yaml",
    "capline campaign pause summer-sale --queue redis://127.0.0.1:6379/0",
)
def pause(of: Target) -> None:
    """Pause a campaign that is not finished: nothing more is decided or sent until it is resumed.

    A hand-over under way is finished first.
    """
    _steer(of, "pause")


@app.verb(
    "capline campaign resume summer-sale.yaml",
    "capline campaign resume summer-sale --queue redis://127.0.0.1:6379/0",
)
def resume(of: Target) -> None:
    """Resume a paused campaign: the process that runs it goes on within a second, and so do workers."""
    _steer(of, "resume")


@app.verb(
    "capline campaign cancel summer-sale.yaml --yes",
    "capline campaign cancel summer-sale --queue redis://127.0.0.1:6379/0 --yes",
)
def cancel(
    of: Target,
    yes: Annotated[bool, typer.Option("--yes", help="It is meant: a cancelled campaign cannot go on.")] = False,
) -> None:
    """Cancel a campaign that is not finished. What was sent stays sent; the rest is given back, or never decided.

    A hand-over under way is finished first. Where no process works on it, the next `run` or worker gives back.
    """
    if not yes:
        raise CampaignError("a cancelled campaign cannot go on; if that is meant, add --yes")
    _steer(of, "cancel")


@app.verb(
    "capline campaign set summer-sale.yaml --until 2027-01-01T20:00:00Z",
    "capline campaign set summer-sale --send-at 2027-01-01T16:00:00+08:00 --queue redis://127.0.0.1:6379/0",
    "capline campaign set summer-sale --rate 2000/s --queue redis://127.0.0.1:6379/0",
)
def set_(
    of: Target,
    until: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="When what is not sent yet is cancelled, or: never.")
    ] = None,
    send_at: Annotated[str | None, typer.Option(metavar="INSTANT", help="When it is due; until it is.")] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Messages, of all campaigns of its rate_key here: 2000/s.")
    ] = None,
) -> None:
    """Change a campaign that is not finished. Each change is a new version, with who made it and when."""
    from capline.campaign.ledger import Settings
    from capline.support.system import who

    settings = Settings(until, send_at, rate)
    if (served := of.served) is not None:
        served.set(name := of.name, settings)
    else:
        with of.opened(steer=True) as run:
            run.set(settings, who())
            name = run.name
    out.print(f"{name}: changed", markup=False)


@app.answers(
    "capline campaign enqueue summer-sale.yaml --queue redis://127.0.0.1:6379/0",
    "capline worker --queue redis://127.0.0.1:6379/0      # on as many hosts as you like",
    "capline campaign enqueue summer-sale.yaml --server http://127.0.0.1:8080 --token-file token.txt",
)
def enqueue(
    campaign: CampaignArgument,
    shared: Shared,
    retry_failed: RetryOption = False,
    only: OnlyOption = None,
    progress: ProgressOption = None,
) -> Answer:
    """Split a campaign into batches for workers. After a kill, the same command resumes it.

    Checks the whole file first, as `run` does. Workers need none of its files: capline worker --queue URL. With
    --server the service does it: paths in the file are those of the service.
    """
    from capline.campaign import load_campaign
    from capline.cli.input.served import form_of

    if (served := shared.served) is not None:
        form = form_of(campaign, _only(only, retry_failed=retry_failed))
        queued = served.retry_failed(form.campaign) if retry_failed else served.create(form)
    else:
        file = load_campaign(campaign, _only(only, retry_failed=retry_failed))
        queued = _enqueued(file, shared.queue, progress, retry_failed=retry_failed)
    where = f"--server {shared.server}" if shared.server else f"--queue {queued.queue}"
    batches = queued.batches or 0
    count = f"{batches:,} batches, {queued.audience or 0:,} subjects"

    def lines() -> None:
        if not batches:
            out.print(f"[bold]{queued.campaign}[/]: begun; a worker reads its audience: capline worker")
        elif retry_failed:
            out.print(f"[bold]{queued.campaign}[/]: {queued.put:,} batches in the queue again, of those that failed")
        elif queued.state == "finished":
            out.print(f"[bold]{queued.campaign}[/]: finished before ({count}); nothing to queue")
        else:
            how = f"{queued.put:,} of them now" if queued.put < batches else "all of them now"
            out.print(f"[bold]{queued.campaign}[/]: {count} in the queue {queued.queue}, {how}", soft_wrap=True)
            out.print(f"deliver it: capline worker --queue {queued.queue}", soft_wrap=True)
        out.print(f"show it: capline campaign status {queued.campaign} {where}", soft_wrap=True)

    return Answer(queued, lines)


@app.answers("capline campaign upload users.csv --server http://127.0.0.1:8080 --token-file token.txt")
def upload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV, Parquet or bitmap file.")],
    service: Service,
    column: Annotated[str | None, typer.Option(help="The column with the ids, id unless said.")] = None,
    ids: Annotated[str | None, typer.Option(metavar="number|text", help="What the ids of a CSV file are.")] = None,
) -> Answer:
    """Upload an audience to a service, in place of the one of its name: whole and verified, or not at all.

    A campaign names it so: audience: {upload: users.csv}
    """
    if service.served is None:
        raise CampaignError("upload where? name the service with --server URL")
    taken = service.served.upload(file, column, ids)
    return Answer(taken, f"{taken['name']}: {taken['rows']:,} rows; name it so: audience: {{upload: {taken['name']}}}")


@app.verb(
    "capline campaign report summer-sale.yaml --html report.html",
    "capline campaign report summer-sale --queue redis://127.0.0.1:6379/0 --html report.html",
)
def report(
    of: Target, html: Annotated[Path, typer.Option("--html", metavar="FILE", help="Where to write it.")]
) -> None:
    """Write the report so far as one page of HTML: progress, delays, outcomes by segment, reasons.

    `status` shows it here, and with --json all of its figures.
    """
    from capline.campaign import report_of
    from capline.campaign.page import render
    from capline.replay.page import write_page

    if (served := of.served) is not None:
        found: Report = served.report(of.name)
    else:
        with of.opened() as run:
            found = report_of(run)
    out.print(f"{html}: {write_page(render(found), html):,} bytes", markup=False, soft_wrap=True)


def _enqueued(file: CampaignFile, queue: str | None, progress: bool | None, *, retry_failed: bool) -> Enqueued:
    from capline.campaign import begun_version, prepare
    from capline.campaign.queue.enqueue import enqueue as enqueue_job
    from capline.campaign.queue.enqueue import retry
    from capline.campaign.store.open import open_store

    url = queue or queue_of_store(file.store)
    if url is None:
        raise CampaignError(f"{file.path}: its store cannot hold a queue; name one: --queue redis://127.0.0.1:6379/0")
    with open_store(url, make=True) as shared:
        for warning in shared.check():
            warn(f"warning: {warning}")
        begun = shared.find(file.campaign)
        job = prepare(file, None if begun is None else begun_version(begun.inputs))
        with progress_bar("queueing batches", job.batches, wanted=progress) as advance:
            queued = enqueue_job(job, shared, advance)
        return retry(job, shared) if retry_failed else queued


def _reports(of: Target) -> Generator[tuple[str, Answer]]:
    from capline.campaign import Ledger, report_of
    from capline.campaign.queue.status import QueueStatus
    from capline.campaign.store.open import open_store

    with ExitStack() as stack:
        if (served := of.served) is not None:
            read = partial(served.report, of.name)
        elif of.queue is not None:
            store = stack.enter_context(open_store(of.queue))
            store.check()
            read = QueueStatus(store, of.name).report
        else:
            while True:
                with Ledger.read(of.directory) as opened:
                    report = report_of(opened)
                yield report.state, report_answer(report)
        while True:
            queued = read()
            yield queued.state, report_answer(queued, queue=queued.queue)


def _steer(of: Target, change: Change) -> None:
    from capline.support.system import who

    if (served := of.served) is not None:
        served.change(name := of.name, change)
    else:
        with of.opened(steer=True) as run:
            run.change(change, who())
            name = run.name
    done = {"pause": "paused", "resume": "resumed"}.get(change, "cancelled")
    out.print(f"{name}: {done}", markup=False)


def _warn_of_new(store: StoreFacts | None) -> None:
    if store is not None and store.is_new:
        note.print(
            f"warning: the store {store.url} is new: nobody is counted in it yet, so no earlier message caps anyone; "
            "look at 'store:' in the campaign file if that is not meant",
            style="bold yellow",
            markup=False,
            soft_wrap=True,
        )
