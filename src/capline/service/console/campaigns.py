"""Campaigns: a list by name, and of one how far it is, what became of its recipients and what may be done with it.

/console/campaigns?after=      a page of them
/console/campaigns/waiting     what is to come, in order, and who takes whose place; `after` is a campaign
/console/campaign?name=        one; POST …/pause, resume, cancel, retry-failed
/console/response?name=        what came back after its messages
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from capline.model.errors import InvalidValueError, quoted
from capline.service.console.history import Latest
from capline.service.console.settings import A_PAGE

if TYPE_CHECKING:
    from capline.service.access.tokens import Token
    from capline.service.console.verbs import Verbs

LIST, ONE, RESPONSE = "/v1/campaigns", "/v1/campaigns/{name}", "/v1/campaigns/{name}/response"
CONFLICTS = "/v1/campaign-conflicts"
_OUTCOMES = ("sent", "refused", "failed", "not_known", "held", "pending", "undecided")
_ACTIONS = {
    "running": ("pause", "cancel"),
    "stopped": ("pause", "cancel"),
    "scheduled": ("pause", "cancel"),
    "waiting": ("pause", "cancel"),
    "paused": ("resume", "cancel"),
    "finished": ("retry-failed",),
}
"""What makes sense in a state; the service decides whether it may be."""
_MOST_CONFLICTS = 200
ACTIONS = ("pause", "resume", "cancel", "retry-failed")


class ToCome:
    """What is to come, a page at a time; it is simulated in a tenth of the time at most, however many look."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self._told: dict[str, Latest[dict[str, Any] | None]] = {
            history: Latest(0.0, None, rests=9) for history in ("false", "true")
        }

    async def view(self, token: Token, after: str | None, history: str) -> dict[str, Any]:
        """Campaigns behind this one, whose places they lose, and `at` which instant; None while it is simulated."""
        self._verbs.check(token, "GET", CONFLICTS)
        latest = self._told.get(history)
        if latest is None:
            raise InvalidValueError(f"history {quoted(history)}: give true or false")

        async def ask() -> dict[str, Any]:
            told = await self._verbs(token, "GET", CONFLICTS, history=history)
            return {"at": time.time(), **told}

        await latest.renew(ask)
        told = latest.value or {"at": None, "campaigns": [], "conflicts": [], "unread": {}}
        names = [each["campaign"] for each in told["campaigns"]]
        begin = names.index(after) + 1 if after in names else 0
        shown = names[begin : begin + A_PAGE]
        conflicts = [each for each in told["conflicts"] if each["campaign"] in shown]
        return {
            "at": told["at"],
            "away": latest.why,
            "history": history == "true",
            "campaigns": told["campaigns"][begin : begin + A_PAGE],
            "count": len(names),
            "next": shown[-1] if begin + A_PAGE < len(names) else None,
            "conflicts": conflicts[:_MOST_CONFLICTS],
            "conflict_count": len(conflicts),
            "unread": dict([*told["unread"].items()][:A_PAGE]),
            "unread_count": len(told["unread"]),
        }


def actions(verbs: Verbs, token: Token, report: dict[str, Any]) -> list[str]:
    """What this token may do with a campaign as it is."""
    named = [action for action in _ACTIONS.get(report["state"], ()) if verbs.may(token, "POST", f"{ONE}/{action}")]
    return [action for action in named if action != "retry-failed" or report["total"]["failed"]]


def drawn(part: dict[str, Any]) -> list[tuple[str, float, float]]:
    """The outcomes of an audience as parts of a bar of a hundred: name, begin, width."""
    whole = max(1, part["audience"])
    found: list[tuple[str, float, float]] = []
    at = 0.0
    for name in _OUTCOMES:
        width = 100 * part[name] / whole
        if width:
            found.append((name, round(at, 2), round(width, 2)))
        at += width
    return found
