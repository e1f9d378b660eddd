"""The inputs of a run: what must be the same when it is resumed.

They may still change before anything was decided; then they are frozen, with the identity of the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a run: its digest, and a short text for people."""

    name: str
    digest: str
    shown: str = ""


def changed_inputs(begun: Iterable[Input], inputs: Iterable[Input]) -> list[str]:
    """The inputs that differ from those that the run was begun with, in words."""
    before = {each.name: each for each in begun}
    inputs = tuple(inputs)
    changed = sorted(before.keys() - {each.name for each in inputs})
    for now in inputs:
        was = before.get(now.name)
        if was is None or was.digest != now.digest:
            shown = was is not None and was.shown and now.shown and was.shown != now.shown
            changed.append(f"{now.name} (was {was.shown}, is {now.shown})" if was and shown else now.name)
    return changed
