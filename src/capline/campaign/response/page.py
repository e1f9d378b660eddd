"""What came back as one HTML page; see `capline.replay.page`."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from capline.campaign.response.intervals import LEAST, METHOD
from capline.campaign.response.measure import CANNOT_TELL, MOST_NUMBERS
from capline.replay.page import Html, page, share, table
from capline.replay.report import section
from capline.replay.svg import bars, intervals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.campaign.response.intervals import Difference, Share
    from capline.campaign.response.measure import Group, Regret, Response

_MOST_LINES = 40
"""Lines of a chart; the table has all."""
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def render(found: Response, within: str, window: str) -> str:
    """Return the page; `within` is the attribution window, `window` the one in which messages are counted."""
    head = headline(found)
    about = (
        f"{found.events:,} events, joined with messages by key, or by recipient and time: up to {within} after the "
        f"decision, and the last message before an event has it. Beside a holdout all messages before an event have "
        f"it, on both sides. Of messages never sent: {found.never_sent:,}; at another time: {found.outside:,}."
    )
    parts = [
        '<header><p class="eyebrow">capline response</p>',
        f"<h1>{escape(head)}</h1>",
        f'<p class="lead">{escape(about)}</p>',
        f'<p class="note">{CANNOT_TELL} Intervals: {METHOD}. {escape(chance(found))}</p></header>',
    ]
    for kind in dict.fromkeys(group.kind for group in found.groups):
        groups = [group for group in found.groups if group.kind == kind]
        named = [group for group in groups if group.number is None]
        counted = [group for group in groups if group.number is not None]
        parts += [_rates(kind, named), _against(kind, named), _numbers(kind, counted, window), _against(kind, counted)]
    parts += map(_regret, found.regret)
    parts.append("<footer>Made by <code>capline response</code>. This file loads nothing from anywhere.</footer>")
    return page(f"capline response: {head}", Html("\n".join(filter(None, parts))))


def headline(found: Response) -> str:
    """The strongest finding: the effects that can be told from chance, or else the rates of the first campaign."""
    whole = [group for group in found.groups if group.campaign and group.segment is None]
    apart = [group for group in whole if group.against and group.against.difference.is_apart]
    if apart:
        return f"Beside the holdout: {'; '.join(f'{each.kind} of {_effect(each)}' for each in apart[:2])}"
    sent = [group for group in whole if group.sent.of]
    first = [group for group in sent if group.campaign == sent[0].campaign][:4]
    rates = ", ".join(f"{percent(group.sent.rate)} {group.kind}" for group in first)
    return f"Of those sent {sent[0].campaign}: {rates}" if sent else "Nothing was sent"


def chance(found: Response) -> str:
    """How many differences leave out 0, and how many would by chance alone."""
    compared = found.compared
    if not compared:
        return f"No difference to a holdout has an interval: that takes {LEAST} recipients on both sides."
    apart = sum(each.is_apart for each in compared)
    return (
        f"Of {len(compared)} differences to a holdout {apart} leave out 0; without any effect "
        f"{len(compared) / 20:.1f} would on average."
    )


def percent(rate: float, like: float | None = None) -> str:
    """A rate in percent, with two places where it, or one that it stands beside, is small."""
    return f"{rate:.2%}" if 0 < (like or rate) < 0.02 else f"{rate:.1%}"  # noqa: PLR2004 - one place would be too coarse


def percent_of(share: Share) -> str:
    """A rate and its interval; a dash where there were none."""
    if not share.of:
        return "-"
    if share.low is None or share.high is None:
        return f"{percent(share.rate)}, no interval"
    low, high = (percent(bound, share.rate) for bound in (share.low, share.high))
    return f"{percent(share.rate)} ({low} to {high})"


def points(difference: Difference) -> str:
    """A difference in percentage points and its interval."""
    value, low, high = difference
    if low is None or high is None:
        return f"{100 * value:+.2f} points, no interval"
    return f"{100 * value:+.2f} points ({100 * low:+.2f} to {100 * high:+.2f})"


def name_of(group: Group) -> str:
    """What its messages have in common."""
    if group.number is not None:
        ending = "th" if group.number in (11, 12, 13) else _ENDINGS.get(group.number % 10, "th")
        return f"{group.number}{ending}{' and later' if group.number == MOST_NUMBERS else ''}"
    return group.campaign or "" if group.segment is None else f"{group.campaign}: {group.segment or 'no segment'}"


def _effect(group: Group) -> str:
    against = group.against
    return f"{name_of(group)} {points(against.difference)}" if against else ""


def _lines(groups: Sequence[Group]) -> list[tuple[str, float, float | None, float | None, str]]:
    shares = [(name_of(group), group.sent) for group in groups if group.sent.of]
    return [(name, share.rate, share.low, share.high, percent_of(share)) for name, share in shares[:_MOST_LINES]]


def _shares(groups: Sequence[Group]) -> list[list[str]]:
    return [[name_of(each), f"{each.sent.of:,}", f"{each.sent.responded:,}", percent_of(each.sent)] for each in groups]


def _rates(kind: str, groups: Sequence[Group]) -> str:
    whole = [group for group in groups if group.segment is None and group.sent.of]
    if not whole:
        return ""
    most, least = (pick(whole, key=lambda group: group.sent.rate) for pick in (max, min))
    title = f"{kind}: {percent(most.sent.rate)} of {name_of(most)}"
    if least is not most:
        title += f", {percent(least.sent.rate)} of {name_of(least)}"
    chart = intervals(f"{kind} by campaign and segment", _lines(groups), "sent")
    return section(title, chart, table(("campaign", "sent", kind, "share, 95 %"), _shares(groups)))


def _numbers(kind: str, groups: Sequence[Group], window: str) -> str:
    sent = [group for group in groups if group.sent.of]
    if len(sent) < 2:  # noqa: PLR2004 - nothing to put side by side
        return ""
    first, last = sent[0], sent[-1]
    title = (
        f"{kind}: {percent(first.sent.rate)} of the {name_of(first)} in a {window}, "
        f"{percent(last.sent.rate)} of the {name_of(last)}"
    )
    chart = intervals(f"{kind} by number in the window", _lines(groups), "new")
    return section(title, chart, table((f"message of a {window}", "sent", kind, "share, 95 %"), _shares(groups)))


def _against(kind: str, groups: Sequence[Group]) -> str:
    found = [(group, group.against) for group in groups if group.against is not None]
    if not found:
        return ""
    apart = [group for group, against in found if against.difference.is_apart]
    few = all(against.difference.low is None for _, against in found)
    title = f"{kind}, against the holdout: "
    if few:
        title += f"a holdout of {max(against.held_out.of for _, against in found)} claims no interval"
    else:
        title += "; ".join(map(_effect, apart[:2])) if apart else "no effect that chance alone would not make"
    differences = [(name_of(group), against.difference) for group, against in found]
    lines = [(name, effect.value, effect.low, effect.high, points(effect)) for name, effect in differences]
    rows = [
        [
            name_of(group),
            f"{against.sent_to.of:,}",
            percent_of(against.sent_to),
            f"{against.held_out.of:,}",
            percent_of(against.held_out),
            points(against.difference),
        ]
        for group, against in found
    ]
    chart = intervals(f"{kind}: difference to the holdout", lines[:_MOST_LINES], "refused1")
    headings = ("", "sent to", f"{kind} of them", "held out", f"{kind} of them", "difference, 95 %")
    return section(title, chart, table(headings, rows))


def _regret(regret: Regret) -> str:
    if not regret.taken_by:
        return ""
    units = sum(regret.taken_by.values())
    first = next(iter(regret.taken_by))
    title = (
        f"{first} took {share(regret.taken_by[first], units)} of the places that {regret.campaign} lost "
        f"in its {regret.refused:,} refusals"
    )
    if regret.unexplained:
        title += f"; {regret.unexplained:,} lost theirs to messages that are not here"
    chart = bars(
        f"Messages in the windows of those refused {regret.campaign}",
        [(name, count, f"{count:,}") for name, count in regret.taken_by.items()][:_MOST_LINES],
        "refused0",
    )
    rows = [
        [name, f"{count:,}", share(count, units), f"{regret.refused_by[name]:,}"]
        for name, count in regret.taken_by.items()
    ]
    headings = ("campaign in the window", "messages", "share", "refusals with one")
    return section(title, chart, table(headings, rows))
