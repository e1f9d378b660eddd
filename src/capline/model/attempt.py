"""An attempt as a caller makes it: a policy, a subject, a cost and an optional id, by name."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import msgspec

from capline.model.errors import InvalidTypeError, InvalidValueError, quoted
from capline.model.limit import LARGEST_QUOTA, Limit
from capline.model.subject import Subject

LONGEST_ID_BYTES = 512


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt: may this subject have `cost` units under this policy, now?

    The same `id` counts once: a retry gets the same hit back and consumes nothing more. `zone` is the subject's
    time zone, for calendar limits and quiet hours. `limits` come with the attempt instead of a policy made before, as
    in `Limiter.decide`.
    """

    policy: str
    subject: Subject
    cost: int = 1
    id: str | None = None
    segment: str | None = None
    channel: str | None = None
    zone: str | None = None
    limits: Sequence[Limit | str] | None = None

    @property
    def names(self) -> tuple[str, str | None, str | None, str | None]:
        """What picks the limits: policy, segment, channel and zone."""
        return self.policy, self.segment, self.channel, self.zone


def check_cost(cost: int, least: int = 1) -> int:
    """Return the cost as an `int` of 1 (or another `least`) to 2^53-1, or raise."""
    if isinstance(cost, (bool, float)):
        raise InvalidTypeError(f"a cost is a whole number of units, not {quoted(cost)}")
    try:
        units = index(cost)
    except TypeError:
        raise InvalidTypeError(f"a cost is a whole number of units, not {quoted(cost)}") from None
    if not least <= units <= LARGEST_QUOTA:
        raise InvalidValueError(f"a cost is {least} to {LARGEST_QUOTA} units, not {quoted(units)}")
    return units


def check_id(attempt_id: str) -> bytes:
    """Return the id's UTF-8 bytes, 1 to 512 of them, or raise."""
    if not isinstance(attempt_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"an attempt's id is text, not {quoted(attempt_id)}")
    try:
        data = attempt_id.encode()
    except UnicodeEncodeError:
        raise InvalidValueError(f"id {attempt_id[:40]!r} has a lone surrogate, which UTF-8 cannot carry") from None
    if not 1 <= len(data) <= LONGEST_ID_BYTES:
        raise InvalidValueError(f"an attempt's id is 1 to {LONGEST_ID_BYTES} bytes of UTF-8, not {len(data)}")
    return data
