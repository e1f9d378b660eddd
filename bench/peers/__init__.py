"""The limiters that capline is compared with, a module each: how a user of it asks for the same work.

`attempts(algorithm, quota, address)` gives what it has of an algorithm with a quota a day: for each row an attempt of a
cost, in memory, or on the server at this address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import by_limits, by_pyrate, by_throttled

__all__ = ["Ask", "attempts"]

Ask = Callable[[str], Any]
"""An attempt of a subject; truthy if it is allowed."""


def attempts(algorithm: str, quota: int, address: str = "") -> dict[str, Callable[[int], Ask]]:
    """What all of them have of an algorithm, by the peer's name; ", peek" after it is the question without a hit."""
    return {
        name: attempt
        for peer in (by_limits, by_throttled, by_pyrate)
        for name, attempt in peer.attempts(algorithm, quota, address).items()
    }
