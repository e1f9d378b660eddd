"""One subject under all policies: what is used, which limit binds, when each unit is free again; and what may be done.

/console/subject?id=42         a subject as it is typed: digits are the integer, where that has nothing the text
POST …/refund                  give a hit back
POST …/erase                   forget it
POST …/override                limits of its own under one policy, for some hours
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from capline.model.errors import InvalidValueError, UnknownNameError
from capline.model.policy import POLICY_FORM
from capline.model.subject import Subject, parse_subject, subject_text
from capline.service.console.charts import WIDTH, places, share
from capline.service.console.settings import several
from capline.service.http.forms import number_of
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from capline.service.access.tokens import Token
    from capline.service.console.verbs import Verbs

PATH, OVERRIDE, REFUND = "/v1/subjects/{subject}", "/v1/overrides/{policy}/{subject}", "/v1/refund"
_ATTEMPTS, _MESSAGES = f"{PATH}/attempts", f"{PATH}/messages"
_A_PAGE = 100
_LAST_HITS = 20
_MOST_HOURS = 24 * 31
_HOUR_US = 3_600_000_000
_DIGITS = 20


class SubjectPage:
    """Asks for a subject, and changes it, as somebody."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    async def view(self, token: Token, word: str, after: str | None) -> dict[str, Any]:
        """The page: policies of which something is used or that refuse, then the names of the others."""
        subject = parse_subject(word)
        told = await self._told(token, subject, after)
        if isinstance(subject, int) and not any(one["used"] for one in told["policies"]):
            as_text = await self._told(token, word, after)
            if any(one["used"] for one in as_text["policies"]):
                subject, told = word, as_text
        shown = [one for one in told["policies"] if one["used"] or one["refuses"]]
        shown.sort(key=lambda one: not one["refuses"])
        attempts, why_not = await self._verbs.or_why(token, "GET", _ATTEMPTS, _word(subject), limit=_A_PAGE)
        messages = await self._messages(token, subject)
        _name_users(shown, attempts, messages)
        names = {one["policy"] for one in shown}
        others = sorted({one["policy"] for one in told["policies"]} - names)
        return {
            "id": subject_text(subject),
            "subject": subject,
            "now_us": told["now_us"],
            "policies": shown,
            "others": others,
            "unasked": told["unasked"],
            "next": told["next"],
            "refused": None if attempts is None else attempts["refused"][:_LAST_HITS],
            "why_not": why_not,
            "messages": messages,
        }

    async def _messages(self, token: Token, subject: Subject) -> list[dict[str, Any]]:
        """What became of it in campaigns, the newest first."""
        if not self._verbs.may(token, "GET", _MESSAGES):
            return []
        told = await self._verbs(token, "GET", _MESSAGES, _word(subject), limit=_A_PAGE)
        return sorted(told["messages"], key=lambda message: -message["decided_us"])

    async def _told(self, token: Token, subject: Subject, after: str | None) -> dict[str, Any]:
        told: dict[str, Any] = await self._verbs(token, "GET", PATH, _word(subject), after=after, limit=_A_PAGE)
        for one in told["policies"]:
            limits = one["limits"]
            if one["channel"] is not None:  # the policy's own limits have their place already
                limits = one["limits"] = [
                    limit for limit in limits if limit.get("log", "").endswith(f"/{one['channel']}")
                ]
            one["refuses"] = not one["decision"]["allowed"] and any(limit["binds"] for limit in limits)
            one["used"] = any(limit.get("used") for limit in limits)
        told["policies"] = [one for one in told["policies"] if one["limits"]]
        return told

    async def refund(self, token: Token, word: str, policy: str, hit: str, units: str) -> bool:
        """Give a hit of so many units back; False where it was given back before, or nothing counts it any more."""
        of = {"policy": policy, "subject": parse_subject(word)}
        form = of | {"hit": number_of(hit, _DIGITS), "cost": number_of(units, _DIGITS)}
        told: dict[str, bool] = await self._verbs(token, "POST", REFUND, form=form)
        return told["refunded"]

    async def erase(self, token: Token, word: str) -> None:
        """Forget the subject."""
        await self._verbs(token, "DELETE", PATH, _word(parse_subject(word)))

    async def override(self, token: Token, word: str, policy: str, limits: str, hours: str) -> dict[str, str]:
        """Give the subject limits of its own under the policy for so many hours; then what it had before holds again.

        Returns what is wrong with what was typed, by its field; then nothing is changed.
        """
        faults: dict[str, str] = {}
        subject = parse_subject(word)
        lasts = number_of(hours.strip(), len(str(_MOST_HOURS))) or 0
        if not 1 <= lasts <= _MOST_HOURS:
            faults["hours"] = f"give a number from 1 to {_MOST_HOURS}"
        wanted = several(limits)
        if not wanted:
            faults["limits"] = "write them like 5/day, 20/week"
        if faults:
            return faults
        until = instant_text(time.time_ns() // 1000 + lasts * _HOUR_US, "seconds")
        form = {"limits": wanted, "until": until}
        try:
            await self._verbs(token, "PUT", OVERRIDE, policy, _word(subject), form=form)
        except InvalidValueError as error:
            is_named = isinstance(error, UnknownNameError) or not POLICY_FORM.fullmatch(policy)
            return {"policy" if is_named else "limits": str(error)}
        return {}


def _name_users(
    policies: list[dict[str, Any]], attempts: dict[str, Any] | None, messages: list[dict[str, Any]]
) -> None:
    """Say of each hit which campaign used it, or who asked for it, as far as that is known."""
    allowed: list[dict[str, Any]] = [] if attempts is None else attempts["allowed"]
    asked = {(row["policy"], row["at_us"]): row for row in allowed}
    sent = {message["hit_us"]: message["campaign"] for message in messages}
    for policy in policies:
        for hit in policy["hits"]:
            attempt = asked.get((policy["policy"], hit["hit"]), {"who": "", "id": None})
            hit["campaign"], hit["who"], hit["id"] = sent.get(hit["hit"]), attempt["who"], attempt["id"]


def drawn(one: dict[str, Any]) -> dict[str, Any]:
    """What is drawn of a policy: units on a line from the oldest to when the last is free again, and now on it."""
    now_us = one["now_us"]
    hits = [hit["hit"] for hit in one["hits"]]
    frees = [unit["at_us"] for limit in one["limits"] for unit in limit.get("frees", ())]
    begin, end = min([*hits, now_us]), max([*frees, now_us])
    return {
        "begin_us": begin,
        "end_us": end,
        "hits": places(hits, begin, end),
        "frees": places(sorted(set(frees)), begin, end),
        "now": places([now_us], begin, end)[0],
        "width": WIDTH,
        "last": one["hits"][: -_LAST_HITS - 1 : -1],
        "shares": [
            share(limit.get("used", 0), limit.get("used", 0) + limit.get("remaining", 0)) for limit in one["limits"]
        ],
    }


def _word(subject: Subject) -> str:
    return f"s:{subject}" if isinstance(subject, str) else f"i:{subject}"
