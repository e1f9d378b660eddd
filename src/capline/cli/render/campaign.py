"""What is answered with the report of a campaign and with the progress of its queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from capline.cli.render.console import FAILED, Answer, counted, out, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capline.campaign import Report
    from capline.campaign.conflicts.find import Conflict, Conflicts, Expected
    from capline.campaign.plan import Plan
    from capline.campaign.queue.status import Listed, QueueProgress
    from capline.campaign.report import Eligible, SegmentReport, StoreFacts

_MOST_IN_WORK = 20
_MOST_TIMES = 14
_MOST_REASONS = 5
_RARE = ("held", "not_known", "excluded", "held_out", "would_be_refused")
"""Columns that are there if somebody is in them."""
_STATES = {
    "planned": "[bold]forecast[/], nothing consumed",
    "finished": "[bold green]finished[/]",
    "running": "[bold cyan]running[/]",
    "stopped": "[bold yellow]not finished[/], no process is in it",
    "preparing": "[bold cyan]preparing[/], its audience is read",
    "refused": "[bold red]refused[/]",
    "scheduled": "[bold cyan]scheduled[/], not due yet",
    "waiting": "[bold cyan]waiting[/], what is left is due later",
    "paused": "[bold yellow]paused[/]",
    "cancelled": "[bold yellow]cancelled[/]",
}


def report_answer(report: Report, code: int = 0, queue: QueueProgress | None = None) -> Answer:
    """The outcomes by segment, when the refused fit again, and the progress of the queue if there is one."""

    def lines() -> None:
        _print_report(report)
        if queue is not None:
            _print_queue(queue)

    return Answer(report, lines, code)


def print_list(lines: Sequence[Listed]) -> None:
    """A line for each campaign."""
    shown = table("campaign", "state", "policy", numbers=["audience", "done", "batches", "settled"])
    for each in lines:
        numbers = (f"{number:,}" for number in (each.audience, each.done, each.batches, each.settled))
        shown.add_row(each.campaign, _STATES.get(each.state, each.state), each.policy, *numbers)
    out.print(shown)


def conflicts_answer(found: Conflicts) -> Answer:
    """What becomes of each campaign that waits, and which takes whose place."""

    def lines() -> None:
        logs = "the logs as they are now" if found.history else "empty logs"
        if not found.campaigns:
            out.print("no campaign waits here: nothing to compare")
        else:
            _print_expected(found.campaigns, logs)
            if not found.conflicts:
                out.print("none of them takes the place of another")
        _print_conflicts(found.conflicts, found.unread)

    return Answer(found, lines, FAILED if found.unread else 0)


def plan_answer(plan: Plan) -> Answer:
    """The forecast, and whose place it takes, and who takes its own."""

    def lines() -> None:
        _print_report(plan)
        if plan.conflicts:
            out.print("beside the campaigns that wait, each at its time, on the logs as they are now:")
        _print_conflicts(plan.conflicts, plan.unread)

    return Answer(plan, lines)


def _print_conflicts(conflicts: Sequence[Conflict], unread: Mapping[str, str]) -> None:
    if conflicts:
        shown = table("campaign", "segment", "loses its place to", "under", numbers=["users", "sent later"])
        for each in conflicts:
            names = each.campaign, each.segment or "-", each.taken_by, each.limit
            shown.add_row(*names, f"{each.users:,}", f"{each.later:,}")
        out.print(shown)
    for name, why in unread.items():
        out.print(f"{name} is not among them: {why}", style="yellow", markup=False, soft_wrap=True)


def _print_expected(campaigns: Sequence[Expected], logs: str) -> None:
    out.print(f"[bold]{len(campaigns)}[/] wait, in this order, on {logs}:")
    numbers = ["audience", "not asked", "sent", "sent later", "refused", "lose a place"]
    shown = table("campaign", "due", "policy", numbers=["priority", *numbers])
    for each in campaigns:
        counts = each.audience, each.excluded + each.held_out, each.sent, each.later, each.refused, each.losing
        row = (f"{count:,}" for count in (each.priority, *counts))
        shown.add_row(each.campaign, each.due, each.policy, *row)
    out.print(shown)


def _print_report(report: Report) -> None:
    channel = f", channel {report.channel}" if report.channel else ""
    test = ", a test send" if report.test else ""
    out.print(f"[bold]{report.campaign}[/]{test} under policy {report.policy}{channel}: {_STATES[report.state]}")
    if (steering := report.steering) is not None and steering.version > 1:
        until = f"until {steering.until}; " if steering.until else ""
        until += f"rate {steering.speed.rate}; " if steering.speed else ""
        out.print(f"{until}version {steering.version}, {steering.changed} by {steering.by}", markup=False)
    _print_segments(report)
    for what, reasons in (("failed and given back", report.failures), ("not known, and kept", report.doubts)):
        if reasons:
            listed = [f"{reason} ({count:,})" for reason, count in list(reasons.items())[:_MOST_REASONS]]
            more = ", …" if len(reasons) > _MOST_REASONS else ""
            out.print(f"{what}: {', '.join(listed)}{more}", markup=False, soft_wrap=True)
    if report.next_eligible is not None:
        _print_eligible(report.next_eligible, with_table=report.state == "planned")
    if report.store is not None:
        out.print(f"store {_store_words(report.store)}", markup=False, soft_wrap=True)
    if report.state != "planned":
        out.print(f"{report.elapsed_s:,.1f} s, {report.per_s:,.0f} subjects/s")


def _store_words(store: StoreFacts) -> str:
    if store.logs is None:
        return store.url
    begun = f", begun {store.begun}" if store.begun else ", not there yet"
    return f"{store.url}: {counted(store.logs, 'log', 'logs')}{begun}"


def _print_segments(report: Report) -> None:
    limits = list(report.total.refused_by)
    later = report.state not in ("planned", "finished", "cancelled") or report.total.undecided > 0
    titles = [
        "audience",
        "would send" if report.state == "planned" else "sent",
        *(f"refused by {limit}" for limit in limits),
        *(() if report.state == "planned" else ("failed",)),
        *(name.replace("_", " ") for name in _RARE if getattr(report.total, name)),
        *(("under way", "to come") if later else ()),
    ]
    shown = table("segment", numbers=titles)

    def add(name: str, part: SegmentReport, style: str = "") -> None:
        numbers = [part.audience, part.sent, *(part.refused_by.get(limit, 0) for limit in limits)]
        if report.state != "planned":
            numbers.append(part.failed)
        numbers += [getattr(part, name) for name in _RARE if getattr(report.total, name)]
        if later:
            numbers += [part.pending, part.undecided]
        shown.add_row(name, *(f"{number:,}" for number in numbers), style=style)

    for part in report.segments:
        add(part.segment or "-", part)
    add("all", report.total, "bold")
    out.print(shown)


def _print_eligible(eligible: Eligible, *, with_table: bool) -> None:
    if eligible.earliest is not None:
        out.print(
            f"the refused fit again: earliest {eligible.earliest}, median {eligible.median}, latest {eligible.latest}",
            soft_wrap=True,
        )
    if eligible.never:
        out.print(f"{eligible.never:,} never fit: the cost is above the quota")
    if not with_table or not eligible.by_time:
        return
    shown = table(f"{eligible.by} (UTC)", numbers=["fit again"])
    for start, count in eligible.by_time[:_MOST_TIMES]:
        shown.add_row(start[:13].replace("T", " ") + "h" if eligible.by == "hour" else start[:10], f"{count:,}")
    if len(eligible.by_time) > _MOST_TIMES:
        shown.add_row("later", f"{sum(count for _, count in eligible.by_time[_MOST_TIMES:]):,}")
    out.print(shown)


def _print_queue(queue: QueueProgress) -> None:
    """Print how many batches are settled, in work, waiting or set aside."""
    parts = [f"{queue.settled:,} settled", f"{len(queue.in_work):,} in work", f"{queue.waiting:,} waiting"]
    parts += [f"{queue.unqueued:,} not queued yet"] if queue.unqueued else []
    parts += [f"{len(queue.set_aside):,} set aside"] if queue.set_aside else []
    out.print(f"{queue.batches:,} batches: {', '.join(parts)}", soft_wrap=True)
    now_us = time.time_ns() // 1000
    for each in queue.in_work[:_MOST_IN_WORK]:
        since = f"for {max(now_us - each.since_us, 0) / 1e6:,.0f} s, last seen {each.silent_s:,.0f} s ago"
        again = f", claimed {each.takes} times" if each.takes > 1 else ""
        error = f", last error: {each.error}" if each.error else ""
        out.print(f"  batch {each.batch}: {each.worker} {since}{again}{error}", markup=False, soft_wrap=True)
    for number, why in queue.set_aside.items():
        out.print(f"  batch {number} is set aside: {why}", style="yellow", markup=False, soft_wrap=True)
    if queue.set_aside:
        out.print("  to put back what was set aside: capline campaign enqueue, as before", style="yellow")
