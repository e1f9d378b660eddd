"""A policy as a document, the way a policy file writes it: what is left out is the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.model.errors import PolicyError, quoted
from capline.model.policy import POPULATION, Policy
from capline.model.zone import UTC_ZONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from capline.model.limit import Limit

__all__ = ["check_same_place", "document_of", "limit_texts", "policy_of"]

_KEYS = (
    "limits",
    "by_segment",
    "channels",
    "algorithm",
    "count_denied",
    "layout",
    "log",
    "wait_replicas",
    "population",
    "zone",
    "granularity",
)


def document_of(policy: Policy) -> dict[str, Any]:
    """The document of a policy, without its name."""
    every = {
        "limits": limit_texts(policy.limits),
        "by_segment": {name: limit_texts(limits) for name, limits in policy.by_segment.items()},
        "channels": {name: limit_texts(limits) for name, limits in policy.channels.items()},
        "algorithm": policy.algorithm,
        "count_denied": policy.count_denied,
        "layout": policy.layout,
        "log": policy.log,
        "wait_replicas": policy.wait_replicas,
        "population": policy.population,
        "zone": policy.zone,
        "granularity": f"{policy.grain_us}us" if policy.grain_us else None,
    }
    defaults: dict[str, Any] = {
        "by_segment": {},
        "channels": {},
        "algorithm": "sliding_log",
        "count_denied": False,
        "layout": "subject",
        "log": policy.name,
        "wait_replicas": 0,
        "population": POPULATION,
        "zone": UTC_ZONE,
        "granularity": None,
    }
    return {key: value for key, value in every.items() if key not in defaults or value != defaults[key]}


def policy_of(name: str, document: Mapping[str, Any]) -> Policy:
    """The policy of a document; raises `PolicyError` or `InvalidTypeError` for what is none."""
    for key in document:
        if key not in _KEYS:
            raise PolicyError(f"policy {quoted(name)}: unknown key {quoted(key)}; it takes: {', '.join(_KEYS)}")
    return Policy(
        name, document.get("limits", ()), **{key: value for key, value in document.items() if key != "limits"}
    )


def limit_texts(limits: Iterable[Limit]) -> list[str]:
    """The limits as they are written."""
    return [str(limit) for limit in limits]


def check_same_place(policy: Policy, other: Policy) -> None:
    """Policies that share a log must find it in the same place, or they would not count each other's hits."""
    for field, mine, theirs in (
        ("layout", policy.layout, other.layout),
        ("population", policy.population, other.population),
        ("algorithm", policy.algorithm, other.algorithm),
    ):
        if mine != theirs:
            raise PolicyError(
                f"policies {other.name!r} and {policy.name!r} share log {policy.log!r} but not its {field} "
                f"({theirs} and {mine}); give both the same"
            )
