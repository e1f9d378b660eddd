"""IdSet: an immutable set of uint32 ids over a roaring bitmap; beside it IdSet64, of uint64 ids.

The rule: an id is 0 to 2^32-1 (IdSet64: 2^64-1) and is never wrapped, truncated or guessed. Roaring itself takes 3.7
for 3 and a 64-bit array for its low halves, so everything that enters is checked here, before it can become some other
user's id. The two kinds do not mix. pyroaring is imported here and in `frozen` only.

A bitmap file is the portable roaring format (https://github.com/RoaringBitmap/RoaringFormatSpec), readable by every
roaring library, and nothing else: it has no checksum, so a snapshot keeps one for it in its manifest.

Cost: a set of n ids takes between a few bytes (runs) and about 2n bytes (scattered); algebra is a pass over both sets'
containers of 65,536 ids. Building sorts first, where it must: roaring takes unsorted ids several times slower. IdSet64
costs about the same for ids that lie close together, and up to some 30 bytes and ten times as long for ids scattered
over all 64 bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Self, SupportsIndex

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap, BitMap64

from capline.model.errors import InvalidTypeError, SegmentError
from capline.segment import files
from capline.segment.sets import frozen

IdArray = npt.NDArray[Any]
"""uint32, or uint64 where the set is an IdSet64."""

LARGEST_UINT32 = (1 << 32) - 1

LARGEST_SET_BYTES = 540_000_000
"""No set of uint32 ids serialises to more: 65,536 containers of 8 KiB and their headers, 537,395,208 bytes."""

LARGEST_SET64_BYTES = 8 << 30
"""A bound for sets of uint64 ids, whose format has none: what a billion scattered ids take."""


def set_type(kind: str) -> type[IdSet]:
    """The sets that hold ids of a kind: `uint32`, `uint64`, or `text` (whose sets hold the texts' numbers)."""
    return IdSet64 if kind == "uint64" else IdSet


class IdSet:
    """An immutable set of ids from 0 to 2^32-1, in ascending order; safe to share between threads.

    >>> list(IdSet([5, 1, 9]) - IdSet([5]))
    [1, 9]

    `|`, `&` and `-` give new sets. An id that is out of range raises `SegmentError`, one of another type
    `InvalidTypeError`, and so does a set of the other kind.
    """

    __slots__ = ("_bits",)

    kind: ClassVar[str] = "uint32"
    largest: ClassVar[int] = LARGEST_UINT32
    dtype: ClassVar[type[np.uint32 | np.uint64]] = np.uint32
    largest_bytes: ClassVar[int] = LARGEST_SET_BYTES
    _bitmap: ClassVar[type[BitMap]] = BitMap
    _typecode: ClassVar[str] = "I"

    _bits: BitMap

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._bits = self._bitmap(array(self._typecode, map(self.check, ids)))

    @classmethod
    def _of(cls, bits: BitMap) -> Self:
        self = cls.__new__(cls)
        self._bits = bits
        return self

    @classmethod
    def check(cls, id: SupportsIndex) -> int:
        """Return the id as an `int` that such a set can hold.

        A float, a bool or text raises `InvalidTypeError`, a number out of range `SegmentError`.
        """
        if isinstance(id, (bool, np.bool_)):
            raise InvalidTypeError(f"an id is a whole number, not {id!r}")
        try:
            number = index(id)
        except TypeError:
            raise InvalidTypeError(f"an id is a whole number, not {id!r}") from None
        if not 0 <= number <= cls.largest:
            raise SegmentError(f"id {number} is not 0 to {cls.largest}")
        return number

    @classmethod
    def array(cls, ids: npt.NDArray[np.integer[Any]]) -> IdArray:
        """Return a one-dimensional integer array as the set's own type, without a copy where it is that already.

        Raises like `check`.
        """
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            shape = f"{ids.dtype} of {ids.ndim} dimensions" if isinstance(ids, np.ndarray) else type(ids).__name__  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            raise InvalidTypeError(f"ids come as a one-dimensional array of integers, not {shape}")
        if ids.size and (ids.dtype.kind == "i" or ids.dtype.itemsize > np.dtype(cls.dtype).itemsize):
            cls.check(int(ids.min()))
            cls.check(int(ids.max()))
        return ids.astype(cls.dtype, copy=False)

    @classmethod
    def from_array(cls, ids: npt.NDArray[np.integer[Any]]) -> Self:
        """Make the set of a one-dimensional integer array; repeated ids count once.

        Cost: about 10 ns an id that comes in order, 50 ns in any other.
        """
        checked = cls.array(ids)
        if checked.size > 1 and not bool((checked[:-1] <= checked[1:]).all()):
            checked = np.sort(checked)
        # Not BitMap(numpy array): that goes element by element through Python, ten times slower than array.array.
        plain: array[int] = array(cls._typecode, b"")
        plain.frombytes(np.ascontiguousarray(checked).data.cast("B") if checked.size else b"")
        return cls._of(cls._bitmap(plain))

    @classmethod
    def from_range(cls, first: int, last: int) -> Self:
        """Every id from `first` to `last`, both included; a few bytes for each 65,536."""
        bits = cls._bitmap(range(cls.check(first), cls.check(last)))
        # By itself: roaring takes no end above 2^64-1, not even as one that is excluded.
        if first <= last:
            bits.add(last)
        return cls._of(bits)

    @classmethod
    def union(cls, sets: Sequence[IdSet]) -> Self:
        """Unite the sets, in one pass; empty for none."""
        for each in sets:
            cls._same(each)
        return cls._of(cls._bitmap.union(*(each._bits for each in sets)) if sets else cls._bitmap())  # noqa: SLF001 - its own kind

    @classmethod
    def _same(cls, other: IdSet) -> BitMap:
        """The bitmap of another set of the same kind."""
        if other._bitmap is not cls._bitmap:
            raise InvalidTypeError(f"a set of {cls.kind} ids and one of {other.kind} ids do not mix")
        return other._bits

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, where: str = "bitmap") -> Self:
        """Read the portable roaring format; `SegmentError`, naming `where`, for what is not exactly one bitmap."""
        if len(data) > cls.largest_bytes:
            raise SegmentError(f"{where}: {len(data)} bytes are more than any set of {cls.kind} ids takes")
        try:
            bits = cls._bitmap.deserialize(data)  # pyright: ignore[reportArgumentType] - any buffer; its stub is behind
            whole = len(bits.serialize()) == len(data)
        except (ValueError, IndexError, OverflowError, MemoryError):
            whole, bits = False, cls._bitmap()
        if not whole:
            raise SegmentError(
                f"{where}: not one whole bitmap in roaring's portable format: damaged, cut short or something else"
            )
        return cls._of(bits)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a bitmap file; see `from_bytes` for what is refused, and the module for the format."""
        return cls.from_bytes(files.read(path, cls.largest_bytes), str(path))

    @classmethod
    def from_frozen(cls, memory: npt.NDArray[np.uint8]) -> Self | None:
        """Use frozen bytes where they lie (see `frozen`); None for what is not one frozen bitmap."""
        bits = frozen.adopt(memory)
        return None if bits is None else cls._of(bits)

    def to_frozen(self) -> memoryview:
        """Serialise for `from_frozen` on this machine; only where `frozen.library()` is there."""
        compact = self._bits.copy()
        compact.run_optimize()
        return frozen.serialize(compact)

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
        return np.frombuffer(plain, dtype=self.dtype) if len(plain) else np.empty(0, dtype=self.dtype)

    def page(self, after: int | None = None, limit: int = 1000) -> list[int]:
        """At most `limit` ids above `after` (None: from the first), ascending: the last one is the next cursor.

        An empty page is the end. Cost: one search, then 30 ns an id.
        """
        if limit < 1:
            raise SegmentError(f"a page holds 1 id or more, not {limit}")
        first = 0 if after is None else self.check(after) + 1
        # The iterator of roaring takes no start above the largest id.
        return [] if first > self.largest else list(islice(self._bits.iter_equal_or_larger(first), limit))

    def overlap(self, other: IdSet) -> int:
        """How many ids are in both; nothing is built for it."""
        return self._bits.intersection_cardinality(self._same(other))

    def probe(self) -> Container[int]:
        """Return what answers `number in probe` fastest, 40 ns, for callers that have checked that they hold an `int`.

        It raises OverflowError for a number out of range, and truncates what is not an `int`.
        """
        return self._bits

    def __contains__(self, id: SupportsIndex) -> bool:
        return self.check(id) in self._bits

    def __len__(self) -> int:
        return len(self._bits)

    def __bool__(self) -> bool:
        return bool(self._bits)

    def __iter__(self) -> Iterator[int]:
        return iter(self._bits)

    def __and__(self, other: IdSet) -> Self:
        return self._of(self._bits & self._same(other))

    def __or__(self, other: IdSet) -> Self:
        return self._of(self._bits | self._same(other))

    def __sub__(self, other: IdSet) -> Self:
        return self._of(self._bits - self._same(other))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdSet):
            return NotImplemented
        return other._bitmap is self._bitmap and self._bits == other._bits

    def __hash__(self) -> int:
        return hash((len(self._bits), *self.page(limit=8)))

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.page(limit=4)))
        return f"<{type(self).__name__} of {len(self)}: {shown}{', …' if len(self) > 4 else ''}>"  # noqa: PLR2004 - the four shown above


class IdSet64(IdSet):
    """An immutable set of ids from 0 to 2^64-1; the same verbs as `IdSet`, its bitmap in the 64-bit portable format."""

    __slots__ = ()

    kind = "uint64"
    largest = (1 << 64) - 1
    dtype = np.uint64
    largest_bytes = LARGEST_SET64_BYTES
    _bitmap = BitMap64  # pyright: ignore[reportAssignmentType] - the same verbs, though no class in common
    _typecode = "Q"
