"""Campaigns: a list by name, and of one how far it is, what became of its recipients and what may be done with it.

/console/campaigns?after=      a page of them
/console/campaigns/waiting     what is to come, in order, and who takes whose place
/console/campaign?name=        one; POST …/pause, resume, cancel, retry-failed
/console/response?name=        what came back after its messages
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
ACTIONS = ("pause", "resume", "cancel", "retry-failed")


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
