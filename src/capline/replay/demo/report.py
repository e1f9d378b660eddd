"""The demo's result as one HTML page; see `capline.replay.page`.

The palette is Okabe and Ito's, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from capline.replay.demo.figures import NO_SEGMENT, Figures, Line, by_window, limit_name
from capline.replay.demo.messages import MESSAGES
from capline.replay.demo.recency import SEGMENTS
from capline.replay.page import Html, fill, page, share, table, write_page
from capline.replay.svg import dots, stacked
from capline.support.quantity import size

if TYPE_CHECKING:
    from capline.replay.demo.run import DemoResult

_DAYS_A_MONTH = 365.25 / 12
_REFUSED_ROLES = 4

_SPREAD = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 5), (6, 10), (11, None))
"""The rows of the table below the dots: messages in a week, from and to."""

_DEFINITIONS = {
    NO_SEGMENT: "the day of the first purchase",
    "new": "first purchase 1 to 30 days ago",
    "active": "not new; last purchase 1 to 90 days ago",
    "lapsing": "last purchase 91 to 180 days ago",
    "churned": "last purchase more than 180 days ago",
}


def write_report(result: DemoResult, path: Path) -> int:
    """Write the page, whole or not at all, and return its size in bytes."""
    return write_page(render(result), path)


def render(result: DemoResult) -> str:
    """Return the whole page."""
    figures = result.figures
    total = figures.total
    refused = total.asked - total.sent
    body = fill(
        resources.files("capline.replay.demo") / "report.html",
        weeks_chart=_messages_by_week(figures),
        spread_chart=_per_customer_week(figures),
        people_chart=_people_by_segment(figures),
        period=f"{result.first_day} to {result.last_day}",
        headline=f"The caps held back {share(refused, total.asked)} of {total.asked:,} simulated messages",
        lead=_lead(result),
        verdict=(
            "Counted out afterwards: no customer was above any limit in any window."
            if result.holds
            else "The check failed: these figures are wrong. See “The answer, checked”."
        ),
        verdict_class="holds" if result.holds else "fails",
        tiles=_tiles(result),
        weeks_title=_weeks_title(figures),
        spread_title=_spread_title(figures),
        spread_table=_spread_table(figures),
        segments_title=_segments_title(figures.segments),
        segments_table=_lines_table("segment", figures.segments, figures, limits=result.limits_by_segment),
        messages_title=_messages_title(figures.messages),
        messages_table=_lines_table("message", figures.messages, figures),
        people_title=_people_title(figures),
        policy_table=_policy_table(result),
        policy_text=result.policy_text.rstrip(),
        checks_table=_checks_table(result),
        purchases_count=f"{result.purchases:,}",
        customers_count=f"{result.customers:,}",
    )
    return page(f"capline demo: {refused:,} of {total.asked:,} simulated messages held back", body)


def _messages_by_week(figures: Figures) -> Html:
    """What was sent each week, and what was refused, by the window of the limit that refused."""
    weeks = figures.weeks
    series = [("sent", "sent", [week.sent for week in weeks])]
    for place, window in enumerate(figures.windows):
        refused = [week.refused[window] for week in weeks]
        series.append((f"refused by the {limit_name(window)}", f"refused{place % _REFUSED_ROLES}", refused))
    label = "Stacked bars of messages sent and refused in each week"
    return stacked(label, [week.monday for week in weeks], series, ("week beginning", "messages a week"))


def _per_customer_week(figures: Figures) -> Html:
    """How many customer-weeks had so many messages, due and sent."""
    series = [
        ("due, so without caps", "due", False, figures.without_caps),
        ("sent, so with caps", "sent", True, figures.with_caps),
    ]
    titles = ("messages to one customer in one week", "customer-weeks (logarithmic)")
    return dots("Number of customer-weeks by messages due and by messages sent", series, titles)


def _people_by_segment(figures: Figures) -> Html:
    """How many customers each segment had."""
    weeks = figures.weeks
    series = [(name, name, [week.people.get(name, 0) for week in weeks]) for name in SEGMENTS]
    label = "Customers by segment over time"
    return stacked(label, [week.monday for week in weeks], series, ("week beginning", "customers"))


def _tiles(result: DemoResult) -> Html:
    tiles = (
        (f"{_months(result)} months", f"simulated, {result.days} days"),
        (f"{result.customers:,}", "customers"),
        (f"{result.decisions:,}", "decisions"),
        (f"{result.seconds:.1f} s", "for all of it"),
        (f"{result.decisions_per_second:,}", "decisions per second"),
        (size(result.store_bytes), "store on disk"),
    )
    return Html("".join(f"<div><b>{escape(figure)}</b><span>{escape(words)}</span></div>" for figure, words in tiles))


def _lead(result: DemoResult) -> str:
    """Say where the messages come from: few purchases become many messages."""
    figures, total = result.figures, result.figures.total
    following = [message.name for message in MESSAGES if message.after_days is not None]
    asked = {line.name: line.asked for line in figures.messages}
    follow_ups = sum(asked.get(name, 0) for name in following)
    return (
        f"The purchases are real, the messages are simulated. {result.purchases:,} purchases by {result.customers:,} "
        f"customers over {_months(result)} months make {follow_ups:,} messages ({len(following)} for each purchase: "
        f"{', '.join(following)}; those due after the last day are left out), and a weekly blast to everyone who has "
        f"bought before makes {total.asked - follow_ups:,} more: {total.asked:,} in all. "
        f"Under the policy below {total.sent:,} of them went out and {total.asked - total.sent:,} did not."
    )


def _months(result: DemoResult) -> int:
    return max(1, round(result.days / _DAYS_A_MONTH))


def _weeks_title(figures: Figures) -> str:
    half = len(figures.weeks) // 2
    first, last = _refused_share(figures, 0, half), _refused_share(figures, half, None)
    return f"Caps refused {first:.0%} of the messages in the first half of the time, {last:.0%} in the second"


def _refused_share(figures: Figures, start: int, end: int | None) -> float:
    weeks = figures.weeks[start:end]
    refused = sum(sum(week.refused.values()) for week in weeks)
    return refused / max(1, refused + sum(week.sent for week in weeks))


def _spread_title(figures: Figures) -> str:
    most, least = max(figures.without_caps), max(figures.with_caps)
    return f"Without caps one customer would have had {most} messages in a week; with them nobody had more than {least}"


def _spread_table(figures: Figures) -> Html:
    columns = (figures.without_caps, figures.with_caps)
    headings = ("messages in a week", "weeks without caps", "share of weeks", "weeks with caps", "share of weeks")
    rows: list[list[str]] = []
    for low, high in _SPREAD:
        row = [f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"]
        for counts in columns:
            count = sum(times for number, times in counts.items() if number >= low and (high is None or number <= high))
            row += [f"{count:,}", f"{count / sum(counts.values()):.2%}"]
        rows.append(row)
    return table(headings, rows)


def _segments_title(lines: Sequence[Line]) -> str:
    most, held, of_all = _most_refused(lines)
    if not held:
        return "No segment was refused anything"
    who = "Customers without a segment" if most.name == NO_SEGMENT else f"{most.name.capitalize()} customers"
    return f"{who} had {of_all} of all refusals: {share(held, most.asked)} of what was due to them"


def _messages_title(lines: Sequence[Line]) -> str:
    most, held, of_all = _most_refused(lines)
    if not held:
        return "No message was refused"
    return f"The {most.name} had {of_all} of all refusals: {share(held, most.asked)} of it was held back"


def _most_refused(lines: Sequence[Line]) -> tuple[Line, int, str]:
    """Find the line with the most refusals: it, how many they are, and their share of all."""
    most = max(lines, key=lambda line: line.asked - line.sent)
    held = most.asked - most.sent
    return most, held, share(held, sum(line.asked - line.sent for line in lines))


def _lines_table(
    what: str, lines: Sequence[Line], figures: Figures, limits: dict[str, tuple[str, ...]] | None = None
) -> Html:
    headings = [what, "due" if limits is None else "limits", "asked", "sent", "refused", "refused of asked"]
    headings += [limit_name(window) for window in figures.windows]
    second = {message.name: message.when for message in MESSAGES}
    rows: list[list[str]] = []
    for line in (*lines, figures.total):
        if limits is not None:
            words = ", ".join(limits.get("" if line.name == NO_SEGMENT else line.name, ()))
        else:
            words = second.get(line.name, "")
        held = line.asked - line.sent
        rows.append(
            [line.name, words, f"{line.asked:,}", f"{line.sent:,}", f"{held:,}", share(held, line.asked)]
            + [f"{by_window(line, window):,}" for window in figures.windows]
        )
    return table(headings, rows, total=True, text=(1,))


def _people_title(figures: Figures) -> str:
    people = figures.weeks[-1].people
    everyone = sum(people.values())
    if not everyone:
        return "Nobody had a segment yet"
    most = max(people, key=lambda name: people[name])
    return f"At the end {share(people[most], everyone)} of {everyone:,} customers are {most}"


def _policy_table(result: DemoResult) -> Html:
    rows = [
        [name, _DEFINITIONS[name], ", ".join(result.limits_by_segment["" if name == NO_SEGMENT else name])]
        for name in (NO_SEGMENT, *SEGMENTS)
    ]
    return table(("segment", "who that is, each morning", "limits"), rows, text=(1, 2))


def _checks_table(result: DemoResult) -> Html:
    marks = {True: Html('<b class="holds">holds</b>'), False: Html('<b class="fails">FAILS</b>')}
    rows = [[check.what, check.found, marks[check.holds]] for check in result.checks]
    return table(("what must hold", "what was found", ""), rows, wrap=(0, 1))
