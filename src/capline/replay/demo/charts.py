"""The result as charts. The palette is Okabe and Ito's, which colour-blind readers can tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.replay.demo.figures import limit_name
from capline.replay.demo.recency import SEGMENTS
from capline.replay.svg import dots, stacked

if TYPE_CHECKING:
    from capline.replay.demo.figures import Figures
    from capline.replay.page import Html

_REFUSED_ROLES = 4


def messages_by_week(figures: Figures) -> Html:
    """What was sent each week, and what was refused, by the window of the limit that refused."""
    weeks = figures.weeks
    series = [("sent", "sent", [week.sent for week in weeks])]
    for place, window in enumerate(figures.windows):
        refused = [week.refused[window] for week in weeks]
        series.append((f"refused by the {limit_name(window)}", f"refused{place % _REFUSED_ROLES}", refused))
    label = "Stacked bars of messages sent and refused in each week"
    return stacked(label, [week.monday for week in weeks], series, ("week beginning", "messages a week"))


def per_customer_week(figures: Figures) -> Html:
    """How many customer-weeks had so many messages, due and sent."""
    series = [
        ("due, so without caps", "due", False, figures.without_caps),
        ("sent, so with caps", "sent", True, figures.with_caps),
    ]
    titles = ("messages to one customer in one week", "customer-weeks (logarithmic)")
    return dots("Number of customer-weeks by messages due and by messages sent", series, titles)


def people_by_segment(figures: Figures) -> Html:
    """How many customers each segment had."""
    weeks = figures.weeks
    series = [(name, name, [week.people.get(name, 0) for week in weeks]) for name in SEGMENTS]
    label = "Customers by segment over time"
    return stacked(label, [week.monday for week in weeks], series, ("week beginning", "customers"))
