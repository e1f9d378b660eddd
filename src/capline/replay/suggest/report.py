"""Suggested limits as one HTML page: which to take, what it costs, and whom it hits; see `capline.replay.page`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from capline.model.subject import Subject
from capline.replay.page import Html, page, share, table
from capline.replay.report import section, time_label
from capline.replay.suggest.events import Past
from capline.replay.suggest.policy_file import forecast
from capline.replay.suggest.suggestion import Choice, Suggestion, rows_of
from capline.replay.svg import bars, curves

_MOST_ROWS, _MOST_POINTS = 300, 60
"""Quotas in a table, and points in a chart; `--json` has every quota."""

_HOW_TO_READ = (
    "How to read a curve: a quota at the foot, above it what that quota would have refused of these events. The broken "
    "line is the suggested quota, the smallest that keeps what was asked. Refused events count for nothing, and the "
    "figures suppose that nobody tries again or changes their ways."
)


def render(
    name: str,
    asked: str,
    past: Past,
    whole: Suggestion,
    by_segment: Mapping[str | None, Suggestion],
    name_of: Callable[[int], Subject],
) -> str:
    """Return the page for the events of a file of this name; `asked` says the bound."""
    limits = " and ".join(map(str, whole.together.limits))
    headline = f"Take {limits}: {forecast(whole.together, whole)}"
    parts = [
        f'<header><p class="eyebrow">capline suggest &middot; {escape(name)}</p>',
        f"<h1>{escape(headline)}</h1>",
        f'<p class="lead">{escape(asked)}. {whole.events:,} events by {whole.subjects:,} subjects, from',
        f"{time_label(past.first_us)} to {time_label(past.last_us)} UTC.</p>",
        f'<p class="note">{_HOW_TO_READ}</p></header>',
    ]
    for choice in whole.choices:
        parts += [_curve(choice, whole), _top(choice, name_of)]
    if whole.frontier:
        parts.append(_frontier(whole))
    if by_segment:
        parts.append(_segments(by_segment))
    parts.append("<footer>Made by <code>capline suggest</code>. This file loads nothing from anywhere.</footer>")
    return page(f"capline suggest: {headline}", Html("\n".join(parts)))


def _curve(choice: Choice, whole: Suggestion) -> str:
    events, subjects, worst = choice.curve
    title = f"{choice.limit} refuses {share(choice.price.events, whole.events)} of the events"
    half = max(1, choice.limit.quota // 2)
    if half < choice.limit.quota:
        title += (
            f"; {half}/{choice.window} refuses {share(int(events[half - 1]), whole.events)}, "
            f"and {int(subjects[half - 1]):,} subjects feel it in place of {choice.price.subjects:,}"
        )

    def points(counts: list[int], total: int, what: str) -> dict[int, tuple[float, str]]:
        shown = rows_of(choice, _MOST_POINTS)
        return {
            quota: (
                counts[quota - 1] / total,
                f"{quota:,}/{choice.window}: {counts[quota - 1]:,} {what} ({share(counts[quota - 1], total)})",
            )
            for quota in shown
        }

    series = [
        ("events refused", "refused1", points(events.tolist(), whole.events, "events")),
        ("subjects that feel it", "sent", points(subjects.tolist(), whole.subjects, "subjects")),
    ]
    titles = (f"quota per {choice.window} (each step a ratio)", "percent")
    chart = curves(
        f"Share of events and of subjects refused by quota per {choice.window}", series, choice.limit.quota, titles
    )
    rows: list[list[str]] = []
    for quota in rows_of(choice, _MOST_ROWS):
        refused, felt = int(events[quota - 1]), int(subjects[quota - 1])
        cells = (share(refused, whole.events), f"{felt:,}", share(felt, whole.subjects), f"{int(worst[quota - 1]):,}")
        bold = quota == choice.limit.quota
        row = [f"{quota:,}/{choice.window}", f"{refused:,}", *cells]
        rows.append([Html(f"<b>{escape(cell)}</b>") if bold else cell for cell in row])
    headings = ("limit", "refused events", "of events", "subjects that feel it", "of subjects", "most of one subject")
    return section(title, chart, table(headings, rows))


def _top(choice: Choice, name_of: Callable[[int], Subject]) -> str:
    if not choice.top:
        return ""
    lines = [(str(name_of(code)), refused, events) for code, refused, events in choice.top]
    name, refused, events = lines[0]
    part = share(sum(count for _, count, _ in lines), choice.price.events)
    title = f"{choice.limit} hits {name} most: {refused:,} of its {events:,} events"
    if len(lines) > 1:
        title += f"; the {len(lines)} shown have {part} of all refusals"
    chart = bars(
        "Refusals of the most refused subjects", [(who, count, f"{count:,}") for who, count, _ in lines], "refused1"
    )
    rows = [[who, f"{count:,}", f"{of:,}", share(count, of)] for who, count, of in lines]
    return section(title, chart, table(("subject", "refused", "of its events", "share of its events"), rows))


def _frontier(whole: Suggestion) -> str:
    names = [choice.window for choice in whole.choices]
    title = (
        f"{' and '.join(map(str, whole.together.limits))} keep it together; "
        f"{len(whole.frontier):,} pairs do of which neither can be smaller"
    )
    first = [price.limits[0].quota for price in whole.frontier]
    chart = bars(
        "Pairs of limits and the events that they refuse",
        [
            (", ".join(map(str, price.limits)), price.events, f"{price.events:,}")
            for price in whole.frontier[:: max(1, -(-len(first) // 12))]
        ],
        "refused0",
    )
    rows = [
        [*(f"{limit.quota:,}" for limit in price.limits), f"{price.events:,}", f"{price.subjects:,}"]
        for price in whole.frontier
    ]
    headings = (*(f"per {name}" for name in names), "refused events", "subjects that feel it")
    return section(title, chart, table(headings, rows))


def _segments(by_segment: Mapping[str | None, Suggestion]) -> str:
    most = max(by_segment.values(), key=lambda found: found.together.events / found.events)
    name = next(segment or "no segment" for segment, found in by_segment.items() if found is most)
    title = (
        f"By segment the limits differ: {name} gets {', '.join(map(str, most.together.limits))}, "
        f"which refuse {share(most.together.events, most.events)} of its events"
    )
    lines = [
        (f"{segment or 'no segment'}: {', '.join(map(str, found.together.limits))}", found)
        for segment, found in by_segment.items()
    ]
    chart = bars(
        "Events refused in each segment",
        [(line, found.together.events, f"{found.together.events:,}") for line, found in lines[:20]],
        "refused1",
    )
    rows = [
        [
            segment or "no segment",
            ", ".join(map(str, found.together.limits)),
            f"{found.events:,}",
            f"{found.together.events:,}",
            share(found.together.events, found.events),
            f"{found.together.subjects:,}",
        ]
        for segment, found in by_segment.items()
    ]
    headings = ("segment", "limits", "events", "refused", "of events", "subjects that feel it")
    return section(title, chart, table(headings, rows, text=(1,)))
