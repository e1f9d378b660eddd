"""Segment codes of an array of ids: 0 for none, i for the i-th set.

uint32 ids are looked up by windows of 2^22 to 2^26 consecutive ids, with a table of one cell an id. First the ids asked
are marked in it; reading the marks in order sorts them. The sorted ids are intersected with each set, the codes are
written into the table, and the table is read at the ids asked. Some 40 ns an id, in any order.

Before that the ids are partitioned by window, in runs that fit the processor's cache: `order` sorts a run by window,
`cuts` is where each window's share begins, and both put the codes back in place. Memory: 14 bytes an id asked, and one
table, which fits the cache where many ids are asked.

Ids of 64 bits may lie anywhere, so those are sorted, and codes are found by position among them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from capline.segment.sets.idset import IdArray, IdSet, IdSet64

Codes = npt.NDArray[np.uint8 | np.uint16]

_NARROW_BITS, _WIDE_BITS, _MOST_WINDOWS_BITS = 22, 26, 8
"""A table is for 2^22 to 2^26 ids, 4 to 64 MiB (twice that for uint16); a window's number is one byte."""

_SMALL = 1 << 25
"""Ids within this range share one table: partitioning them costs more than the cache misses that it saves."""

_SHARE_BITS = 14
"""A window pays off from some 2^14 ids asked: it costs 0.1 ms before the first id."""

_RUN = 1 << 18
"""Ids partitioned at once: they and their places fit a core's own cache."""

_DENSE = 2
"""With more members in the window than this per id asked, intersecting the sorted ids asked is faster."""

_SPARSE = 64
"""With more cells in the window than this per id asked, sorting the ids beats marking them in a table."""


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
    """Some of the ids asked, by window: `ids[i]` came from place `order[i]`; window k is `ids[cuts[k]:cuts[k + 1]]`."""

    order: npt.NDArray[np.intp]
    ids: IdArray
    cuts: list[int]


def _dealt(some: IdArray, bits: int, first: int, last: int) -> _Run:
    # NumPy's stable sort of bytes is a radix sort: one pass.
    order = np.argsort(((some >> np.uint32(bits)) - np.uint32(first)).astype(np.uint8), kind="stable")
    ids = some[order]
    edges = np.arange(first + 1, last + 1, dtype=np.uint32) << np.uint32(bits)
    return _Run(order, ids, [0, *np.searchsorted(ids, edges).tolist(), ids.size])


def _look_up(sets: Sequence[IdSet], wanted: IdArray, dtype: type[np.uint8 | np.uint16]) -> Codes:
    """Codes of ids that lie in one window: write the sets into a table, then read it at the ids."""
    low, high = int(wanted.min()), int(wanted.max())
    # As NumPy's own index type, once: it would convert them at every use.
    base = (wanted - np.uint32(low)).astype(np.intp)
    # One code more than there are sets: the mark of an id that was asked and is in no set.
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
    queried = IdSet64.from_array(unique)
    codes = np.zeros(unique.size, dtype=dtype)
    for code, ids in enumerate(sets, start=1):
        codes[np.searchsorted(unique, (ids & queried).to_array())] = code
    return codes[back]
