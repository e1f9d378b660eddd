"""Policies, overrides and their versions as documents. A policy is as in a policy file: without what is the default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from capline.model.errors import PolicyError, quoted
from capline.model.policy import POLICY_KEYS, Policy
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from capline.config.records import Entry
    from capline.model.limit import Limit


def document_of(policy: Policy) -> dict[str, Any]:
    """The document of a policy, without its name."""
    least = every_key(Policy(policy.name, ["1/s"]))
    return {key: value for key, value in every_key(policy).items() if key == "limits" or value != least[key]}


def every_key(policy: Policy) -> dict[str, Any]:
    """The policy by the keys of a policy file, with what it leaves to defaults."""
    every = {key: getattr(policy, key) for key in POLICY_KEYS[:-1]}
    for key in ("by_segment", "channels"):
        every[key] = {name: limit_texts(limits) for name, limits in every[key].items()}
    every["limits"] = limit_texts(policy.limits)
    every["granularity"] = f"{policy.grain_us}us" if policy.grain_us else None
    return every


def policy_of(name: str, document: Mapping[str, Any]) -> Policy:
    """The policy of a document; raises `PolicyError` or `InvalidTypeError` if it is not valid."""
    for key in document:
        if key not in POLICY_KEYS:
            raise PolicyError(f"policy {quoted(name)}: unknown key {quoted(key)}; it takes: {', '.join(POLICY_KEYS)}")
    return Policy(
        name, document.get("limits", ()), **{key: value for key, value in document.items() if key != "limits"}
    )


def own_facts(value: Any) -> dict[str, Any]:
    """An override's value as a document: its `limits`, which may be None, and its `granularity` where it has one."""
    return value if isinstance(value, dict) else {"limits": value}  # pyright: ignore[reportUnknownVariableType] - as it was stored


def limit_texts(limits: Iterable[Limit]) -> list[str]:
    """The limits as they are written."""
    return [str(limit) for limit in limits]


def entry_facts(entry: Entry) -> dict[str, Any]:
    """The version of an entry: its number, time, author, and the instant from which it is in force (None: at once)."""
    return {
        "version": entry.version,
        "at": instant_text(entry.at_us, "milliseconds"),
        "who": entry.who,
        "effective_at": instant_text(entry.effective_us, "milliseconds") if entry.effective_us else None,
    }
