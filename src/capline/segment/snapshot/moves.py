"""Who moved between two snapshots: exact counts, by intersection of their exclusive segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from capline.model.errors import SegmentError
from capline.segment.dictionary.idfile import Group

if TYPE_CHECKING:
    from capline.segment.snapshot.snapshot import Snapshot


class Move(NamedTuple):
    """How many ids went from one segment to another; None stands for no segment."""

    before: str | None
    after: str | None
    ids: int


def moves(before: Snapshot, after: Snapshot) -> list[Move]:
    """Every move of at least one id, in the order of the segments; `SegmentError` where ids cannot be compared."""
    if before.kind != after.kind:
        raise SegmentError(f"ids are {after.kind}, and those of version {before.version!r} {before.kind}")
    _check_numbers(before, after)
    found: list[Move] = []
    for name in before.names:
        ids = before.sets[name]
        stays = {other: ids.overlap(after.sets[other]) for other in after.names}
        found += [Move(name, other, count) for other, count in stays.items() if other != name]
        found.append(Move(name, None, len(ids) - sum(stays.values())))
    for name in after.names:
        was = sum(after.sets[name].overlap(before.sets[other]) for other in before.names)
        found.append(Move(None, name, len(after.sets[name]) - was))
    return [move for move in found if move.ids]


def _check_numbers(before: Snapshot, after: Snapshot) -> None:
    """Text ids are compared by their numbers, which a dictionary of another history gives otherwise."""
    if before.ids is None or after.ids is None:
        return
    for length, cells, numbers in before.ids.groups():
        if not np.array_equal(after.ids.find(Group(length, np.arange(len(cells)), cells)), numbers):
            raise SegmentError(f"version {before.version!r} has text ids of another dictionary; build with its --ids")
