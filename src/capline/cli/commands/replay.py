"""`capline demo` and `capline replay`: a policy applied to past events, in simulated time."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from capline.cli.input.declare import Commands
from capline.cli.input.options import DEFAULT_POLICIES, PoliciesOption
from capline.cli.render.console import FAILED, INTERRUPTED, NO_SEGMENT, Answer, note, out, plain, table, warn
from capline.limiter.limiter import Limiter
from capline.model.clock import ManualClock
from capline.replay.blocks import EventFile
from capline.replay.count import count_events
from capline.replay.events import ReplayError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import ProgressColumn

    from capline.replay.count import ReplayCounts
    from capline.replay.demo.run import DemoResult

__all__ = ["app"]

app = Commands()

DEFAULT_DATA = Path(__file__).parents[2] / "replay/demo/cdnow_transactions.csv.gz"
DEFAULT_OUT = Path("build/demo")


@app.answers(
    "capline replay events.csv --policy promo --policies policies.yaml",
    "capline replay calls.csv.gz --policy psp --subject-column provider --time-column ts --sort --json",
    "capline replay sends.csv --policy promo --segment-column segment --zone-column zone",
)
def replay(
    events: Annotated[Path, typer.Argument(help="The events: .csv or .csv.gz, with a header.")],
    policy: Annotated[str, typer.Option(help="The policy's name.")],
    policies: PoliciesOption = DEFAULT_POLICIES,
    subject_column: Annotated[str, typer.Option(help="The column of subjects.")] = "subject",
    time_column: Annotated[str, typer.Option(help="The column of times: ISO 8601, or seconds since 1970.")] = "time",
    segment_column: Annotated[str | None, typer.Option(help="The column of segments, if there is one.")] = None,
    zone_column: Annotated[
        str | None, typer.Option(help="The column of time zones; an empty cell means the policy's.")
    ] = None,
    sort: Annotated[bool, typer.Option("--sort", help="Sort by time first, in memory: 40 bytes a row.")] = False,
) -> Answer:
    """Count what this policy would have allowed and refused. Consumes nothing.

    Events are decided in order of time, in memory, each at its own time.
    """
    clock = ManualClock()
    file = EventFile(events, subject_column, time_column, segment_column, zone_column)
    bar = _progress(TextColumn("{task.fields[events]:,} events"), BarColumn(), TimeRemainingColumn())
    with Limiter.from_file(policies, "memory://", clock=clock) as limiter, bar:
        task = bar.add_task("events", total=events.stat().st_size if events.is_file() else None, events=0)

        def progress(done: int, read_bytes: int) -> None:
            bar.update(task, completed=read_bytes, events=done)

        counted = count_events(limiter, clock, policy, file, sort=sort, progress=progress)
    return Answer(_counts_facts(policy, counted), lambda: _show_counts(policy, counted))


@app.answers("capline demo", "capline demo --policies my-policies.yaml --out build/mine --json")
def demo(
    data: Annotated[
        Path, typer.Option(help="Purchases, with the columns customer_id and date.", show_default="capline's own")
    ] = DEFAULT_DATA,
    out_dir: Annotated[Path, typer.Option("--out", help="The directory for store, segments and report.")] = DEFAULT_OUT,
    policies: Annotated[Path | None, typer.Option(help="A policy file of your own, with a policy promo.")] = None,
) -> Answer:
    """Cap eighteen months of messages by segment, in seconds, and write a report.

    The purchases are real. Each morning customers are put into segments by recency, each purchase triggers messages,
    and each week a message goes to everyone.
    """
    # Imports roaring bitmaps and the report, which other commands should not wait for.
    from capline.replay.demo.report import check_report_parts, size_text, write_report  # noqa: PLC0415
    from capline.replay.demo.run import run_demo  # noqa: PLC0415

    if not data.exists():
        raise ReplayError(f"{data}: no such file; name the purchases with --data")
    check_report_parts()
    bar = _progress(TextColumn("simulated days"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with bar:
            task = bar.add_task("days", total=None)
            result = run_demo(data, out_dir, policies, lambda done, days: bar.update(task, completed=done, total=days))
    except KeyboardInterrupt:
        warn("interrupted: no report was written; the next run starts again")
        raise typer.Exit(INTERRUPTED) from None
    report = out_dir / "report.html"
    report_bytes = write_report(result, report)

    def lines() -> None:
        _show_demo(result)
        out.print(f"\nReport: [bold]{plain(str(report))}[/] ({size_text(report_bytes)}; open it in a browser)")
        _show_next(result, data, out_dir)

    if not result.holds:
        note.print("the check failed: these figures are wrong", style="bold red")
    return Answer(
        {"report": str(report), "holds": result.holds, "result": result}, lines, 0 if result.holds else FAILED
    )


def _progress(*columns: ProgressColumn) -> Progress:
    """A progress bar, shown only on a terminal."""
    return Progress(*columns, console=note, transient=True, disable=not note.is_terminal)


def _show_demo(result: DemoResult) -> None:
    from capline.replay.demo.figures import NO_SEGMENT, by_window  # noqa: PLC0415 - as above
    from capline.replay.demo.report import size_text  # noqa: PLC0415 - as above

    figures = result.figures
    out.print(
        f"{result.purchases:,} purchases by {result.customers:,} customers, {result.first_day} to {result.last_day}: "
        f"{result.decisions:,} decisions in {result.seconds:.1f} s ({result.decisions_per_second:,}/s), "
        f"a store of {size_text(result.store_bytes)}\n"
    )
    shown = _table(("segment", "limits"), ("asked", "sent", "refused", *figures.windows))
    shown.caption, shown.caption_justify = "last columns: refused by the limit over that window\n", "right"
    for line in (*figures.segments, figures.total):
        shown.add_row(
            line.name,
            ", ".join(result.limits_by_segment.get("" if line.name == NO_SEGMENT else line.name, ())),
            *(f"{count:,}" for count in (line.asked, line.sent, line.asked - line.sent)),
            *(f"{by_window(line, window):,}" for window in figures.windows),
            style="bold" if line is figures.total else None,
        )
    out.print(shown)
    checks = Table.grid(padding=(0, 2))
    for check in result.checks:
        mark = "[green]holds[/]" if check.holds else "[bold red]FAILS[/]"
        checks.add_row(mark, f"{plain(check.what)}\n[dim]{plain(check.found)}[/]")
    out.print(checks)


def _show_next(result: DemoResult, data: Path, out_dir: Path) -> None:
    """Print commands that work as typed, from the current folder."""
    program, policies = shlex.quote(_program()), shlex.quote(str(out_dir / "policies.yaml"))
    store = shlex.quote(f"lmdb://{out_dir / 'store'}")
    segment = next(
        (f"--segment {name} " for name in ("churned", *result.policy_segments) if name in result.policy_segments), ""
    )
    segments = shlex.quote(str(out_dir / "segments"))
    here = f"{segment}--policies {policies} --store {store}"
    columns = "--subject-column customer_id --time-column date --sort"
    campaign = out_dir / "campaign.yaml"
    planned = f"campaign plan {shlex.quote(str(campaign))}"
    blast = ("the next blast, forecast on the store as it is now; consumes nothing", planned)
    commands = [blast] if campaign.exists() else []
    commands += [
        ("one message to one customer, now; type it again until it is refused", f"decide promo 42 {here}"),
        ("why: the limits, what counts, when it frees", f"explain promo 42 {here}"),
        ("the segments of the last morning", f"segments show {segments}"),
        (
            "the purchases alone, one message each, against the same policy",
            f"replay {shlex.quote(str(data))} --policy promo --policies {policies} {columns}",
        ),
        (
            "decisions over HTTP, for programs in any language; Ctrl-C ends it",
            f"serve --policies {policies} --store {store} --segments {segments}",
        ),
    ]
    out.print("\nNext, try:")
    for why, command in commands:
        out.print(f"  [dim]# {why}[/]")
        out.print(f"  {plain(f'{program} {command}')}", soft_wrap=True)


def _program() -> str:
    """How to call this program: by its name if the PATH finds it, else by its path."""
    called = Path(sys.argv[0])
    found = shutil.which("capline")
    if called.name != "capline" or (found is not None and called.exists() and called.samefile(found)):
        return "capline"
    return str(called.relative_to(Path.cwd()) if called.is_relative_to(Path.cwd()) else called)


def _counts_facts(policy: str, counted: ReplayCounts) -> dict[str, object]:
    return {
        "policy": policy,
        "asked": counted.asked.total(),
        "allowed": counted.asked.total() - counted.refused.total(),
        "refused": counted.refused.total(),
        "first_us": counted.first_us,
        "last_us": counted.last_us,
        "segments": [
            {
                "segment": segment,
                "asked": asked,
                "allowed": asked - sum(count for (of, _), count in counted.refused.items() if of == segment),
                "refused": {str(limit): count for (of, limit), count in counted.refused.items() if of == segment},
            }
            for segment, asked in counted.asked.items()
        ],
    }


def _show_counts(policy: str, counted: ReplayCounts) -> None:
    limits = sorted({limit for _, limit in counted.refused}, key=lambda limit: (limit.window_us, limit.quota))
    shown = _table(("segment",), ("asked", "allowed", "refused", *(f"by {limit}" for limit in limits)))
    for segment, asked in counted.asked.items():
        counts = [counted.refused[segment, limit] for limit in limits]
        refused = sum(counts)
        numbers = (asked, asked - refused, refused, *counts)
        shown.add_row(plain(segment or NO_SEGMENT), *(f"{number:,}" for number in numbers))
    out.print(f"policy {plain(policy)}: {counted.asked.total():,} events, {counted.refused.total():,} of them refused")
    out.print(shown)


def _table(words: Sequence[str], numbers: Sequence[str]) -> Table:
    shown = table(*words, numbers=numbers)
    shown.pad_edge, shown.padding = False, (0, 1, 0, 0)
    return shown
