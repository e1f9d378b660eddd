"""Composing a campaign in a form: one of the messages of the settings, to whom, when; what that would send and refuse.

/console/campaigns/new?message=push&campaign=&...    the form, with a forecast once it is filled in; POST begins it
/console/campaigns/audience                          POST uploads a file, as PUT /v1/audiences/{name} does

The rule: the page does what `POST /v1/campaigns/plan` and `/v1/campaigns` do with the same campaign, as somebody. What
their reader finds wrong stands at its field; what has no field stands above them all.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

from capline.model.errors import CampaignNotFoundError, CaplineError, InvalidValueError
from capline.model.zone import check_zone
from capline.service.http.forms import number_of
from capline.service.http.problems import Problem
from capline.support.instant import instant_text, zoned_instant_us

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from capline.service.access.tokens import Token
    from capline.service.console.verbs import Verbs

CREATE, ONE, PLAN = "/v1/campaigns", "/v1/campaigns/{name}", "/v1/campaigns/plan"
UPLOADS, UPLOAD = "/v1/audiences", "/v1/audiences/{name}"
_INSTANTS = ("send_at", "until")
_AS_TYPED = ("policy", "rate", "holdout", "over_cap", "quiet", "send_at_local")
_COLUMNS = ("column", "zone_column")
TYPED = ("message", "campaign", "kind", "audience", "exclude", *_COLUMNS, *_INSTANTS, "zone", "priority", *_AS_TYPED)
"""The fields of the form; most are keys of a campaign file."""
_KINDS = ("upload", "segments", "csv", "parquet", "bitmap")
_LISTED, _MOST_LISTED = 200, 10_000
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_AT_THE_FIELD = re.compile(r"(?:campaign\.json(?::\d+)?: )?(?:(\w+)(?: '[^']*')?: )?(.*)", re.DOTALL)
_QUOTED = ("column", "zone_column", "policy", "audience")
"""Fields that errors of files quote; where uploads lie is not shown."""
_MISTYPED = re.compile(r"(.*) - at `\$\.(\w+)`", re.DOTALL)

Faults = dict[str, str]
"""What is wrong, by its field; "" for what has none."""


class Composing:
    """Plans and begins campaigns as somebody; `messages` has by name what their files share."""

    def __init__(self, verbs: Verbs, messages: Mapping[str, Mapping[str, Any]]) -> None:
        self._verbs, self._messages = verbs, messages

    async def view(self, token: Token, typed: Mapping[str, str], faults: Faults | None = None) -> dict[str, Any]:
        """The form as it was typed, what is wrong with it, and its forecast, None where there is none.

        With `faults` it could not begin, and nothing is forecast.
        """
        self._check(token)
        document: dict[str, Any] = {}
        forecast = None
        if faults is None:
            document, faults = self._document(typed) if "campaign" in typed else ({}, {})
        if document and not faults:
            try:
                forecast = await self._forecast(token, document)
            except (Problem, CaplineError) as error:
                faults = faults_of(error, typed)
        due_us = zoned_instant_us(document["send_at"]) if forecast and "send_at" in document else None
        return {
            "messages": [*self._messages],
            "form": {name: typed.get(name, "") for name in TYPED},
            "faults": faults,
            "forecast": forecast,
            "send_at": None if due_us is None else instant_text(due_us),
            "is_past": due_us is not None and due_us < time.time_ns() // 1000,
            **await self._choices(token),
        }

    async def begin(self, token: Token, typed: Mapping[str, str], key: str) -> Faults:
        """Begin it, once by this key; what is wrong, if anything."""
        self._check(token)
        document, faults = self._document(typed)
        if not faults:
            try:
                await self._verbs(token, "POST", CREATE, form=document, key=key)
            except (Problem, CaplineError) as error:
                faults = faults_of(error, typed)
        return faults

    async def upload(
        self, token: Token, said: Mapping[str, str], file: str, pieces: Callable[[], AsyncGenerator[bytes]]
    ) -> tuple[dict[str, str], Faults]:
        """Take the file of this name: the fields that name it, and what is wrong with it."""
        self._check(token)
        if not self._verbs.has(UPLOAD):
            raise Problem(HTTPStatus.NOT_FOUND, "this service takes no uploads; 'audiences:' in its file says where")
        name = _NOT_IN_A_NAME.sub("-", file.replace("\\", "/").rpartition("/")[2]).lstrip("._-")
        rows = self._messages.get(said.get("message", ""), {}).get("audience", {})
        column = said.get("column", "").strip()
        if not file:
            return {}, {"file": "choose a file"}
        if "replaces" not in said:
            before = await self._verbs(token, "GET", UPLOADS, after=name[:-1] or None, limit=_MOST_LISTED)
            if any(one["name"] == name for one in before["audiences"]):
                return {}, {
                    "file": f"{name} was uploaded before; give the file another name, or say that it takes its place"
                }
        try:
            query = {"column": column or rows.get("column"), "ids": rows.get("ids")}
            await self._verbs(token, "PUT", UPLOAD, name, pieces=pieces, **query)
        except InvalidValueError as error:
            return {}, {"file": str(error)}
        return {"kind": "upload", "audience": name, "column": column}, {}

    def _check(self, token: Token) -> None:
        if not self._verbs.has(CREATE):
            raise Problem(HTTPStatus.NOT_FOUND, "this service has no campaign store; 'queue:' in its file names one")
        self._verbs.check(token, "POST", CREATE)

    async def _forecast(self, token: Token, document: dict[str, Any]) -> dict[str, Any]:
        report: dict[str, Any] = await self._verbs(token, "POST", PLAN, form=document)
        try:
            await self._verbs(token, "GET", ONE, document["campaign"])
        except CampaignNotFoundError:
            return report
        raise CaplineError(f"campaign: {document['campaign']} was begun before; a new one needs another name")

    async def _choices(self, token: Token) -> dict[str, list[str]]:
        """What fields offer: the first names of each kind that this service knows."""
        found: dict[str, list[str]] = {}
        for kind, path in (("policies", "/v1/policies"), ("audiences", UPLOADS)):
            listed: dict[str, Any] = {}
            if self._verbs.may(token, "GET", path):
                listed = await self._verbs(token, "GET", path, limit=_LISTED)
            found[kind] = [one["name"] for one in listed.get(kind, ())]
        return found

    def _document(self, typed: Mapping[str, str]) -> tuple[dict[str, Any], Faults]:
        """The campaign that was typed, as the file has it, and what no file could say."""
        message = self._messages.get(typed.get("message", ""))
        if message is None:
            return {}, {"message": "choose one"}
        faults: Faults = {}
        said = {name: word for name in TYPED if (word := typed.get(name, "").strip())}
        document = {**message, "campaign": said.get("campaign", "")}
        if said.get("kind", _KINDS[0]) not in _KINDS or "audience" not in said:
            faults["audience"] = "who gets it?"
        document |= _recipients(message, said)
        for name in _INSTANTS:
            if name in said:
                try:
                    document[name] = _instant(said[name], said.get("zone", "UTC"))
                except ValueError as error:
                    faults["zone" if isinstance(error, CaplineError) else name] = str(error)
        if "priority" in said:
            document["priority"] = number_of(said["priority"], 3)
            if document["priority"] is None:
                faults["priority"] = "a whole number from 0 to 100"
        document |= {name: _listed(name, said[name]) for name in _AS_TYPED if name in said}
        if "policy" not in document:
            faults["policy"] = "which limits hold for it?"
        if not faults:  # in a file, and so in a message, all is text
            from capline.service.verbs.campaigns import CampaignForm  # noqa: PLC0415 - few services have campaigns

            document = msgspec.to_builtins(msgspec.convert(document, CampaignForm, strict=False))
        return document, faults


def _listed(name: str, word: str) -> str | list[str]:
    """What was typed; several policies have commas between them."""
    return [part.strip() for part in word.split(",")] if name == "policy" and "," in word else word


def _recipients(message: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """Where recipients come from, and who is excluded; of rows the message says what it needs of them."""
    kind = said.get("kind", _KINDS[0])
    columns: dict[str, Any] = {} if kind in ("segments", "bitmap") else message.get("audience", {})
    columns = {**columns, **{name: said[name] for name in _COLUMNS if name in said}}
    exclude = {"exclude": {**message.get("exclude", {}), "segments": said["exclude"]}} if "exclude" in said else {}
    return {"audience": {**columns, kind: said.get("audience", "")}, **exclude}


def _instant(text: str, zone: str) -> str:
    """A date and time in a zone as ISO 8601; ValueError where there is no such time, a `CaplineError` for the zone."""
    where = ZoneInfo(check_zone(zone))
    try:
        local = datetime.fromisoformat(text)
        if local.tzinfo is not None:
            return text
        at = local.replace(tzinfo=where)
        passed = at.astimezone(UTC).astimezone(where).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise ValueError("write it like 2027-01-01T16:00") from None
    if passed != local:
        raise ValueError(f"there is no such time in {zone}: the clocks are put forward then")
    return at.isoformat()


def faults_of(error: Problem | CaplineError, typed: Mapping[str, str]) -> Faults:
    """What the error says, by field, or by what was typed there; raises it where it is not about that."""
    if isinstance(error, Problem) and error.status == HTTPStatus.FORBIDDEN:
        raise error
    faults: Faults = {}
    for line in getattr(error, "__notes__", None) or [str(error)]:
        mistyped, found = _MISTYPED.fullmatch(line), _AT_THE_FIELD.fullmatch(line)
        field, text = (mistyped[2], mistyped[1]) if mistyped else (found[1], found[2]) if found else (None, line)
        if field not in TYPED:
            text = line.removeprefix("campaign.json: ")
            field = next((name for name in _QUOTED if (word := typed.get(name, "").strip()) and word in text), "")
            text = re.sub(rf"\B/\S*/(?={re.escape(typed.get('audience', '').strip())})", "", text) if field else text
        faults[field] = f"{faults[field]}; {text}" if field in faults else text
    return faults
