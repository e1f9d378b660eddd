"""What is configured: policies with their use, one with its versions and overrides, segments, and who changed what.

/console/policies?contains=&after=    a page of them, by name
/console/policy?name=&after=          one; `after` is a subject, of its overrides
/console/segments                     /console/audit?before=
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capline.service.access.tokens import Token
    from capline.service.console.overview import Overview
    from capline.service.console.verbs import Verbs

LIST, ONE = "/v1/policies", "/v1/policies/{name}"
_A_PAGE = 50


class SettingsPages:
    """Asks for them as somebody; `has_store` says whether there is a configuration store, `has_segments` segments."""

    def __init__(self, verbs: Verbs, overview: Overview, *, has_store: bool, has_segments: bool) -> None:
        self._verbs, self._overview = verbs, overview
        self._has_store, self._has_segments = has_store, has_segments

    async def policies(self, token: Token, contains: str | None, after: str | None) -> dict[str, Any]:
        """A page of policies, each with what was counted in the last minutes."""
        asked = {"contains": contains or None, "after": after, "limit": _A_PAGE}
        told: dict[str, Any] = await self._verbs(token, "GET", LIST, **asked)
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
        overrides = await self._verbs(token, "GET", "/v1/overrides/{policy}", name, after=after, limit=_A_PAGE)
        versions: dict[str, Any] = {"versions": []}
        if "version" in told:
            versions = await self._verbs(token, "GET", f"{ONE}/versions", name)
        return view | overrides | {"versions": versions["versions"][:_A_PAGE]}

    async def segments(self, token: Token) -> dict[str, Any]:
        """The segments that are served."""
        if not self._has_segments:
            return {"is_here": False}
        return {"is_here": True, **await self._verbs(token, "GET", "/v1/segments")}

    async def audit(self, token: Token, before: str | None) -> dict[str, Any]:
        """A page of changes."""
        if not self._has_store:
            return {"is_here": False, "commits": [], "next": None}
        return {"is_here": True, **await self._verbs(token, "GET", "/v1/commits", before=before, limit=_A_PAGE)}
