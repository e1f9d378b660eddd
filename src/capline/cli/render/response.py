"""What `capline response` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.cli.render.console import out, plain, table

if TYPE_CHECKING:
    from capline.campaign.response.measure import Group, Response


def show_response(found: Response, window: str) -> None:
    """Print a table by campaign and segment, one by number in the window, and who took whose place."""
    from capline.campaign.response.measure import CANNOT_TELL  # noqa: PLC0415 - NumPy is an extra
    from capline.campaign.response.page import chance, headline  # noqa: PLC0415 - as above

    out.print(f"[bold]{plain(headline(found))}[/]\n", soft_wrap=True)
    _show([group for group in found.groups if group.number is None], "campaign")
    _show([group for group in found.groups if group.number is not None], f"of a {window}")
    for regret in found.regret:
        if regret.taken_by:
            taken = ", ".join(f"{plain(name)} ({count:,})" for name, count in regret.taken_by.items())
            out.print(
                f"{plain(regret.campaign)}: {regret.refused:,} refused; in their windows: {taken}", soft_wrap=True
            )
    out.print(
        f"{found.events:,} events; {found.never_sent:,} of messages never sent, {found.outside:,} at another time. "
        f"{chance(found)}\n{CANNOT_TELL}",
        soft_wrap=True,
    )


def _show(groups: list[Group], first: str) -> None:
    from capline.campaign.response.page import name_of, percent_of, points  # noqa: PLC0415 - NumPy is an extra

    if not groups:
        return
    shown = table(first, "event", numbers=("sent", "share (95 %)", "against the holdout (95 %)"))
    for group in groups:
        against = "" if group.against is None else points(group.against.difference)
        cells = (f"{group.sent.of:,}", percent_of(group.sent), against)
        shown.add_row(plain(name_of(group)), plain(group.kind), *cells)
    out.print(shown)
