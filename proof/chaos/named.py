"""The limiters of the experiment, by the names that its table has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proof.chaos.callers import Capline, Replicated

if TYPE_CHECKING:
    from proof.chaos.callers import Caller

__all__ = ["caller"]

_CAPLINE: dict[str, type[Caller]] = {"capline": Capline, "capline, wait_replicas=1": Replicated}


def caller(name: str) -> type[Caller]:
    """Of this name; the controls are only imported where they are asked."""
    if name in _CAPLINE:
        return _CAPLINE[name]
    from proof.chaos.controls import CONTROLS  # noqa: PLC0415 - two more clients to load

    return CONTROLS[name]
