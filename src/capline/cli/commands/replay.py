"""`capline demo` and `capline replay`: a policy applied to past events, in simulated time."""

from __future__ import annotations

import shlex
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from capline.cli.input.declare import Commands
from capline.cli.input.options import DEFAULT_POLICIES, PoliciesOption, named_policies
from capline.cli.render.console import FAILED, INTERRUPTED, Answer, note, out, plain, table, warn
from capline.cli.render.progress import progress_bar
from capline.cli.render.replay import replay_facts, show_replay
from capline.limiter.limiter import Limiter
from capline.model.clock import ManualClock
from capline.model.errors import InvalidValueError
from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.replay.events import ReplayError

if TYPE_CHECKING:
    from capline.replay.demo.run import DemoResult

app = Commands()

DEFAULT_DATA = Path(__file__).parents[2] / "replay/demo/cdnow_transactions.csv.gz"
DEFAULT_OUT = Path("build/demo")


@app.answers(
    "capline replay access.log.gz --limit 10/minute",
    "zcat access.log.*.gz | capline replay - --limit 20/minute --limit 1000/day --report out.html",
    "capline replay sends.csv --compare tight=3/week --compare loose=1/day,5/week",
    "capline replay calls.parquet --subject-column provider --time-column ts --limit 100/second --json",
    "capline replay sends.jsonl --policy promo --policies policies.yaml --segment-column segment --zone-column zone",
)
def replay(
    events: Annotated[
        Path, typer.Argument(help="CSV, Parquet, JSON lines, an export or an access log; gzip or zstd; - is the input.")
    ],
    limit: Annotated[
        list[str], typer.Option(metavar="20/MINUTE", help="A limit; several hold together.", show_default=False)
    ] = [],  # noqa: B006 - typer copies it
    compare: Annotated[
        list[str], typer.Option(metavar="NAME=LIMITS", help="Limits to set beside, by name.", show_default=False)
    ] = [],  # noqa: B006 - as above
    policy: Annotated[
        list[str],
        typer.Option(
            help="A policy of the policy file; may be repeated.", show_default=False, autocompletion=named_policies
        ),
    ] = [],  # noqa: B006 - as above
    policies: PoliciesOption = DEFAULT_POLICIES,
    subject_column: Annotated[str | None, typer.Option(help="The column of subjects.")] = None,
    time_column: Annotated[
        str | None, typer.Option(help="The column of times: ISO 8601, or seconds since 1970.")
    ] = None,
    segment_column: Annotated[str | None, typer.Option(help="The column of segments, if there is one.")] = None,
    zone_column: Annotated[
        str | None, typer.Option(help="The column of time zones; an empty cell means the policy's.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="OUT.HTML", help="Write charts and tables, as one page without a network.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse broken lines of a log.")] = False,
    sort: Annotated[bool, typer.Option("--sort", hidden=True)] = False,  # noqa: ARG001 - events are always sorted
) -> Answer:
    """Count what limits would have allowed and refused of your own past events. Consumes nothing.

    Events are decided in order of time, in memory, each at its own time. Which columns hold the subjects and the times
    is guessed where there is one safe guess, and told.
    """
    from capline.replay.blocks import EventFile  # noqa: PLC0415 - NumPy is an extra
    from capline.replay.count import Trial, count_events  # noqa: PLC0415 - as above
    from capline.replay.page import write_page  # noqa: PLC0415 - as above
    from capline.replay.report import render  # noqa: PLC0415 - as above

    made = [*([Policy("default", limit)] if limit else []), *map(_compared, compare)]
    names = [*(made_policy.name for made_policy in made), *policy]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidValueError(f"two sets of limits are named {twice[0]!r}; a name is one policy")
    if report is not None and not report.parent.is_dir():  # not after minutes of counting
        raise InvalidValueError(f"{report}: there is no folder {report.parent}; make it, or name another")
    missing = [] if names else ["the limits (--limit 20/minute, or --policy NAME of a policy file)"]
    with ExitStack() as jobs:
        trials: list[Trial] = []
        for name in names:
            clock = ManualClock()
            new = [policy for policy in made if policy.name == name]
            limiter = (
                Limiter("memory://", new, clock=clock) if new else Limiter.from_file(policies, "memory://", clock=clock)
            )
            trials.append(Trial(jobs.enter_context(limiter), clock, name))
        file = EventFile(
            events, subject_column, time_column, segment_column, zone_column, strict=strict, missing=missing
        )
        with progress_bar("reading", events.stat().st_size if events.is_file() else None, "bytes") as advance:
            found = jobs.enter_context(file.in_order(advance))
        for line in file.told():
            warn(line)
        with progress_bar("deciding", len(found), "events") as advance:
            counted = count_events(trials, file, found, advance)
    if report is not None:
        write_page(render(events.name, counted, file.subjects()), report)
        warn(f"wrote {report}")
    by_segment = segment_column is not None
    return Answer(replay_facts(counted, file), lambda: show_replay(counted, file, by_segment=by_segment))


def _compared(text: str) -> Policy:
    name, equals, limits = text.partition("=")
    if not (name and equals and limits):
        raise InvalidValueError(f"--compare is name=limits, like tight=20/minute,100/hour, not {text!r}")
    return Policy(name, Limit.parse_many(limits))


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
    from capline.replay.demo.report import write_report  # noqa: PLC0415
    from capline.replay.demo.run import run_demo  # noqa: PLC0415
    from capline.support.quantity import size  # noqa: PLC0415 - as above

    if not data.exists():
        raise ReplayError(f"{data}: no such file; name the purchases with --data")
    try:
        with progress_bar("simulated days", None) as advance:
            result = run_demo(data, out_dir, policies, advance)
    except KeyboardInterrupt:
        warn("interrupted: no report was written; the next run starts again")
        raise typer.Exit(INTERRUPTED) from None
    report = out_dir / "report.html"
    report_bytes = write_report(result, report)

    def lines() -> None:
        _show_demo(result)
        out.print(f"\nReport: [bold]{plain(str(report))}[/] ({size(report_bytes)}; open it in a browser)")
        _show_next(result, data, out_dir)

    if not result.holds:
        note.print("the check failed: these figures are wrong", style="bold red")
    return Answer(
        {"report": str(report), "holds": result.holds, "result": result}, lines, 0 if result.holds else FAILED
    )


def _show_demo(result: DemoResult) -> None:
    from capline.replay.demo.figures import NO_SEGMENT, by_window  # noqa: PLC0415 - as above
    from capline.support.quantity import size  # noqa: PLC0415 - as above

    figures = result.figures
    out.print(
        f"{result.purchases:,} purchases by {result.customers:,} customers, {result.first_day} to {result.last_day}: "
        f"{result.decisions:,} decisions in {result.seconds:.1f} s ({result.decisions_per_second:,}/s), "
        f"a store of {size(result.store_bytes)}\n"
    )
    shown = table("segment", "limits", numbers=("asked", "sent", "refused", *figures.windows))
    shown.pad_edge, shown.padding = False, (0, 1, 0, 0)
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
    columns = "--subject-column customer_id --time-column date"
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
