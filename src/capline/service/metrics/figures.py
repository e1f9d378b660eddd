"""Counters and histograms as plain numbers: adding to one costs a tenth of what prometheus-client's own do.

With one process they are in a list, collected at a scrape. With several they are in files, in the format of
prometheus-client's multiprocess mode, and a scrape adds them up: what a killed worker counted is kept.

    used    i, and 4 bytes               bytes of the file that are used, these 8 included
    each    length i, name, value d, d   the name is JSON; 1 to 8 spaces follow it, up to a multiple of 8

The rule: only the event loop's thread adds.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.mmap_dict import mmap_key

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from capline.observe.bounded import Figure

    _Numbers = list[float] | memoryview[float]
    _Places = dict[tuple[str, ...], tuple[_Numbers, list[int]]]

_USED = struct.Struct("i")
_HEAD_BYTES, _VALUE_BYTES, _DOUBLE_BYTES = 8, 16, 8
_FIRST_BYTES = 1 << 16
_TOTAL = "_total"


@dataclass
class _Kept:
    """One metric: the `bounds` of its buckets, none for a counter; `places` of its numbers, by label values."""

    name: str
    text: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...] = ()
    places: _Places = field(default_factory=dict[Any, Any])


class Figures:
    """A collector for a registry. With a folder, the numbers are in files there, and it collects nothing."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._kept: list[_Kept] = []
        self._numbers: list[float] = []
        self._files: dict[str, _File] = {}

    def counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Callable[[tuple[str, ...]], Figure]:
        """A counter, whose name ends in `_total`: takes values of the labels, and returns the function that adds."""
        kept = _Kept(name.removesuffix(_TOTAL), text, labels)
        self._kept.append(kept)

        def figure(values: tuple[str, ...]) -> Figure:
            numbers, (at,) = self._places(kept, values)

            def add(amount: float) -> None:
                numbers[at] += amount

            return add

        return figure

    def histogram(
        self, name: str, text: str, bounds: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Callable[[tuple[str, ...]], Figure]:
        """The same for a histogram; values above all bounds have a bucket of their own."""
        kept = _Kept(name, text, labels, bounds)
        self._kept.append(kept)

        def figure(values: tuple[str, ...]) -> Figure:
            numbers, (sum_at, *buckets) = self._places(kept, values)

            def observe(value: float) -> None:
                numbers[sum_at] += value
                numbers[buckets[bisect_left(bounds, value)]] += 1

            return observe

        return figure

    def _places(self, kept: _Kept, values: tuple[str, ...]) -> tuple[_Numbers, list[int]]:
        """Where the numbers of these label values are: a counter's one; a histogram's sum, then each bucket."""
        found = kept.places.get(values)
        if found is not None:
            return found
        if self._folder is None:
            start = len(self._numbers)
            self._numbers += [0.0] * (len(kept.bounds) + 2 if kept.bounds else 1)
            found = self._numbers, [*range(start, len(self._numbers))]
        else:
            kind = "histogram" if kept.bounds else "counter"
            if kind not in self._files:
                self._files[kind] = _File(self._folder, kind)
            found = self._files[kind].place(list(_names(kept, values)))
        kept.places[values] = found
        return found

    def collect(self) -> Iterable[Metric]:
        """All of them, as prometheus-client takes them."""
        return [] if self._folder is not None else [_family(kept) for kept in self._kept]


def _names(kept: _Kept, values: tuple[str, ...]) -> Iterable[str]:
    if not kept.bounds:
        yield mmap_key(kept.name, kept.name + _TOTAL, [*kept.labels], [*values], kept.text)
        return
    yield mmap_key(kept.name, f"{kept.name}_sum", [*kept.labels], [*values], kept.text)
    for end in _ends(kept):
        yield mmap_key(kept.name, f"{kept.name}_bucket", [*kept.labels, "le"], [*values, end], kept.text)


def _ends(kept: _Kept) -> list[str]:
    return [*(str(float(bound)) for bound in kept.bounds), "+Inf"]


def _family(kept: _Kept) -> Metric:
    if not kept.bounds:
        counter = CounterMetricFamily(kept.name, kept.text, labels=kept.labels)
        for values, (numbers, (at,)) in list(kept.places.items()):  # the loop may add one meanwhile
            counter.add_metric(values, numbers[at])
        return counter
    histogram = HistogramMetricFamily(kept.name, kept.text, labels=kept.labels)
    ends = _ends(kept)
    for values, (numbers, (sum_at, *buckets)) in list(kept.places.items()):  # the loop may add one meanwhile
        sums = accumulate(numbers[at] for at in buckets)
        histogram.add_metric(values, [*zip(ends, sums, strict=True)], numbers[sum_at])
    return histogram


class _File:
    """A file that grows as numbers are added. Older mappings stay valid: all of them show the same bytes."""

    def __init__(self, folder: str, kind: str) -> None:
        self._number, _ = tempfile.mkstemp(".db", f"{kind}_", folder)
        self._used = _HEAD_BYTES
        self._map(_FIRST_BYTES)
        _USED.pack_into(self._mapped, 0, self._used)

    def _map(self, size_bytes: int) -> None:
        os.truncate(self._number, size_bytes)
        self._mapped = mmap.mmap(self._number, size_bytes)
        self._numbers = memoryview(self._mapped).cast("d")

    def place(self, names: list[str]) -> tuple[_Numbers, list[int]]:
        """Add a number, 0, for each name; returns where they are."""
        places: list[int] = []
        entries: list[bytes] = []
        end = self._used
        for name in names:
            encoded = name.encode()
            spaces = b" " * (_DOUBLE_BYTES - (len(encoded) + _USED.size) % _DOUBLE_BYTES)
            entries.append(_USED.pack(len(encoded)) + encoded + spaces + bytes(_VALUE_BYTES))
            end += len(entries[-1])
            places.append((end - _VALUE_BYTES) // _DOUBLE_BYTES)
        if end > len(self._mapped):
            self._map(max(end, 2 * len(self._mapped)))
        self._mapped[self._used : end] = b"".join(entries)
        self._used = end
        _USED.pack_into(self._mapped, 0, end)  # last, so that a reader finds whole entries
        return self._numbers, places
