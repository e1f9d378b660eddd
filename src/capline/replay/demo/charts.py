"""The result as charts: plain descriptions in Plotly's JSON form, without colours.

Colours are named by role, `@sent` or `@refused2`; the page's style sheet defines them, so one description serves light
and dark. The palette is Okabe and Ito's, which colour-blind readers can tell apart.

Plain data keeps this module free of Plotly: its Python package is needed only for the script that the report carries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.replay.demo.figures import limit_name
from capline.replay.demo.recency import SEGMENTS

if TYPE_CHECKING:
    from capline.replay.demo.figures import Figures

__all__ = ["Chart", "messages_by_week", "people_by_segment", "per_customer_week"]

Chart = dict[str, Any]
"""`data` and `layout`, as Plotly.newPlot takes them."""

_REFUSED_ROLES = 4


def messages_by_week(figures: Figures) -> Chart:
    """Stacked bars: what was sent each week, and what was refused, by the window of the limit that refused."""
    mondays = [week.monday for week in figures.weeks]
    bars = [_bar("sent", mondays, [week.sent for week in figures.weeks], "@sent")]
    for place, window in enumerate(figures.windows):
        refused = [week.refused[window] for week in figures.weeks]
        bars.append(_bar(f"refused by the {limit_name(window)}", mondays, refused, f"@refused{place % _REFUSED_ROLES}"))
    layout = _layout("week beginning", "messages a week")
    return {"data": bars, "layout": layout | {"barmode": "stack", "bargap": 0.18, "hovermode": "x unified"}}


def per_customer_week(figures: Figures) -> Chart:
    """Dots on a logarithmic scale: how many customer-weeks had so many messages, due and sent.

    Dots and not bars, for a bar's length means nothing where there is no zero.
    """
    ring = {"color": "@due", "symbol": "circle-open", "size": 9, "line": {"width": 2}}
    disc = {"color": "@sent", "symbol": "circle", "size": 9}
    dots = [
        _dots("due, so without caps", figures.without_caps, ring),
        _dots("sent, so with caps", figures.with_caps, disc),
    ]
    layout = _layout("messages to one customer in one week", "customer-weeks (logarithmic)")
    layout["yaxis"] |= {
        "type": "log",
        "dtick": 1,
        "exponentformat": "none",
        "separatethousands": True,
        "tickformat": "~s",
    }
    layout["xaxis"] |= {"rangemode": "tozero", "zeroline": False, "showgrid": True}
    return {"data": dots, "layout": layout | {"hovermode": "closest"}}


def people_by_segment(figures: Figures) -> Chart:
    """Stacked areas: how many customers each segment had."""
    mondays = [week.monday for week in figures.weeks]
    areas = [
        {
            "type": "scatter",
            "mode": "lines",
            "stackgroup": "people",
            "name": segment,
            "x": mondays,
            "y": [week.people.get(segment, 0) for week in figures.weeks],
            "line": {"width": 0.5, "color": f"@{segment}"},
            "fillcolor": f"@{segment}",
            "hovertemplate": "%{y:,}",
        }
        for segment in SEGMENTS
    ]
    layout = _layout("week beginning", "customers")
    return {"data": areas, "layout": layout | {"hovermode": "x unified"}}


def _bar(name: str, x: list[str], y: list[int], role: str) -> dict[str, Any]:
    marker = {"color": role, "line": {"width": 0}}
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": marker, "hovertemplate": "%{y:,}"}


def _dots(name: str, counts: dict[int, int], marker: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(counts),
        "y": list(counts.values()),
        "marker": marker,
        "cliponaxis": False,
        "hovertemplate": "%{x} messages: %{y:,} customer-weeks",
    }


def _layout(x_title: str, y_title: str) -> dict[str, Any]:
    axis = {
        "automargin": True,
        "linecolor": "@line",
        "gridcolor": "@grid",
        "zerolinecolor": "@line",
        "fixedrange": True,
    }
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "@ink"},
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "hoverlabel": {"bgcolor": "@card", "bordercolor": "@line", "font": {"color": "@ink"}},
        "xaxis": axis | {"title": {"text": x_title, "standoff": 10}, "showgrid": False},
        "yaxis": axis | {"title": {"text": y_title, "standoff": 14}, "tickformat": ",", "rangemode": "tozero"},
    }
