"""Segments: their sizes, how many ids two share, the versions that were published, and back to one of these.

/console/segments?left=&right=    POST /console/segments/rollback
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from capline.model.errors import CaplineError, InvalidValueError, SegmentConflictError
from capline.service.http.problems import Problem

if TYPE_CHECKING:
    from capline.service.access.tokens import Token
    from capline.service.console.verbs import Verbs

LIST, VERSIONS, ROLLBACK = "/v1/segments", "/v1/segments/versions", "/v1/segments/rollback"


class SegmentPages:
    """Asks for them as somebody; `is_here` says whether there are segments."""

    def __init__(self, verbs: Verbs, *, is_here: bool) -> None:
        self._verbs, self._is_here = verbs, is_here

    async def view(self, token: Token, left: str, right: str) -> dict[str, Any]:
        """All segments, what these two share, and the versions; `why_not` says why there are none."""
        if not self._is_here:
            return {"is_here": False}
        told: dict[str, Any] = await self._verbs(token, "GET", LIST)
        view = {"is_here": True, **told, "overlap": None, "published": None, "why_not": ""}
        if left or right:
            view["overlap"] = await self._overlap(token, told["segments"], left, right)
        try:
            view["published"] = await self._verbs(token, "GET", VERSIONS)
        except (Problem, CaplineError) as error:
            view["why_not"] = str(error)
        return view

    async def _overlap(self, token: Token, segments: list[dict[str, Any]], left: str, right: str) -> dict[str, Any]:
        counts = {one["name"]: one["count"] for one in segments}
        if left not in counts or right not in counts:
            raise InvalidValueError(f"name two of these segments: {', '.join(counts)}")
        both = await self._verbs(token, "POST", "/v1/segments/evaluate", form={"expression": f"{left} & {right}"})
        return {"left": left, "right": right, "both": both["count"], "of": [counts[left], counts[right]]}

    async def rollback(self, token: Token, version: str, current: str) -> bool:
        """Serve this version again; False where another than `current` became current meanwhile."""
        if not self._is_here:
            raise Problem(HTTPStatus.NOT_FOUND, "this service has no segments")
        try:
            await self._verbs(token, "POST", ROLLBACK, form={"to": version, "if_current": current})
        except SegmentConflictError:
            return False
        return True
