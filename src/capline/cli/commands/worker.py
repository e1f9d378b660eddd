"""`capline worker`: claims and delivers batches of queued campaigns. Run any number, on any hosts.

Standard error gets a line for each batch, standard output one answer at the end: what the worker did.
"""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.input.declare import Commands
from capline.cli.render.console import BAD_INPUT, FAILED, Answer, note, stop_lines, warn

if TYPE_CHECKING:
    from capline.campaign.queue.worker_report import DeliveredBatch, WorkerReport

app = Commands()

QueueOption = Annotated[
    str,
    typer.Option(
        "--queue", "-q", metavar="URL", envvar="CAPLINE_QUEUE", help="The Redis or Valkey server of the queue."
    ),
]
StoreOption = Annotated[
    str | None, typer.Option("--store", "-s", metavar="URL", help="Instead of the campaigns' own store.")
]
TakeoverOption = Annotated[
    float,
    typer.Option(
        "--takeover",
        metavar="SECONDS",
        help="Take over a batch whose lease was not renewed for so long. Give all workers the same.",
    ),
]


@app.answers(
    "capline worker --queue redis://127.0.0.1:6379/0 --metrics 127.0.0.1:9100",
    "CAPLINE_QUEUE=redis://:secret@queue.example.org/0 capline worker --until-idle",
)
def worker(
    queue: QueueOption,
    store: StoreOption = None,
    takeover: TakeoverOption = 60.0,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when no batch is left, neither waiting nor in work.")
    ] = False,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve metrics on loopback; port 0 takes any.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each batch.")] = False,
) -> Answer:
    """Claim batches from the queue, one at a time: decide, send and record.

    Ctrl-C or SIGTERM finishes the step under way, releases the batch and exits 130 or 143.

    If it is killed, another worker delivers its batch, and nobody is counted twice.
    """
    from capline.campaign.breaker import SenderFailingError
    from capline.campaign.queue.watch import watching
    from capline.campaign.queue.worker import Worker
    from capline.campaign.stop import CampaignStopped, Stop
    from capline.campaign.store.rows import DELAYS_S
    from capline.observe import PrometheusObserver
    from capline.observe.serving import new_registry, served
    from capline.service.metrics.worker import WorkerMetrics

    figures: WorkerMetrics | None = None

    def report(batch: DeliveredBatch) -> None:
        if figures is not None:
            figures.add(batch.campaign, batch.delays)
        if not quiet:
            note.print(
                f"{batch.campaign}: batch {batch.batch}: {batch.sent:,} sent, {batch.refused:,} refused, "
                f"{batch.failed:,} failed, {batch.not_known:,} not known, {batch.elapsed_s:,.1f} s",
                style="dim",
                markup=False,
                soft_wrap=True,
            )

    with ExitStack() as stack:
        stop = stack.enter_context(closing(Stop()))
        stack.enter_context(stop.on_signals(*stop_lines("another worker takes over the batch")))
        registry = None if metrics is None else new_registry()
        observers = () if registry is None else (PrometheusObserver(registry),)
        working = Worker(queue, stop, takeover_s=takeover, store=store, delivered=report, say=warn, observers=observers)
        stack.enter_context(closing(working))
        if metrics is not None and registry is not None:
            note.print(f"metrics at {stack.enter_context(served(registry, metrics))}", markup=False)
            figures = WorkerMetrics(working.report, registry, DELAYS_S)
            stack.enter_context(watching(queue, figures.show))
        for warning in working.warnings():
            warn(f"warning: {warning}")
        try:
            working.work(until_idle=until_idle)
        except CampaignStopped as stopped:
            warn("stopped; nothing is lost, and a batch that was under way is released")
            return _answer(working.report, 128 + stopped.signum)
        except SenderFailingError as error:
            warn(str(error))
            return _answer(working.report, FAILED)
        return _answer(working.report, BAD_INPUT if working.report.trouble or working.report.aside else 0)


def _answer(worked: WorkerReport, code: int) -> Answer:
    counts = (
        f"{worked.settled:,} batches, {worked.subjects:,} subjects: {worked.sent:,} sent, {worked.refused:,} refused, "
        f"{worked.failed:,} failed, {worked.not_known:,} not known"
    )
    return Answer(worked, counts, code)
