"""Charges: units that were used already, recorded whatever the limits say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capline.model.clock import LATEST_US
from capline.model.errors import InvalidValueError
from capline.window.answer import build_answer, known_answer
from capline.window.log import NEVER
from capline.window.reading import stamp_from, time_of
from capline.window.recording import has_room, record_hit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.model.decision import Decision
    from capline.window.bound_log import BoundLog

__all__ = ["NoRoomError", "charge", "check_room", "too_many"]


def charge(logs: Sequence[BoundLog], now_us: int, fingerprint: int = 0) -> Decision:
    """Record the cost, whatever the limits say; the answer is as of after it.

    It is stamped now, before slots that are taken. Raises `InvalidValueError`, and records nothing, for more units than
    a log can count; `IdConflictError` if the id was recorded with another cost.
    """
    time_us = time_of(logs, now_us)
    known = known_answer(logs, fingerprint, time_us, now_us, slot=False)
    if known is not None:
        return known
    stamp_us = stamp_from(logs, time_us, NEVER)
    if stamp_us >= LATEST_US:
        raise too_many(logs[0].cost)
    check_room(logs, time_us, stamp_us)
    for number, bound in enumerate(logs):
        record_hit(bound, time_us, stamp_us, 0 if number else fingerprint)
    after = build_answer([(logs, stamp_us)], now_us)
    return msgspec.structs.replace(after, allowed=True, retry_after_us=0, hit=stamp_us)


def check_room(logs: Sequence[BoundLog], time_us: int, stamp_us: int) -> None:
    """Raise `InvalidValueError` if one of these logs cannot count its cost more."""
    if not all(has_room(bound, time_us, stamp_us, bound.cost) for bound in logs):
        raise too_many(logs[0].cost)


class NoRoomError(InvalidValueError):
    """A cost that a log cannot count; in a batch the error of its row alone."""


def too_many(cost: int) -> NoRoomError:
    """The error of a cost that a log cannot count."""
    return NoRoomError(
        f"{cost} units are more than this log can count beside what it holds; ask for less, or in larger units"
    )
