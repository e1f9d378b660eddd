"""The error tree: one root, and a name for each kind of trouble.

A refusal is a value (`Decision.allowed` is false), never an exception. Only `acquire` and the decorators raise
`LimitExceeded`, which carries the refusal and so stands beside `Decision`. Every message is one line that says what is
wrong, where, and how to fix it.
"""

from collections.abc import Iterable
from operator import index
from typing import Any

_LONGEST_QUOTED = 120
_LONGEST_NUMBER_BITS = 300
_MOST_LISTED = 20


def listed(names: Iterable[str]) -> str:
    """The names for a message, in this order: all, or where they are many the first and how many more."""
    named = list(names)
    more = len(named) - _MOST_LISTED
    shown = ", ".join(named[:_MOST_LISTED]) or "none"
    return f"{shown} and {more:,} more" if more > 0 else shown


def quoted(value: object) -> str:
    """What a caller gave, for a message: its `repr`, cut where it is long. Never raises, whatever it is given."""
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER_BITS:
        return f"a number of {value.bit_length()} bits"  # Python itself refuses to write one of 5,000 digits
    if isinstance(value, (str, bytes)) and len(value) > _LONGEST_QUOTED:
        return f"{value[:_LONGEST_QUOTED]!r}…"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value's own repr may do anything
        return f"a {type(value).__name__}"
    return text if len(text) <= 2 * _LONGEST_QUOTED else f"{text[:_LONGEST_QUOTED]}…"


class CaplineError(Exception):
    """The root of everything that capline raises."""


def whole_number(value: Any, what: str) -> int:
    """The number as an `int`; raises where it is none, like `2.0` or `True`: `what` says what it is."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise InvalidTypeError(f"{what}, not {quoted(value)}")


def faults_of(error: CaplineError) -> list[str]:
    """What is wrong, in a line for each fault: an error of several has them as its notes."""
    return getattr(error, "__notes__", [str(error)])


class InvalidValueError(CaplineError, ValueError):
    """A value that can never be right: a negative cost, a window of 0, an empty subject."""


class InvalidTypeError(CaplineError, TypeError):
    """A value of the wrong type: a float for a cost, a list for a subject."""


class UnknownNameError(InvalidValueError):
    """A policy, segment, channel or time zone that is not known."""


class PolicyError(InvalidValueError):
    """A policy, or a file of policies, that contradicts itself; the message names file and line."""


class SegmentError(InvalidValueError):
    """A segment source or snapshot that cannot be used; nothing was replaced by it."""


class SegmentConflictError(SegmentError):
    """Another publisher was faster; its version is in force, and nothing was replaced."""


class CampaignError(InvalidValueError):
    """A campaign file, audience or sender that cannot be used; nothing was consumed for it."""


class CampaignNotFoundError(CampaignError):
    """There is no such campaign, or no such recipient in it."""


class CampaignConflictError(CampaignError):
    """The campaign has another run, or is over, or not over yet: what was asked cannot be done."""


class CampaignStoreError(CampaignError):
    """The campaign store cannot be used now; what it holds is safe."""


class ConfigConflictError(InvalidValueError):
    """Somebody else was faster: the configuration is of another version than the one named; nothing was changed."""


class IdConflictError(InvalidValueError):
    """The same attempt id came back with another cost: it cannot be a retry of the same attempt."""


class AccessError(InvalidValueError):
    """A service refuses the token, or the token has not the role."""


class StoreError(CaplineError):
    """A store could not answer. Whether the attempt was recorded is said in the message."""


class NoStoreError(StoreError):
    """There is no store at this place, and none was to be made."""


class StoreFullError(StoreError):
    """The disk, the server's memory, or the stated largest size is full; the attempt was not recorded."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached, or refuses the call for now; the attempt was not recorded."""


class StoreUnknownError(StoreError):
    """The call was sent and no answer came: the attempt may have been recorded, or not.

    An attempt with an id, or a batch with a receipt, may simply be sent again: it counts once.
    """


class StoreClosedError(StoreError):
    """The limiter was closed before this call; nothing was recorded. `on_store_error` does not apply."""


class StoreDamagedError(StoreError):
    """A stored value or file is not what was written; it is left as it is, and nothing is allowed on it."""


class StoreVersionError(StoreError):
    """A store that another version of capline wrote; it is left as it is."""
