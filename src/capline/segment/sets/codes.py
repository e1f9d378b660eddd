"""Segment codes of an array of ids: 0 for none, i for the i-th set.

For uint32 ids, a window of 2^22 to 2^26 ids at a time: the ids asked are marked in a table as wide as the window and
read off it in order, which sorts them; the sorted ids are intersected with each set; the codes are written into a
table, which is then read at the ids asked. So an id costs some 40 ns, in any order.

The ids are dealt to their windows in runs, each small enough for the processor's cache: `order` deals a run, `cuts`
says where each window's share of it begins, and the same two lead the codes back. Memory: 14 bytes an id asked, and one
table, which is small enough for the cache where many ids are asked.

Ids of 64 bits may lie anywhere, so those are sorted, and codes are found by position among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from capline.segment.sets.idset import IdSet, IdSet64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.segment.sets.idset import IdArray

__all__ = ["Codes", "codes_of", "codes_of_64"]

Codes = npt.NDArray[np.uint8 | np.uint16]

_NARROW_BITS, _WIDE_BITS, _MOST_WINDOWS_BITS = 22, 26, 8
"""A table is for 2^22 to 2^26 ids, 4 to 64 MiB (twice that for uint16); a window's number is one byte."""

_SMALL = 1 << 25
"""Ids that lie so close together have one table: dealing them costs more than the cache misses that it saves."""

_SHARE_BITS = 14
"""Some 2^14 ids asked pay for a window of their own: each costs a tenth of a millisecond before the first id."""

_RUN = 1 << 18
"""Ids that are dealt at once: with their places, what a core's own cache holds."""

_DENSE = 2
"""Ids in a window for each id asked, above which it pays to sort what was asked and look at those alone."""

_SPARSE = 64
"""Places in a window for each id asked, above which sorting the ids beats reading marks off a table."""


def codes_of(sets: Sequence[IdSet], wanted: IdArray, dtype: type[np.uint8 | np.uint16]) -> Codes:
    """The code of each uint32 id, in any order, repeated or not."""
    found = np.zeros(wanted.size, dtype=dtype)
    if not wanted.size:
        return found
    low, high = int(wanted.min()), int(wanted.max())
    if high - low < _SMALL:
        return _look_up(sets, wanted, dtype)
    span = high.bit_length()
    narrow = max(span - (wanted.size >> _SHARE_BITS).bit_length(), span - _MOST_WINDOWS_BITS, _NARROW_BITS)
    bits = min(narrow, _WIDE_BITS)
    first, last = low >> bits, high >> bits
    runs = [_dealt(wanted[start : start + _RUN], bits, first, last) for start in range(0, wanted.size, _RUN)]
    codes = [np.empty(run.ids.size, dtype=dtype) for run in runs]
    for number in range(last - first + 1):
        shares = [slice(run.cuts[number], run.cuts[number + 1]) for run in runs]
        some = np.concatenate([run.ids[share] for run, share in zip(runs, shares, strict=True)])
        if some.size:
            looked_up, at = _look_up(sets, some, dtype), 0
            for into, share in zip(codes, shares, strict=True):
                end = at + share.stop - share.start
                into[share] = looked_up[at:end]
                at = end
    for start, run, each in zip(range(0, wanted.size, _RUN), runs, codes, strict=True):
        found[start : start + _RUN][run.order] = each
    return found


class _Run(NamedTuple):
    """Some of the ids asked, dealt to windows: `ids` are those at `order`, window by window, each from its cut on."""

    order: npt.NDArray[np.intp]
    ids: IdArray
    cuts: list[int]


def _dealt(some: IdArray, bits: int, first: int, last: int) -> _Run:
    # Of bytes, NumPy's stable sort is by counting: one pass.
    order = np.argsort(((some >> np.uint32(bits)) - np.uint32(first)).astype(np.uint8), kind="stable")
    ids = some[order]
    edges = np.arange(first + 1, last + 1, dtype=np.uint32) << np.uint32(bits)
    return _Run(order, ids, [0, *np.searchsorted(ids, edges).tolist(), ids.size])


def _look_up(sets: Sequence[IdSet], wanted: IdArray, dtype: type[np.uint8 | np.uint16]) -> Codes:
    """Codes of ids that lie in one window: write the sets into a table, then read it at the ids."""
    low, high = int(wanted.min()), int(wanted.max())
    # As NumPy's own index type, once: it would convert them at every use.
    base = (wanted - np.uint32(low)).astype(np.intp)
    # One code more than there are sets: the mark of what was asked, and of no set.
    table = np.zeros(high - low + 1, dtype=dtype if len(sets) < np.iinfo(dtype).max else np.uint16)
    near, mark = IdSet.from_range(low, high), 0
    if sum(ids.overlap(near) for ids in sets) > _DENSE * wanted.size:
        if bool((wanted[:-1] <= wanted[1:]).all()):
            near = IdSet.from_array(wanted)
        elif high - low > _SPARSE * wanted.size:
            near = IdSet.from_array(np.sort(wanted))
        else:
            mark = 1
            table[base] = mark
            marked = np.flatnonzero(table.view(bool) if table.dtype == np.uint8 else table)
            near = IdSet.from_array(marked.astype(np.uint32) + np.uint32(low))
    for code, ids in enumerate(sets, start=1 + mark):
        table[((ids & near).to_array() - np.uint32(low)).astype(np.intp)] = code
    return (table.take(base, mode="clip") - table.dtype.type(mark)).astype(dtype, copy=False)


def codes_of_64(sets: Sequence[IdSet], wanted: IdArray, dtype: type[np.uint8 | np.uint16]) -> Codes:
    """The code of each uint64 id, in any order, repeated or not; about 0.3 µs an id."""
    unique, back = np.unique(wanted, return_inverse=True)
    asked = IdSet64.from_array(unique)
    codes = np.zeros(unique.size, dtype=dtype)
    for code, ids in enumerate(sets, start=1):
        codes[np.searchsorted(unique, (ids & asked).to_array())] = code
    return codes[back]
