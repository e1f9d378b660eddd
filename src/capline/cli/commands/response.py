"""`capline response`: what came back after messages, what it cost, and who took whose place."""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from pathlib import Path
from typing import Annotated

import typer

from capline.cli.input.campaigns import Shared
from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer, warn
from capline.cli.render.progress import progress_bar
from capline.cli.render.response import show_response
from capline.model.errors import InvalidValueError
from capline.model.limit import parse_span

app = Commands()


@app.answers(
    "capline response outcomes.parquet --events opened.csv --events bought.parquet",
    "capline response summer-sale.yaml autumn.yaml --events 'events/*.jsonl' --within 3d --report response.html",
    "capline response summer-sale --queue redis://127.0.0.1:6379/0 --events clicks.csv --opt-outs optouts.csv --json",
)
def response(
    of: Shared,
    campaigns: Annotated[
        list[Path],
        typer.Argument(
            metavar="CAMPAIGN…",
            help="Files of outcomes (.parquet, .csv), campaign files, runs' directories, or names of queued campaigns.",
        ),
    ],
    events: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="What came back: CSV, Parquet or JSON lines; several, or a pattern."),
    ],
    within: Annotated[
        str, typer.Option(metavar="SPAN", help="The attribution window: so long after a message an event counts.")
    ] = "7 days",
    window: Annotated[str, typer.Option(metavar="SPAN", help="The window in which messages are numbered.")] = "week",
    id_column: Annotated[str, typer.Option(help="The column of recipients.")] = "id",
    time_column: Annotated[str, typer.Option(help="The column of times: ISO 8601, or seconds since 1970.")] = "time",
    event_column: Annotated[str, typer.Option(help="The column that says what came back.")] = "event",
    key_column: Annotated[
        str, typer.Option(help="The column of message keys; a file that has it is joined by it alone.")
    ] = "key",
    opt_outs: Annotated[
        Path | None, typer.Option(metavar="FILE.CSV", help="Add who opted out to this file, which campaigns exclude.")
    ] = None,
    opt_out_event: Annotated[str, typer.Option(help="The event that opts out.")] = "unsubscribed",
    report: Annotated[
        Path | None, typer.Option(metavar="OUT.HTML", help="Write charts and tables, as one page without a network.")
    ] = None,
) -> Answer:
    """Measure what came back after messages, by campaign, segment, and number in the window, against the holdout.

    Every share and difference has its interval of 95 %. Refusals say which campaigns had taken the place.
    """
    from capline.campaign.response.measure import facts, measure
    from capline.campaign.response.messages import gathered
    from capline.campaign.response.opt_outs import add_opt_outs
    from capline.campaign.response.page import render
    from capline.campaign.response.replies import EventColumns, Replies
    from capline.replay.page import write_page

    within_us, window_us = parse_span(within, "--within"), parse_span(window, "--window")
    if report is not None and not report.parent.is_dir():  # not after minutes of reading
        raise InvalidValueError(f"{report}: there is no folder {report.parent}; make it, or name another")

    messages = gathered(of.messages(campaigns))
    replies = Replies(messages, within_us, opt_out_event if opt_outs else None)
    with progress_bar("reading", None, "events") as advance:
        replies.read(events, EventColumns(id_column, time_column, event_column, key_column), advance)
    found = measure(messages, replies, window_us)
    if opt_outs is not None:
        added = add_opt_outs(opt_outs, replies.opted_out)
        replies.told.append(f"{opt_outs}: {added:,} added of {len(replies.opted_out):,} who opted out")
    for line in replies.told:
        warn(line)
    if report is not None:
        write_page(render(found, within, window), report)
        warn(f"wrote {report}")
    return Answer(facts(found, replies.told), lambda: show_response(found, window))
