"""What is configured: policies with their use, one with its versions and overrides, and who changed what.

/console/policies?contains=&after=    a page of them, by name
/console/policy?name=&after=          one; `after` is a subject, of its overrides
/console/try?name=&limits=&...        other limits for it, on the decisions that were recorded; POST .../set
/console/limited?policy=              who is refused most, and who uses most, as recorded
/console/audit?before=
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from capline.config.changes import check_reason
from capline.model.errors import ConfigConflictError, InvalidValueError, quoted
from capline.service.http.forms import number_of
from capline.service.verbs.configuration import PolicyForm

if TYPE_CHECKING:
    from capline.service.access.tokens import Token
    from capline.service.console.overview import Overview
    from capline.service.console.verbs import Verbs

LIST, ONE, LIMITED = "/v1/policies", "/v1/policies/{name}", "/v1/limited"
A_PAGE = 50
_BY_NAME = ("by_segment", "channels")
TYPED = ("limits", *_BY_NAME)
_NAMED = re.compile(r"(?:policy '[^']*', )?(segment|channel)(?: name)? '")


class SettingsPages:
    """Asks for them as somebody; `has_store` says whether there is a configuration store."""

    def __init__(self, verbs: Verbs, overview: Overview, *, has_store: bool) -> None:
        self._verbs, self._overview = verbs, overview
        self._has_store = has_store

    async def policies(self, token: Token, contains: str | None, after: str | None) -> dict[str, Any]:
        """A page of policies, each with what was counted in the last minutes."""
        told: dict[str, Any] = await self._verbs(
            token, "GET", LIST, contains=contains or None, after=after, limit=A_PAGE
        )
        over_s, counted = await self._overview.counted()
        for policy in told["policies"]:
            policy["use"] = counted.get(policy["name"])
        return told | {"over_s": over_s}

    async def policy(self, token: Token, name: str, after: str | None) -> dict[str, Any]:
        """One: what it is, what was counted, its versions, a page of its overrides."""
        told: dict[str, Any] = await self._verbs(token, "GET", ONE, name)
        over_s, counted = await self._overview.counted()
        view = {"name": name, "policy": told, "use": counted.get(name), "over_s": over_s, "has_store": self._has_store}
        if not self._has_store:
            return view | {"versions": [], "overrides": [], "next": None}
        overrides = await self._verbs(token, "GET", "/v1/overrides/{policy}", name, after=after, limit=A_PAGE)
        versions: dict[str, Any] = {"versions": []}
        if "version" in told:
            versions = await self._verbs(token, "GET", f"{ONE}/versions", name)
        told_of = versions["versions"]
        for one, older in zip_longest(told_of, told_of[1:]):
            one["differs"] = _differences((older and older["policy"]) or {}, one["policy"] or {})
        return view | overrides | {"versions": told_of[:A_PAGE]}

    async def tried(self, token: Token, name: str, typed: dict[str, str], faults: dict[str, str]) -> dict[str, Any]:
        """Other limits: what is in force, what was typed, and what that would have done, None if it was not tried.

        `faults` are those that were found, by field; those of the limits are added.
        """
        told, document = await self._document(token, name)
        form = typed if "limits" in typed else _typed(document)
        view = {"name": name, "policy": told, "form": form, "result": None, "why_not": "", "faults": faults}
        if form is typed:
            asked = (token, "POST", f"{ONE}/try", name)
            try:
                view["result"], view["why_not"] = await self._verbs.or_why(*asked, form=document | _limits_of(form))
            except InvalidValueError as error:
                view["faults"] = faults | {_field_of(error): str(error)}
        return view

    async def typed(self, token: Token, name: str) -> dict[str, str]:
        """The limits of a policy as the form has them."""
        return _typed((await self._document(token, name))[1])

    async def change(self, token: Token, name: str, form: dict[str, str]) -> dict[str, str]:
        """Set these limits, in shadow or not, for the form's reason; what is wrong with the form, by its field.

        Where the policy has another version than the form, "version" is.
        """
        _, document = await self._document(token, name)
        version, reason = number_of(form.get("version", ""), 15), form.get("reason", "").strip()
        if version is None:
            raise InvalidValueError("which version does this replace? load the page anew")
        try:
            if not check_reason(reason):
                return {"reason": "say why: the audit shows it"}
        except InvalidValueError as error:
            return {"reason": str(error)}
        said = {"if_version": version, "reason": reason, "shadow": form.get("shadow") == "yes"}
        try:
            await self._verbs(token, "PUT", ONE, name, form=document | _limits_of(form) | said)
        except ConfigConflictError as error:
            return {"version": str(error)}
        except InvalidValueError as error:
            return {_field_of(error): str(error)}
        return {}

    async def _document(self, token: Token, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """A policy as it is, and its last document."""
        told: dict[str, Any] = await self._verbs(token, "GET", ONE, name)
        if "version" not in told:
            known = PolicyForm.__struct_fields__
            return told, {key: value for key, value in told.items() if key in known and value is not None}
        versions = await self._verbs(token, "GET", f"{ONE}/versions", name)
        return told, versions["versions"][0]["policy"] or {}


def _typed(document: dict[str, Any]) -> dict[str, str]:
    """A policy's limits as one types them: a line for each segment and channel."""
    lines = {
        key: "\n".join(f"{name}: {', '.join(limits)}" for name, limits in document.get(key, {}).items())
        for key in _BY_NAME
    }
    return {"limits": ", ".join(document.get("limits", ())), **lines}


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What differs in two documents of a policy, and how it reads in each; empty where it is not there."""
    one, other = _said(before), _said(after)
    return [(key, one.get(key, ""), other.get(key, "")) for key in one | other if one.get(key) != other.get(key)]


def _said(document: dict[str, Any]) -> dict[str, str]:
    by_name = {f"{key} {name}": of for key, of in document.items() if key in _BY_NAME for name, of in of.items()}
    plain = {key: of for key, of in document.items() if key not in _BY_NAME}
    return {
        key: str(of) if isinstance(of, str | bool | int) else ", ".join(of) for key, of in (plain | by_name).items()
    }


class _LineError(InvalidValueError):
    """A line of this field cannot be read."""

    def __init__(self, field: str, line: str) -> None:
        super().__init__(f"{quoted(line)}: write a name, a colon and limits, like vip: 5/day, 20/week")
        self.field = field


def _field_of(error: InvalidValueError) -> str:
    """The field of `TYPED` that the error is about: what it names first is a segment, a channel or the policy."""
    if isinstance(error, _LineError):
        return error.field
    named = _NAMED.match(str(error))
    return {None: "limits", "segment": "by_segment", "channel": "channels"}[named and named[1]]


def _limits_of(form: dict[str, str]) -> dict[str, Any]:
    """What was typed, as keys of a policy."""
    found: dict[str, Any] = {"limits": several(form.get("limits", ""))}
    for key in _BY_NAME:
        found[key] = {}
        for line in filter(None, map(str.strip, form.get(key, "").splitlines())):
            name, colon, limits = line.partition(":")
            if not colon or not several(limits):
                raise _LineError(key, line)
            found[key][name.strip()] = several(limits)
    return found


def several(limits: str) -> list[str]:
    """What stands between commas."""
    return [limit.strip() for limit in limits.split(",") if limit.strip()]
