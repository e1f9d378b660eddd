"""An attempt as a caller makes it: a policy, a subject, a cost and an optional id, by name."""

from collections.abc import Sequence

import msgspec

from capline.model.errors import InvalidTypeError, InvalidValueError, quoted, whole_number
from capline.model.limit import LARGEST_QUOTA, Limit
from capline.model.subject import Subject

LONGEST_ID_BYTES = 512


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt: may this subject have `cost` units under this policy, now?

    The same `id` counts once: a retry gets the same hit back and consumes nothing more. `zone` is the subject's
    time zone, for calendar limits and quiet hours. `limits` come with the attempt instead of a policy made before, as
    in `Limiter.decide`.

    `keep_free` units must stay free after it: one number for all limits, or one for each in the order of
    `decision.limits`, 0 for quiet hours. It is judged as `cost + keep_free`, also in `retry_after`, and recorded as
    `cost`; `remaining` and `limits` ignore it. A known id gets its first answer, whatever it asks to keep. `decide` and
    `peek` read it, alone, together and in bulk: other verbs leave it.
    """

    policy: str
    subject: Subject
    cost: int = 1
    id: str | None = None
    segment: str | None = None
    channel: str | None = None
    zone: str | None = None
    limits: Sequence[Limit | str] | None = None
    keep_free: int | Sequence[int] = 0

    @property
    def names(self) -> tuple[str, str | None, str | None, str | None]:
        """What picks the limits: policy, segment, channel and zone."""
        return self.policy, self.segment, self.channel, self.zone


def check_cost(cost: object, least: int = 1, what: str = "a cost") -> int:
    """Return the cost as an `int` of 1 (or another `least`) to 2^53-1, or raise."""
    if type(cost) is int and least <= cost <= LARGEST_QUOTA:
        return cost
    units = whole_number(cost, f"{what} is a whole number of units")
    if not least <= units <= LARGEST_QUOTA:
        raise InvalidValueError(f"{what} is {least} to {LARGEST_QUOTA} units, not {quoted(units)}")
    return units


def check_kept(keep_free: object) -> int | tuple[int, ...]:
    """Return what must stay free as an `int`, or as a tuple of them where it is a list, or raise."""
    if isinstance(keep_free, Sequence) and not isinstance(keep_free, str):
        return tuple([units if type(units) is int and units >= 0 else _kept(units) for units in keep_free])  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - untyped callers
    return _kept(keep_free)


def _kept(units: object) -> int:
    return check_cost(units, 0, "keep_free")


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
