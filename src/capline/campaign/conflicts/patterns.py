"""Subjects who get the same: the same campaigns, in the same segments and zones, after the same past.

What is decided for one of them is decided for all, so one is simulated and the others are counted. Ten campaigns for a
million each have some thousand patterns.

    ids, kinds of a campaign (ascending, a batch at once) ─┐
    …                                                      ├─> blocks of subjects, and kinds of their past
    ids, kinds of another                                 ─┘                       ─> distinct columns, counted

A block ends where the batch that ends first does. So memory holds a batch of each campaign, and the patterns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from capline.campaign.store.packed import Ids

_WORD_BITS = 63
_ROOM = 1 << 16


class _Head:
    """What of a stream was read and is not taken yet."""

    def __init__(self, row: int, stream: Iterator[tuple[Ids, NDArray[np.int64]]]) -> None:
        self.row, self._stream = row, stream
        self.ids: Ids = np.empty(0, np.uint32)
        self._kinds = np.empty(0, np.int64)

    def fill(self) -> bool:
        """Whether there is something."""
        while not len(self.ids):
            following = next(self._stream, None)
            if following is None:
                return False
            self.ids, self._kinds = following
        return True

    def take(self, last: Any) -> tuple[int, Ids, NDArray[np.int64]]:
        """What there is up to this subject."""
        end = int(np.count_nonzero(self.ids <= last))
        taken = self.row, self.ids[:end], self._kinds[:end]
        self.ids, self._kinds = self.ids[end:], self._kinds[end:]
        return taken


def blocks(
    rows: int, streams: Iterable[tuple[int, Iterator[tuple[Ids, NDArray[np.int64]]]]]
) -> Iterator[tuple[Ids, NDArray[np.int64]]]:
    """Some subjects at a time, and a table of so many rows: the kind of each in each row, 0 for none.

    A stream fills a row, with ids that ascend; several may fill the same one.
    """
    heads = [_Head(row, stream) for row, stream in streams]
    while heads := [head for head in heads if head.fill()]:
        last: Any = min(head.ids[-1] for head in heads)
        taken = [head.take(last) for head in heads]
        ids: Ids = np.unique(np.concatenate([ids for _, ids, _ in taken]))
        table = np.zeros((rows, len(ids)), np.int64)
        for row, some, kinds in taken:
            table[row, np.searchsorted(ids, some)] = kinds
        yield ids, table


class Patterns:
    """The distinct columns of tables, and how many there were of each; `most` has the largest number in each row."""

    def __init__(self, most: Sequence[int]) -> None:
        self._bits = [number.bit_length() for number in most]
        self.table = np.zeros((len(most), 0), np.int64)
        self.counts = np.zeros(0, np.int64)
        self._added: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._waiting = 0

    def add(self, table: NDArray[np.int64]) -> None:
        """Count these columns."""
        some = self._distinct(table, np.repeat(np.int64(1), table.shape[1]))
        self._added.append(some)
        self._waiting += len(some[1])
        if self._waiting > _ROOM + len(self.counts):
            self.settle()

    def settle(self) -> None:
        """Bring `table` and `counts` up to date."""
        all_of = [(self.table, self.counts), *self._added]
        tables, counts = [table for table, _ in all_of], [counts for _, counts in all_of]
        self.table, self.counts = self._distinct(np.concatenate(tables, axis=1), np.concatenate(counts))
        self._added.clear()
        self._waiting = 0

    def _distinct(
        self, table: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        words = self._words(table)
        order = np.lexsort(words)
        in_order = words[:, order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (in_order[:, 1:] != in_order[:, :-1]).any(axis=0)
        first = np.flatnonzero(is_first)
        return table[:, order[first]], np.add.reduceat(counts[order], first) if len(first) else counts

    def _words(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """Each column as few numbers."""
        words, used = [np.zeros(table.shape[1], np.int64)], 0
        for row, bits in zip(table, self._bits, strict=True):
            if used + bits > _WORD_BITS:
                words.append(np.zeros(table.shape[1], np.int64))
                used = 0
            words[-1] |= row << used
            used += bits
        return np.array(words)
