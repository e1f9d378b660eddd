"""Policies that share a log must keep it in the same way, or they would not count each other's hits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.model.errors import PolicyError

if TYPE_CHECKING:
    from capline.model.policy import Policy


def differing_option(policy: Policy, other: Policy) -> str | None:
    """The first option that policies of one log must share, but these do not; None if they agree."""
    for option in ("layout", "population", "algorithm", "reservations"):
        if getattr(policy, option) != getattr(other, option):
            return option
    return None


def check_shared_log(policy: Policy, other: Policy) -> None:
    """Raise `PolicyError` if two policies of one log keep it in different ways."""
    option = differing_option(policy, other)
    if option is not None:
        raise PolicyError(
            f"policies {other.name!r} and {policy.name!r} share log {policy.log!r} but not its {option} "
            f"({getattr(other, option)} and {getattr(policy, option)}); give both the same"
        )
