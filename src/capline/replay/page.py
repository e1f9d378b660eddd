"""Pages that load nothing from elsewhere and run nothing: one file with its style and its charts.

Two safeguards: whatever is put into a page is escaped unless it is `Html`, which only the modules of reports make; and
a Content-Security-Policy in the page forbids every request and every script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from capline.segment import files

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class Html(str):
    """Text that is HTML already, and goes into a page as it is."""

    __slots__ = ()


def write_page(text: str, path: Path) -> int:
    """Write the page, whole or not at all, and return its size in bytes."""
    data = text.encode()
    files.write(path, data)
    return len(data)


def page(title: str, body: Html) -> str:
    """Make the whole page."""
    return fill(resources.files("capline.replay") / "page.html", title=title, body=body)


def share(part: int, whole: int) -> str:
    """Write a share in percent, one place after the point."""
    return f"{part / whole:.1%}" if whole else "-"


def fill(template: Traversable, **values: str) -> Html:
    """Fill the template, with every value escaped that is not `Html`."""
    text = template.read_text(encoding="utf-8")
    return Html(Template(text).substitute({name: _escaped(value) for name, value in values.items()}))


def _escaped(value: str) -> str:
    return value if isinstance(value, Html) else escape(value)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    total: bool = False,
    wrap: Sequence[int] = (),
    text: Sequence[int] = (),
) -> Html:
    """Make a table; `total` sets off the last row, `wrap` and `text` name columns of sentences and of words."""

    def cell(tag: str, place: int, value: str) -> str:
        kind = ' class="wrap"' if place in wrap else ' class="text"' if place in text else ""
        return f"<{tag}{kind}>{_escaped(value)}</{tag}>"

    lines = ["".join(cell("td", place, value) for place, value in enumerate(row)) for row in rows]
    body = "".join(f"<tr{' class=total' if total and line is lines[-1] else ''}>{line}</tr>" for line in lines)
    head = "".join(cell("th", place, heading) for place, heading in enumerate(headings))
    return Html(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
