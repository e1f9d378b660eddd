"""A bounded number of label sets, since metrics libraries never forget one.

The rule: the first `most` keys have a figure each, as long as the process lives. Later keys share a few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from capline.model.errors import InvalidTypeError, InvalidValueError
from capline.support.fork import wait_at_fork

LABEL_SETS = 1000
MOST_LABEL_SETS = 1_000_000

K = TypeVar("K", bound="Hashable")

if TYPE_CHECKING:
    Figure = Callable[[float], None]
    """Adds to a counter, or to a histogram, that has its labels already."""


class Bounded(Generic[K]):
    """The figure of each key: `make(labels(key))`, or `make(rest(key))` once there are `most` figures.

    `rest` must have few different values, and `make` may be called again with one. Threads may share it.
    """

    def __init__(
        self,
        most: int,
        labels: Callable[[K], tuple[str, ...]],
        rest: Callable[[K], tuple[str, ...]],
        make: Callable[[tuple[str, ...]], Figure],
    ) -> None:
        self._most = most
        self._labels, self._rest, self._make = labels, rest, make
        self._figures: dict[K, Figure] = {}
        self._lock = Lock()
        wait_at_fork(self._lock)

    def __getitem__(self, key: K) -> Figure:
        return self._figures.get(key) or self._found(key)

    def _found(self, key: K) -> Figure:
        with self._lock:
            if key in self._figures:
                return self._figures[key]
            if len(self._figures) < self._most:
                figure = self._figures[key] = self._make(self._labels(key))
                return figure
        return self._make(self._rest(key))


def check_label_sets(most: int) -> int:
    """Return the number; raises where it is not from 1 to a million."""
    if type(most) is not int:
        raise InvalidTypeError(f"label_sets is how many label sets a metric may have, a whole number, not {most!r}")
    if not 1 <= most <= MOST_LABEL_SETS:
        raise InvalidValueError(f"label_sets is 1 to {MOST_LABEL_SETS}, not {most}")
    return most
