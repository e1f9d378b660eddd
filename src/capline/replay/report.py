"""What limits would have done to a log, as one HTML page; see `capline.replay.page`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from capline.model.limit import DAY_US
from capline.replay.page import Html, page, share, table
from capline.replay.svg import bars, stacked

if TYPE_CHECKING:
    from capline.model.subject import Subject
    from capline.replay.count import ReplayCounts


def render(name: str, counted: Sequence[ReplayCounts], subjects: Sequence[Subject]) -> str:
    """Return the page for the counts of a file of this name, with a chart under each finding."""
    first = counted[0]
    parts = [
        f'<header><p class="eyebrow">capline replay &middot; {escape(name)}</p>',
        f"<h1>{escape(_headline(counted))}</h1>",
        f'<p class="lead">{first.events:,} events of {len(subjects):,} subjects, each decided at its own time, from',
        f"{time_label(first.first_us)} to {time_label(first.last_us)} UTC.</p></header>",
    ]
    if len(counted) > 1:
        parts.append(_side_by_side(counted))
    for counts in counted:
        parts += [_over_time(counts), _by_limit(counts), _by_subject(counts, subjects)]
    parts.append("<footer>Made by <code>capline replay</code>. This file loads nothing from anywhere.</footer>")
    return page(f"capline replay: {_headline(counted)}", Html("\n".join(parts)))


def _headline(counted: Sequence[ReplayCounts]) -> str:
    each = [f"{counts.policy.name} refuses {_of_events(counts)}" for counts in counted]
    return f"Of {counted[0].events:,} events policy {', '.join(each)}"


def _of_events(counts: ReplayCounts) -> str:
    return share(counts.refusals.total(), counts.events)


def section(title: str, chart: Html, rows: Html) -> str:
    """A finding: its title, the chart of it, and the figures behind that."""
    behind = f'<details><summary>The figures</summary><div class="wide" tabindex="0">{rows}</div></details>'
    return f"<section><h2>{escape(title)}</h2>{chart}{behind}</section>"


def _side_by_side(counted: Sequence[ReplayCounts]) -> str:
    most = max(counted, key=lambda counts: counts.refusals.total())
    least = min(counted, key=lambda counts: counts.refusals.total())
    title = (
        f"Policy {most.policy.name} refuses {_of_events(most)} of the events, {least.policy.name} {_of_events(least)}"
    )
    lines = [(counts.policy.name, counts.refusals.total(), _of_events(counts)) for counts in counted]
    rows = [
        [name, ", ".join(map(str, counts.policy.all_limits())), f"{counts.events - refused:,}", f"{refused:,}", part]
        for (name, refused, part), counts in zip(lines, counted, strict=True)
    ]
    headings = ("policy", "limits", "allowed", "refused", "refused of events")
    return section(title, bars("Events refused by each policy", lines, "refused1"), table(headings, rows, text=(1,)))


def _over_time(counts: ReplayCounts) -> str:
    events, refused = counts.over_time.tolist(), counts.refused_over_time.tolist()
    times = [time_label(counts.start_us + place * counts.width_us, counts.width_us) for place in range(len(events))]
    name = f"Policy {counts.policy.name}"
    title = f"{name} refuses nothing"
    if any(refused):
        worst = refused.index(max(refused))
        most = f"the most in the {_width(counts)} from {times[worst]}: {refused[worst]:,}"
        title = f"{name} refuses {_of_events(counts)} of the events, {most}"
    series = [
        ("allowed", "sent", [all_of - held for all_of, held in zip(events, refused, strict=True)]),
        ("refused", "refused1", refused),
    ]
    chart = stacked(
        "Events allowed and refused over time", times, series, ("from (UTC)", f"events each {_width(counts)}")
    )
    rows = [[times[i], f"{events[i]:,}", f"{events[i] - refused[i]:,}", f"{refused[i]:,}"] for i in range(len(times))]
    return section(title, chart, table(("from (UTC)", "events", "allowed", "refused"), rows))


def _by_limit(counts: ReplayCounts) -> str:
    refused, binding = counts.by_limit(), counts.by_limit(binding=True)
    if len(refused) == 1 or not counts.refusals:
        return ""
    most = max(refused, key=lambda limit: refused[limit])
    part = share(refused[most], counts.refusals.total())
    title = f"{most} is the first to refuse in {part} of the refusals of policy {counts.policy.name}"
    chart = bars("Refusals by limit", [(limit, count, f"{count:,}") for limit, count in refused.items()], "refused0")
    rows = [[limit, f"{count:,}", f"{binding[limit]:,}"] for limit, count in refused.items()]
    return section(title, chart, table(("limit", "first that refuses", "longest wait"), rows))


def _by_subject(counts: ReplayCounts, subjects: Sequence[Subject]) -> str:
    top = counts.top_refused(subjects)
    if not top:
        return ""
    total, hit = counts.refusals.total(), int((counts.refused_of > 0).sum())
    title = (
        f"{hit:,} of {len(subjects):,} subjects are refused by policy {counts.policy.name}; "
        f"the {len(top)} most refused have {share(sum(count for _, count in top), total)} of all refusals"
    )
    lines = [(str(subject), count, f"{count:,}") for subject, count in top]
    rows = [[name, written, share(count, total)] for name, count, written in lines]
    chart = bars("Refusals of the most refused subjects", lines, "refused1")
    return section(title, chart, table(("subject", "refused", "share of refusals"), rows))


def time_label(at_us: int, width_us: int = 1) -> str:
    """An instant in UTC, as exactly as stretches of this width need it."""
    at = datetime.fromtimestamp(at_us / 1e6, UTC)
    return (
        f"{at:%Y-%m-%d}"
        if width_us % DAY_US == 0
        else f"{at:%Y-%m-%d %H:%M}"
        if width_us % 60_000_000 == 0
        else f"{at:%Y-%m-%d %H:%M:%S}"
    )


def _width(counts: ReplayCounts) -> str:
    seconds = counts.width_us // 1_000_000
    unit, of_unit = next(
        ((name, size) for name, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)) if seconds % size == 0),
        ("seconds", 1),
    )
    count = seconds // of_unit
    return unit.removesuffix("s") if count == 1 else f"{count} {unit}"
