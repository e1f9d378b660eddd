"""Slots: the next free instant, taken now, so that each of many who wait has an instant of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from capline.window.allowed import allowed_now
from capline.window.answer import build_answer
from capline.window.log import NEVER
from capline.window.reading import fits_all, newest_of, opens_from, stamp_from, time_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.model.decision import Decision
    from capline.window.bound_log import BoundLog
    from capline.window.reading import Stamped

__all__ = ["Slot", "take_slot"]


class Slot(msgspec.Struct, frozen=True):
    """Ask for the next free instant, at most `max_wait_us` (None: no bound) and at least `not_before_us` from now."""

    max_wait_us: int | None = None
    not_before_us: int = 0


def take_slot(parts: Sequence[Sequence[BoundLog]], now_us: int, slot: Slot) -> Decision:
    """The next free instant after every slot that is taken in any of these logs, and from which every part fits.

    One instant for all parts, at the time of the log that is furthest ahead. Nothing is taken after the last slot, so
    every later instant is free as well. Records nothing.
    """
    at_once = allowed_now(parts[0], now_us) if len(parts) == 1 and not slot.not_before_us else None
    if at_once is not None and at_once.hit is not None:
        wait_us = max(0, at_once.hit - now_us)
        if slot.max_wait_us is None or wait_us <= slot.max_wait_us:
            return msgspec.structs.replace(at_once, wait_us=wait_us) if wait_us else at_once
    logs = [bound for part in parts for bound in part]
    time_us, newest_us = time_of(logs, now_us), newest_of(logs)

    def stamped(at_us: int) -> Stamped:
        return [(part, at_us) for part in parts]

    fits_us, _, binding = fits_all(logs, time_us)
    if fits_us is None:
        return build_answer(stamped(stamp_from(logs, time_us, newest_us)), now_us, binding=binding, retry_at_us=None)
    stamp_us = stamp_from(logs, max(time_us, fits_us, now_us + slot.not_before_us), newest_us)
    while True:
        opens_us, quiet = opens_from(stamped(stamp_us))
        if opens_us is None:
            return build_answer(stamped(stamp_us), now_us, binding=quiet, retry_at_us=None)
        if opens_us == NEVER:
            break
        stamp_us = stamp_from(logs, opens_us, newest_us)
    if slot.max_wait_us is not None and stamp_us - now_us > slot.max_wait_us:
        # What is left is as of now, and not as of the slot.
        return build_answer(stamped(time_us), now_us, binding=binding, retry_at_us=stamp_us)
    return build_answer(stamped(stamp_us), now_us, allowed=True, wait_us=max(0, stamp_us - now_us))
