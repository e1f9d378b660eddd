"""Draws the README's picture, light and dark:  python tools/picture.py

A week of one person's messages and the attempt that a limit refuses. What it says is what a limiter answered: the hits
are played on a clock of their own. A test says that the files are current.
"""

from __future__ import annotations

from pathlib import Path

from capline import Limiter, ManualClock, Policy

FOLDER = Path(__file__).parents[1] / "docs" / "_static"
COLOURS = {
    "light": {
        "text": "#1f2328",
        "soft": "#59636e",
        "line": "#d1d9e0",
        "hit": "#0969da",
        "no": "#cf222e",
        "fill": "#0969da",
    },
    "dark": {
        "text": "#f0f6fc",
        "soft": "#9198a1",
        "line": "#3d444d",
        "hit": "#4493f8",
        "no": "#f85149",
        "fill": "#4493f8",
    },
}
HOUR_US = 3_600_000_000
DAY = 24
HITS = (-185, -149, -146, -126, -101, -92, -77, -70, -50, -19, -9)
"""Hours before now; the first is more than a week old."""
LEFT, RIGHT, AXIS = 30, 690, 118


def answer() -> tuple[str, float]:
    """Play the hits, then ask once more: the limit that refuses, and the hours until it fits."""
    clock = ManualClock(start_us=1_800_000_000_000_000)
    with Limiter("memory://", policies=[Policy("promo", ["3/day", "10/week"])], clock=clock) as limiter:
        for before, hours in zip((-200, *HITS), (*HITS, 0), strict=True):
            clock.advance_us((hours - before) * HOUR_US)
            decision = limiter.decide("promo", "user:42")
    if decision or decision.retry_after is None:
        raise SystemExit("the picture's last attempt should be refused until later; change HITS")
    return str(decision.limit), decision.retry_after / 3600


def at(hours: float) -> float:
    """Place an instant, in hours from now, on the picture."""
    return round(LEFT + (RIGHT - LEFT) * (hours + 192) / (192 + 24), 1)


def picture(scheme: str) -> str:
    """Draw it in the colours of a scheme."""
    limit, wait = answer()
    colour = COLOURS[scheme]

    def word(x: float, y: float, text: str, kind: str = "soft", anchor: str = "middle", size: int = 13) -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{colour[kind]}">{text}</text>'

    def window(hours: float, y: float, label: str) -> str:
        left, right = at(-hours), at(0)
        return (
            f'<path d="M{left} {AXIS}V{y}H{right}V{AXIS}z" fill="{colour["hit"]}" opacity="0.1"/>'
            f'<path d="M{left} {AXIS}V{y}H{right}V{AXIS}" fill="none" stroke="{colour["hit"]}" stroke-width="1.2"/>'
            + word((left + right) / 2, y - 6, label)
        )

    counted = [hours for hours in HITS if hours > -7 * DAY]
    today = [hours for hours in HITS if hours > -DAY]
    title = (
        f"{len(today)} of 3 today, {len(counted)} of 10 this week: refused by {limit}, fits again in {wait:.0f} hours"
    )
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 190" role="img" font-family="system-ui, sans-serif">',
        f"<title>{title}</title>",
        window(7 * DAY, 34, "a week"),
        window(DAY, 66, "a day"),
        f'<path d="M{LEFT} {AXIS}H{RIGHT}" stroke="{colour["line"]}" stroke-width="2"/>',
        *(
            f'<circle cx="{at(hours)}" cy="{AXIS}" r="6" fill="{colour["hit" if hours in counted else "line"]}"/>'
            for hours in HITS
        ),
        word(at(HITS[0]), AXIS + 24, "out"),
        f'<path d="M{at(0) - 6} {AXIS - 6}l12 12m0-12l-12 12" stroke="{colour["no"]}" stroke-width="3"/>',
        word(at(0), AXIS + 24, "now", "no"),
        f'<circle cx="{at(wait)}" cy="{AXIS}" r="6" fill="none" stroke="{colour["hit"]}" stroke-width="2"/>',
        word(at(wait), AXIS + 24, f"+{wait:.0f} h"),
        word(LEFT, 176, title, "text", "start", 16),
        "</svg>\n",
    ]
    return "\n".join(parts)


def main() -> None:
    """Write both."""
    for scheme in COLOURS:
        (FOLDER / f"window-{scheme}.svg").write_text(picture(scheme), encoding="utf-8")


if __name__ == "__main__":
    main()
