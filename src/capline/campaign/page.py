"""The report of a campaign as one HTML page, of a run or a plan; see `capline.replay.page`."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from capline.campaign.report import Eligible, Report, SegmentReport
from capline.campaign.store.rows import DELAYS_S
from capline.replay.page import Html, page, share, table
from capline.replay.report import section
from capline.replay.svg import bars, stacked

_MOST_REASONS = 20
_NAMES = {"not_known": "not known", "held_out": "held out", "pending": "under way", "undecided": "to come"}
_ROLES = {
    "sent": "sent",
    "refused": "refused0",
    "failed": "refused1",
    "not_known": "refused2",
    "excluded": "line",
    "held": "active",
    "held_out": "new",
    "pending": "refused3",
    "undecided": "churned",
}
"""The colour of each count of recipients, by its role in the page's style."""


def render(report: Report) -> str:
    """Return the page: how far it is, delays, outcomes by segment and limit, when the refused fit again, reasons."""
    total, planned = report.total, report.state == "planned"
    channel = f", channel {report.channel}" if report.channel else ""
    test = ", a test send" if report.test else ""
    of_audience = f"{total.sent:,} of {total.audience:,} {'would be sent' if planned else 'are sent'}"
    headline = f"{report.campaign}: {of_audience}, {total.refused:,} refused"
    parts = [
        f'<header><p class="eyebrow">capline campaign &middot; {escape(f"policy {report.policy}{channel}{test}")}</p>',
        f"<h1>{escape(headline)}</h1>",
        f'<p class="lead">{escape(_state(report))}</p>',
        f'<div class="tiles">{_tiles(report)}</div></header>',
        _segments(report),
        _delays(total),
        _limits(total),
        "" if report.next_eligible is None else _eligible(report.next_eligible),
        _reasons("failed", report.failures),
        _reasons("are not known to have arrived", report.doubts),
        "<footer>Made by <code>capline campaign report</code>. This file loads nothing from anywhere.</footer>",
    ]
    return page(f"capline campaign {headline}", Html("\n".join(filter(None, parts))))


def _state(report: Report) -> str:
    if report.state == "planned":
        return "A forecast: nothing is consumed, and nothing sent."
    words, steering = report.state.capitalize(), report.steering
    if steering is not None:
        words += f"; due at {steering.send_at}" if report.state == "scheduled" else ""
        words += f"; over at {steering.until}" if steering.until else ""
        words += f"; rate {steering.speed.rate}" if steering.speed else ""
        words += f"; changed at {steering.changed} by {steering.by}" if steering.changed else ""
    return f"{words}."


def _tiles(report: Report) -> str:
    total = report.total
    done = total.audience - total.pending - total.held - total.undecided
    tiles = {"in the audience": f"{total.audience:,}"}
    if report.state != "planned":
        tiles |= {"are done": share(done, total.audience), "a second": f"{report.per_s:,.0f}"}
        tiles["of work"] = f"{report.elapsed_s:,.1f} s"
    tiles |= {_NAMES.get(name, name): f"{count:,}" for name in _ROLES if (count := getattr(total, name))}
    return "".join(f"<div><b>{escape(count)}</b><span>{escape(name)}</span></div>" for name, count in tiles.items())


def _segments(report: Report) -> str:
    shown = [name for name in _ROLES if getattr(report.total, name)]
    names = [part.segment or "in none" for part in report.segments]
    series = [
        (_NAMES.get(name, name), _ROLES[name], [getattr(part, name) for part in report.segments]) for name in shown
    ]

    def row(name: str, part: SegmentReport) -> list[str]:
        return [name, *(f"{getattr(part, key):,}" for key in ("audience", *shown)), share(part.sent, part.audience)]

    rows = [row(name, part) for name, part in zip(names, report.segments, strict=True)] + [row("all", report.total)]
    headings = ("segment", "audience", *(_NAMES.get(name, name) for name in shown), "sent of audience")
    chart = stacked("Outcomes by segment", names, series, ("segment", "recipients")) if shown else Html("")
    to_whom = "would be sent to" if report.state == "planned" else "were sent to"
    title = f"{share(report.total.sent, report.total.audience)} of the audience {to_whom}"
    if len(report.segments) > 1:
        least = min(report.segments, key=lambda part: part.sent / max(1, part.audience))
        title += f"; least of {least.segment or 'those in none'}, {share(least.sent, least.audience)}"
    return section(title, chart, table(headings, rows, total=True))


def _delays(total: SegmentReport) -> str:
    if not total.delays:
        return ""
    names = [*(f"{bound} s" for bound in DELAYS_S), "later"]
    last = max(place for place, name in enumerate(names) if name in total.delays)
    names = names[: last + 1]
    counts = [total.delays.get(name, 0) for name in names]
    title = f"{share(counts[0], sum(counts))} were handed over within a second of when they were due"
    series = [("handed over", "sent", counts)]
    chart = stacked("Delay from due to handed over", names, series, ("within", "messages"))
    rows = [[name, f"{count:,}", share(count, sum(counts))] for name, count in zip(names, counts, strict=True)]
    return section(title, chart, table(("within", "messages", "share"), rows))


def _limits(total: SegmentReport) -> str:
    if not total.refused_by:
        return ""
    most = max(total.refused_by, key=lambda limit: total.refused_by[limit])
    lines = [(limit, count, f"{count:,}") for limit, count in total.refused_by.items()]
    rows = [[limit, written, share(count, total.refused)] for limit, count, written in lines]
    title = f"{most} refuses {share(total.refused_by[most], total.refused)} of those that are refused"
    chart = bars("Refused by limit", lines, "refused0")
    return section(title, chart, table(("the limit that holds longest", "refused", "share"), rows))


def _eligible(eligible: Eligible) -> str:
    never = f"{eligible.never:,} of the refused never fit: the cost is above the quota"
    if not eligible.by_time:
        return f"<section><h2>{escape(never)}</h2></section>"
    times = [at[:16].replace("T", " ") if eligible.by == "hour" else at[:10] for at, _ in eligible.by_time]
    counts = [count for _, count in eligible.by_time]
    series = [("fit again", "sent", counts)]
    titles = ("from (UTC)", f"recipients each {eligible.by}")
    chart = stacked("When the refused fit again", times, series, titles)
    rows = [[at, f"{count:,}"] for at, count in zip(times, counts, strict=True)]
    first, last = (at[:16].replace("T", " ") for at in (eligible.earliest or "", eligible.latest or ""))
    title = f"The refused fit again from {first} to {last} UTC"
    return section(f"{title}; {never}" if eligible.never else title, chart, table(titles, rows))


def _reasons(what: str, reasons: Mapping[str, int]) -> str:
    if not reasons:
        return ""
    lines = [(reason, count, f"{count:,}") for reason, count in [*reasons.items()][:_MOST_REASONS]]
    chart = bars(f"Reasons of those that {what}", lines, "refused1")
    title = f"{sum(reasons.values()):,} {what}"
    return section(title, chart, table(("reason", "messages"), [[r, n] for r, _, n in lines], wrap=(0,)))
