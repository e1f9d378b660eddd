"""One file of the id dictionary: texts and their numbers, with look-ups both ways in the mapped file.

    0    16   "capline-ids" 0 0 0 0 1        magic, and the version of this layout
    16    8   first                          the texts have the numbers first ... first + count - 1
    24    8   count
    32    8   groups                         texts of one length in bytes are one group
    40  16*g  (length_bytes, cells) ...      lengths ascending
        4*c   numbers                        the number of each index, counted from `first`
        4*c   places                         the index of each number: the inverse
              cells                          group after group; in a group the texts, ascending, without gaps

All numbers are little-endian. An index counts cells through all groups. The cells of a group have one width, so a group
is a NumPy array over the mapping with binary search: 4 µs for one text, less than 1 µs each for many.

The rule: a file never changes. After its hash was compared, `check` verifies what look-ups rely on: ascending cells,
and two directions that agree.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from capline.model.errors import SegmentError

LONGEST_TEXT_BYTES = 512
"""As of every subject."""

_MAGIC = b"capline-ids\0\0\0\0\1"
_HEAD = struct.Struct("<16sQQQ")
_GROUP = struct.Struct("<QQ")
_CHUNK = 1 << 20

Cells = npt.NDArray[np.bytes_]
Numbers = npt.NDArray[np.uint32]


class Group(NamedTuple):
    """Texts of one length: the position of each in the input, and the texts as fixed-width bytes."""

    length_bytes: int
    places: npt.NDArray[np.int64]
    cells: Cells


class _Stored(NamedTuple):
    length_bytes: int
    first_place: int
    cells: Cells


class IdFile:
    """A dictionary file over its bytes; `SegmentError`, naming `where`, if they are not one."""

    __slots__ = ("_groups", "_numbers", "_places", "_raw", "_where", "count", "first")

    def __init__(self, memory: npt.NDArray[np.uint8], where: str) -> None:
        self._where = where
        head = memory[: _HEAD.size].tobytes()
        if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
            raise SegmentError(f"{where}: not an id dictionary of this layout; it is damaged or something else")
        _, self.first, self.count, groups = _HEAD.unpack(head)
        table = memory[_HEAD.size : _HEAD.size + _GROUP.size * min(groups, LONGEST_TEXT_BYTES + 1)].tobytes()
        lengths = list(_GROUP.iter_unpack(table)) if len(table) == _GROUP.size * groups else []
        start = _HEAD.size + len(table)
        cells_start = start + 8 * self.count
        widths = [length for length, _ in lengths]
        if (
            not lengths
            or widths != sorted(set(widths))
            or not 1 <= widths[0] <= widths[-1] <= LONGEST_TEXT_BYTES
            or min(cells for _, cells in lengths) < 1
            or sum(cells for _, cells in lengths) != self.count
            or not 0 < self.count <= 1 << 32
            or self.first + self.count > 1 << 32
            or cells_start + sum(length * cells for length, cells in lengths) != memory.size
        ):
            raise SegmentError(f"{where}: its head does not fit its size; it is damaged")
        self._numbers: Numbers = memory[start : start + 4 * self.count].view("<u4")
        self._places: Numbers = memory[start + 4 * self.count : cells_start].view("<u4")
        self._raw = memory
        self._groups: dict[int, _Stored] = {}
        place, offset = 0, cells_start
        for length, cells in lengths:
            stored = memory[offset : offset + length * cells].view(f"S{length}")
            self._groups[length] = _Stored(length, place, stored)
            place, offset = place + cells, offset + length * cells

    def check(self) -> None:
        """Verify what look-ups rely on; one pass, 20 ns a text."""
        for group in self._groups.values():
            for start in range(0, len(group.cells), _CHUNK):
                # One beyond the chunk, so that the seam is compared too.
                some = group.cells[start : start + _CHUNK + 1]
                if not bool((some[:-1] < some[1:]).all()):
                    raise SegmentError(f"{self._where}: its texts are not in order; it is damaged")
        for start in range(0, self.count, _CHUNK):
            places = self._places[start : start + _CHUNK]
            right = np.arange(start, start + places.size, dtype=np.uint32)
            if int(places.max()) >= self.count or not np.array_equal(self._numbers[places], right):
                raise SegmentError(f"{self._where}: its two directions do not agree; it is damaged")

    @property
    def groups(self) -> Iterable[tuple[int, Cells, Numbers]]:
        """Length, texts in ascending order, and their numbers."""
        for group in self._groups.values():
            place = group.first_place
            yield group.length_bytes, group.cells, self._numbers[place : place + len(group.cells)]

    def find(self, length_bytes: int, cells: Cells) -> npt.NDArray[np.int64]:
        """The number of each text of this length, -1 if it is not here. Fastest for sorted texts."""
        group = self._groups.get(length_bytes)
        if group is None:
            return np.full(len(cells), -1, dtype=np.int64)
        at = np.searchsorted(group.cells, cells)
        at[at == len(group.cells)] = 0
        numbers = self._numbers[group.first_place + at].astype(np.int64) + self.first
        numbers[group.cells[at] != cells] = -1
        return numbers

    def text(self, number: int) -> str:
        """The text of a number that is in this file."""
        place = int(self._places[number - self.first])
        for group in self._groups.values():
            if place < group.first_place + len(group.cells):
                at = place - group.first_place
                # By bytes, not by the cell: NumPy drops zero bytes at the end of one.
                raw = group.cells[at : at + 1].view(np.uint8).tobytes()
                return raw.decode("utf-8", errors="replace")
        raise IndexError(number)


def group_texts(texts: Sequence[str]) -> list[Group]:
    """Sort texts into groups of one length, for `find` and for building; each is 1 to 512 bytes of UTF-8."""
    by_length: dict[int, tuple[list[int], list[bytes]]] = {}
    for place, text in enumerate(texts):
        raw = text.encode()
        places, held = by_length.setdefault(len(raw), ([], []))
        places.append(place)
        held.append(raw)
    return [
        Group(length, np.array(places, dtype=np.int64), np.frombuffer(b"".join(held), dtype=f"S{length}"))
        for length, (places, held) in sorted(by_length.items())
    ]


def encode(first: int, groups: Sequence[tuple[int, Cells, Numbers]]) -> memoryview:
    """The bytes of a file: groups of (length, ascending texts, their numbers from `first` on), lengths ascending."""
    count = sum(len(cells) for _, cells, _ in groups)
    head = _HEAD.pack(_MAGIC, first, count, len(groups))
    head += b"".join(_GROUP.pack(length, len(cells)) for length, cells, _ in groups)
    numbers = np.concatenate([each for _, _, each in groups]).astype("<u4", copy=False)
    data = np.empty(len(head) + 8 * count + sum(cells.nbytes for _, cells, _ in groups), dtype=np.uint8)
    data[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    at = len(head)
    data[at : at + 4 * count] = numbers.view(np.uint8)
    places = data[at + 4 * count : at + 8 * count].view("<u4")
    places[numbers] = np.arange(count, dtype=np.uint32)
    at += 8 * count
    for _, cells, _ in groups:
        data[at : at + cells.nbytes] = cells.view(np.uint8)
        at += cells.nbytes
    return data.data


def merge(before: IdFile, other: IdFile) -> memoryview:
    """The bytes of the merged file. The numbers of `other` follow those of `before`; no text is in both."""
    by_length: dict[int, list[tuple[Cells, npt.NDArray[Any]]]] = {}
    for file in (before, other):
        for length, cells, numbers in file.groups:
            by_length.setdefault(length, []).append((cells, numbers + np.uint32(file.first - before.first)))
    merged: list[tuple[int, Cells, Numbers]] = []
    for length, parts in sorted(by_length.items()):
        if len(parts) == 1:
            merged.append((length, *parts[0]))
            continue
        (left, left_numbers), (right, right_numbers) = parts
        at = np.searchsorted(left, right) + np.arange(len(right))
        is_left = np.ones(len(left) + len(right), dtype=bool)
        is_left[at] = False
        cells, numbers = np.empty(is_left.size, dtype=left.dtype), np.empty(is_left.size, dtype=np.uint32)
        cells[at], numbers[at] = right, right_numbers
        cells[is_left], numbers[is_left] = left, left_numbers
        merged.append((length, cells, numbers))
    return encode(before.first, merged)
