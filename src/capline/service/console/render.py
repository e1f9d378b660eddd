"""A page as HTML from its template, or the same as JSON where Accept asks for that.

The rule: what comes from outside is escaped by the templates. A character that cannot be seen (a control, an override
of direction) is written out, so that a name is never taken for another.
"""

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from capline import __version__
from capline.service.console.charts import share
from capline.service.http.app import Reply, Request
from capline.service.http.body import JSON
from capline.service.http.problems import Problem
from capline.support.instant import instant_text
from capline.support.quantity import size, span
from capline.support.status_title import status_title

_HERE = Path(__file__).parent
_HTML = "text/html; charset=utf-8"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FILES = {"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"}


def shown(request: Request, template: str, view: Mapping[str, Any], *, status: int = 200, **around: Any) -> Reply:
    """The page of this view; `around` is what only the template needs."""
    if wants_json(request):
        return Reply(msgspec.json.encode(view), HEADERS, status=status)
    body = _environment().get_template(template).render(**view, **around)
    return Reply(body.encode("utf-8", "replace"), HEADERS, status=status, type=_HTML)


def problem_page(request: Request, problem: Problem, **around: Any) -> Reply | None:
    """The problem as a page of the console; None where it is to be JSON, or the request is for another path."""
    if not request.path.startswith(b"/console") or wants_json(request):
        return None
    status = problem.status.value
    view = {"status": status, "title": status_title(status), "detail": str(problem)}
    page = shown(request, "problem.html", view, status=status, **{"who": None, "at": time.time()} | around)
    page.headers = {**page.headers, **problem.headers}
    return page


def moved(to: str, headers: Mapping[str, str] | None = None) -> Reply:
    """An answer that sends the browser there, by GET."""
    return Reply(b"", {**HEADERS, "Location": to, **(headers or {})}, status=303, type="text/plain")


def wants_json(request: Request) -> bool:
    """Whether Accept asks for JSON, and not for a page."""
    accept = b",".join(value for name, value in request.headers if name == b"accept").lower()
    return JSON.encode() in accept and b"text/html" not in accept


@cache
def files() -> dict[str, tuple[str, bytes]]:
    """What the pages load: by a path that changes with the file, its type and its bytes."""
    found: dict[str, tuple[str, bytes]] = {}
    for name, kind in _FILES.items():
        data = (_HERE / name).read_bytes()
        stem, _, ending = name.partition(".")
        found[f"/console/{stem}-{hashlib.sha256(data).hexdigest()[:12]}.{ending}"] = kind, data
    return found


@cache
def _environment() -> Environment:
    loaded = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    paths = {path.rpartition(".")[2]: path for path in files()}
    cast("dict[str, Any]", loaded.globals).update(capline_version=__version__, files=paths, link=link, now=time.time)
    cast("dict[str, Any]", loaded.filters).update({made.__name__: made for made in _FILTERS})
    return loaded


_CELL = re.compile("<(tr|td)(?=[ >])")


def labelled(rows: Markup, heads: Sequence[str]) -> Markup:
    """Rows of a table with its head at each cell: a narrow screen shows them so, each row as a list."""
    left = iter(heads)

    def with_head(found: re.Match[str]) -> str:
        nonlocal left
        if found[1] == "tr":
            left = iter(heads)
            return found[0]
        return f'{found[0]} data-head="{escape(next(left).lstrip(".@"))}"'

    return Markup(_CELL.sub(with_head, rows))  # noqa: S704 - what was escaped stays so # nosec B704


def link(path: str, **query: object) -> str:
    """A path with its query; what is None or empty is left out."""
    asked = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return f"{path}?{asked}" if asked else path


def seen(text: object) -> str:
    """The text with what cannot be seen written out: U+202E is a character that turns the writing round."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in str(text))


def instant(at: float | str) -> str:
    """An instant, in microseconds since 1970 or as ISO 8601, as date and time."""
    text = at if isinstance(at, str) else instant_text(int(at), "seconds")
    return f"{text[:10]} {text[11:19]} UTC"


def clock(at: float) -> str:
    """Seconds since 1970 as the time of day in UTC."""
    return instant_text(int(at) * 1_000_000, "seconds")[11:19]


def number(value: float | None) -> str:
    """A whole number with its thousands apart; None is what nobody said."""
    return "\N{EN DASH}" if value is None else f"{value:,.0f}"


def rate(value: float) -> str:
    """A rate a second, in as many digits as one reads."""
    if value >= 100 or value == 0:  # noqa: PLR2004 - three digits
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def percent(part: float, whole: float) -> str:
    """A share in whole percents; something is never shown as nothing, nor all but something as all."""
    exact = 100 * part / whole if whole else 0.0
    if 0 < exact < 1:
        return "<1 %"
    return ">99 %" if 99 < exact < 100 else f"{exact:.0f} %"  # noqa: PLR2004 - percents


_FILTERS = (seen, clock, instant, span, number, rate, size, share, percent, labelled)
