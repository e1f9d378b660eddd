"""The outcomes as a table: in a terminal, and as docs/explanation/articles.md, which this module writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proof.articles.cases import Outcome

__all__ = ["PAGE", "markdown", "text"]

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "articles.md"

_HEAD = """# What published limiters get wrong

`make articles` plays each of these limiters, as articles about the field have them, on the case that breaks it, and
capline on the same case: on a real Redis where the article uses one. It writes this page. The limiters are written
again in our own words in `proof/articles/published.py`, each with its fault in its first line.

The last three columns count the attempts that were allowed, unless the row says what they count.

"""

_HEADINGS = ("fault", "limit", "what is asked", "asked", "expected", "published", "capline")


def text(outcomes: Sequence[Outcome]) -> str:
    """Lay the table out for a terminal."""
    headings = tuple(heading for heading in _HEADINGS if heading != "what is asked")
    rows = [headings, *(tuple(row[:2] + row[3:]) for row in map(_row, outcomes))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Write the page."""
    rows = [_HEADINGS, ("---", "---", "---", "---:", "---:", "---:", "---:"), *map(_row, outcomes)]
    return _HEAD + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _row(outcome: Outcome) -> tuple[str, ...]:
    case = outcome.case
    unit = "" if case.counts == "allowed" else f" {case.counts}"
    counts = (f"{count:,}{unit}" for count in (case.expected, outcome.played, outcome.capline))
    return case.fault, case.limit, case.story, f"{case.asked:,}", *counts
