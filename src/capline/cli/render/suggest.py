"""What `capline suggest` shows: tables for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from capline.cli.render.console import NO_SEGMENT, out, plain, table

if TYPE_CHECKING:
    from capline.model.subject import Subject
    from capline.replay.suggest.suggestion import Suggestion

_MOST_ROWS, _MOST_PAIRS = 16, 6


def show_suggestion(
    whole: Suggestion, by_segment: Mapping[str | None, Suggestion], name_of: Callable[[int], Subject]
) -> None:
    """Print the limits, and for each window some quotas of its curve."""
    from capline.replay.suggest.policy_file import forecast  # noqa: PLC0415 - NumPy is an extra
    from capline.replay.suggest.suggestion import rows_of  # noqa: PLC0415 - as above

    for choice in whole.choices:
        out.print(f"[bold]{choice.limit}[/]: {forecast(choice.price, whole)}", soft_wrap=True)
        shown = table(numbers=("quota", "refused events", "subjects", "most of one"))
        for quota in rows_of(choice, _MOST_ROWS):
            cells = [f"{quota:,}", *(f"{int(column[quota - 1]):,}" for column in choice.curve)]
            shown.add_row(*cells, style="bold" if quota == choice.limit.quota else None)
        out.print(shown)
        if choice.top:
            top = [f"{plain(name_of(code))} ({refused:,} of {events:,})" for code, refused, events in choice.top[:3]]
            out.print(f"most refused: {', '.join(top)}\n", soft_wrap=True)
    if len(whole.choices) > 1:
        out.print(f"[bold]{_limits(whole)}[/] together: {forecast(whole.together, whole)}", soft_wrap=True)
    for price in whole.frontier[:: max(1, -(-len(whole.frontier) // _MOST_PAIRS))]:
        limits = ", ".join(map(str, price.limits))
        out.print(f"  or {limits}: {price.events:,} events, {price.subjects:,} subjects", soft_wrap=True)
    for segment, found in by_segment.items():
        out.print(f"{plain(segment or NO_SEGMENT)}: [bold]{_limits(found)}[/], {forecast(found.together, found)}")


def _limits(found: Suggestion) -> str:
    return ", ".join(map(str, found.together.limits))
