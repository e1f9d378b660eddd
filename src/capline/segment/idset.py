"""IdSet: an immutable set of uint32 ids over a roaring bitmap; the only module that imports pyroaring.

The rule: an id is 0 to 2^32-1 and is never wrapped, truncated or guessed. Roaring itself takes 3.7 for 3 and a 64-bit
array for its low halves, so everything that enters is checked here, before it can become some other user's id.

A bitmap file is the portable roaring format (https://github.com/RoaringBitmap/RoaringFormatSpec), readable by every
roaring library, and nothing else: it has no checksum, so a snapshot keeps one for it in its manifest.

Cost: a set of n ids takes between a few bytes (runs) and about 2n bytes (scattered); algebra is a pass over both sets'
containers of 65,536 ids. Building sorts first, where it must: roaring takes unsorted ids several times slower.
"""

from __future__ import annotations

from array import array
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from capline.model.errors import InvalidTypeError, SegmentError
from capline.segment import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["LARGEST_SET_BYTES", "LARGEST_UINT32", "IdArray", "IdSet", "check_uint32", "id_array"]

IdArray = npt.NDArray[np.uint32]

LARGEST_UINT32 = (1 << 32) - 1

LARGEST_SET_BYTES = 540_000_000
"""No set of uint32 ids serialises to more: 65,536 containers of 8 KiB and their headers, 537,395,208 bytes."""


def check_uint32(id: SupportsIndex) -> int:
    """Return the id as an `int` of 0 to 2^32-1.

    A float, a bool or text raises `InvalidTypeError`, a number out of range `SegmentError`.
    """
    if isinstance(id, (bool, np.bool_)):
        raise InvalidTypeError(f"an id is a whole number, not {id!r}")
    try:
        number = index(id)
    except TypeError:
        raise InvalidTypeError(f"an id is a whole number, not {id!r}") from None
    if not 0 <= number <= LARGEST_UINT32:
        raise SegmentError(f"id {number} is not 0 to {LARGEST_UINT32}")
    return number


def id_array(ids: npt.NDArray[np.integer[Any]]) -> IdArray:
    """Return a one-dimensional integer array as uint32, without a copy where it is that already.

    Raises like `check_uint32`.
    """
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        shape = f"{ids.dtype} of {ids.ndim} dimensions" if isinstance(ids, np.ndarray) else type(ids).__name__  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"ids come as a one-dimensional array of integers, not {shape}")
    if ids.size and (ids.dtype.kind == "i" or ids.dtype.itemsize > np.dtype(np.uint32).itemsize):
        check_uint32(int(ids.min()))
        check_uint32(int(ids.max()))
    return ids.astype(np.uint32, copy=False)


class IdSet:
    """An immutable set of ids from 0 to 2^32-1, in ascending order; safe to share between threads.

    >>> list(IdSet([5, 1, 9]) - IdSet([5]))
    [1, 9]

    `|`, `&` and `-` give new sets. An id that is out of range raises `SegmentError`, one of another type
    `InvalidTypeError`.
    """

    __slots__ = ("_bits",)

    _bits: BitMap

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._bits = BitMap(array("I", map(check_uint32, ids)))

    @classmethod
    def _of(cls, bits: BitMap) -> IdSet:
        self = cls.__new__(cls)
        self._bits = bits
        return self

    @classmethod
    def from_array(cls, ids: npt.NDArray[np.integer[Any]]) -> IdSet:
        """Make the set of a one-dimensional integer array; repeated ids count once.

        Cost: about 10 ns an id that comes in order, 50 ns in any other.
        """
        checked = id_array(ids)
        if checked.size > 1 and not bool((checked[:-1] <= checked[1:]).all()):
            checked = np.sort(checked)
        # Not BitMap(numpy array): that goes element by element through Python, ten times slower than array.array.
        plain = array("I")
        plain.frombytes(np.ascontiguousarray(checked).data.cast("B") if checked.size else b"")
        return cls._of(BitMap(plain))

    @classmethod
    def from_range(cls, first: int, last: int) -> IdSet:
        """Every id from `first` to `last`, both included; a few bytes for each 65,536."""
        return cls._of(BitMap(range(check_uint32(first), check_uint32(last) + 1)))

    @classmethod
    def union(cls, sets: Sequence[IdSet]) -> IdSet:
        """Unite the sets, in one pass; empty for none."""
        return cls._of(BitMap.union(*(each._bits for each in sets)) if sets else BitMap())  # noqa: SLF001 - its own kind

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "bitmap") -> IdSet:
        """Read the portable roaring format; `SegmentError`, naming `where`, for what is not exactly one bitmap."""
        if len(data) > LARGEST_SET_BYTES:
            raise SegmentError(f"{where}: {len(data)} bytes are more than any set of 32-bit ids takes")
        try:
            bits = BitMap.deserialize(data)
            whole = len(bits.serialize()) == len(data)
        except (ValueError, IndexError, OverflowError, MemoryError):
            whole, bits = False, BitMap()
        if not whole:
            raise SegmentError(
                f"{where}: not one whole bitmap in roaring's portable format: damaged, cut short or something else"
            )
        return cls._of(bits)

    @classmethod
    def from_file(cls, path: str | Path) -> IdSet:
        """Read a bitmap file; see `from_bytes` for what is refused, and the module for the format."""
        return cls.from_bytes(files.read(path, LARGEST_SET_BYTES), str(path))

    def to_bytes(self) -> bytes:
        """Serialise to the portable roaring format, as small as roaring makes it."""
        compact = self._bits.copy()
        compact.run_optimize()
        return compact.serialize()

    def to_file(self, path: str | Path) -> None:
        """Write a bitmap file; it is whole under its name, or not there: `SegmentError` where it cannot be written."""
        files.write(path, self.to_bytes())

    def to_array(self) -> IdArray:
        """Return the ids in ascending order, as a new array; about 2 ns an id."""
        plain = self._bits.to_array()
        return np.frombuffer(plain, dtype=np.uint32) if len(plain) else np.empty(0, dtype=np.uint32)

    def page(self, after: int | None = None, limit: int = 1000) -> list[int]:
        """At most `limit` ids above `after` (None: from the first), ascending: the last one is the next cursor.

        An empty page is the end. Cost: one search, then 30 ns an id.
        """
        if limit < 1:
            raise SegmentError(f"a page holds 1 id or more, not {limit}")
        first = 0 if after is None else check_uint32(after) + 1
        # The iterator of roaring takes no start above the largest id.
        return [] if first > LARGEST_UINT32 else list(islice(self._bits.iter_equal_or_larger(first), limit))

    def overlap(self, other: IdSet) -> int:
        """How many ids are in both; nothing is built for it."""
        return self._bits.intersection_cardinality(other._bits)

    def probe(self) -> Callable[[int], bool]:
        """Return the fastest membership test, 60 ns, for callers that have checked that they hold an `int`.

        It raises OverflowError below 0 or above 2^32-1, and truncates what is not an `int`.
        """
        return self._bits.__contains__

    def __contains__(self, id: SupportsIndex) -> bool:
        return check_uint32(id) in self._bits

    def __len__(self) -> int:
        return len(self._bits)

    def __bool__(self) -> bool:
        return bool(self._bits)

    def __iter__(self) -> Iterator[int]:
        return iter(self._bits)

    def __and__(self, other: IdSet) -> IdSet:
        return self._of(self._bits & other._bits)

    def __or__(self, other: IdSet) -> IdSet:
        return self._of(self._bits | other._bits)

    def __sub__(self, other: IdSet) -> IdSet:
        return self._of(self._bits - other._bits)

    def __eq__(self, other: object) -> bool:
        return self._bits == other._bits if isinstance(other, IdSet) else NotImplemented

    def __hash__(self) -> int:
        return hash((len(self._bits), *self.page(limit=8)))

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.page(limit=4)))
        return f"<IdSet of {len(self)}: {shown}{', …' if len(self) > 4 else ''}>"  # noqa: PLR2004 - the four shown above
