"""Which limits the recorded decisions of a policy suggest, compared with those in force, and from there to the form.

/console/suggest?name=&windows=minute, hour&refuse_at_most=1%&of=events&by_segment=on
"""

from __future__ import annotations

from http import HTTPStatus
from math import log
from typing import TYPE_CHECKING, Any

from capline.model.errors import InvalidValueError
from capline.model.limit import Limit, window_text
from capline.service.console.charts import HEIGHT, WIDTH, areas
from capline.service.console.settings import ONE, SettingsPages, several
from capline.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.service.access.tokens import Token
    from capline.service.console.verbs import Verbs

TYPED = ("windows", "refuse_at_most", "of", "by_segment")
_OF = ("events", "subjects")
_NO_SEGMENT = "-"
_SAID = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class SuggestPages:
    """Asks for them as somebody."""

    def __init__(self, verbs: Verbs, settings: SettingsPages) -> None:
        self._verbs, self._settings = verbs, settings

    async def view(self, token: Token, name: str, typed: dict[str, str]) -> dict[str, Any]:
        """What was typed, what that suggests, None if it was not asked for, and the try-form's fields with it."""
        form = await self._settings.typed(token, name)
        asked = {"windows": _windows(form), "refuse_at_most": "1%", "of": "events"} | typed
        view = {"name": name, "form": asked, "result": None, "take": None, "why_not": ""}
        if "refuse_at_most" not in typed:
            return view
        question = {
            "windows": several(asked["windows"]),
            "refuse_at_most": asked["refuse_at_most"].strip(),
            "of": asked["of"],
            "by_segment": "by_segment" in asked,
        }
        try:
            found = view["result"] = await self._verbs(token, "POST", f"{ONE}/suggest", name, form=question)
        except (Problem, InvalidValueError) as error:
            if isinstance(error, Problem) and error.status not in _SAID:
                raise
            return view | {"why_not": str(error)}
        return view | {"take": _taken(form, found) if found["suggested"] else None}


def _windows(form: dict[str, str]) -> str:
    """The windows of the policy's own limits, the narrowest three; an hour if it has none."""
    limits = map(Limit.parse, several(form["limits"]))
    widths_us = sorted({limit.window_us for limit in limits if type(limit) is Limit})
    return ", ".join(map(window_text, widths_us[:3])) or "hour"


def _taken(form: dict[str, str], found: dict[str, Any]) -> dict[str, str]:
    """The try-form's fields with what is suggested in place of the limits over the same windows."""
    segments = {name: of["together"]["limits"] for name, of in found["segments"].items()}
    whole = segments.pop(_NO_SEGMENT, found["suggested"]["together"]["limits"])
    of_segment = dict[str, str]()
    for line in form["by_segment"].splitlines():
        name, _, limits = line.partition(": ")
        of_segment[name] = limits
    of_segment |= {name: _replaced(of_segment.get(name, ""), limits) for name, limits in segments.items()}
    lines = "\n".join(f"{name}: {limits}" for name, limits in of_segment.items())
    return form | {"limits": _replaced(form["limits"], whole), "by_segment": lines}


def _replaced(old: str, new: Sequence[str]) -> str:
    windows = {Limit.parse(text).window_us for text in new}
    kept = [
        text for text in several(old) if type(limit := Limit.parse(text)) is not Limit or limit.window_us not in windows
    ]
    return ", ".join([*new, *kept])


def curve(window: dict[str, Any], of: str, whole: int) -> dict[str, Any]:
    """What is drawn of a window: the share that each quota refuses, each step a ratio, and where two quotas stand."""
    rows, column = window["quotas"], 1 + _OF.index(of)
    ends = [*(row[0] for row in rows[1:]), rows[-1][0] + 1]
    spans = [(log(row[0]), log(end)) for row, end in zip(rows, ends, strict=True)]
    (path,), top = areas(spans, [[100 * row[column] / whole for row in rows]], 0.0, spans[-1][1])

    def at(price: dict[str, Any] | None) -> float | None:
        quota = None if price is None else Limit.parse(price["limit"]).quota
        return None if quota is None else round(min(WIDTH - 1.0, WIDTH * log(quota) / spans[-1][1]), 1)

    marks = {"suggested": at(window["suggested"]), "now": at(window["in_force"])}
    return {"path": path, "top": top, "last": rows[-1][0], "width": WIDTH, "height": HEIGHT, **marks}
