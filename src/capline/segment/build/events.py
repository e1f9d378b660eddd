"""Reads events: rows (id, time, event, value) of CSV and Parquet files, as columns of numbers, batch by batch.

The rule of `source` holds: a bad row is an error that names the file, the row and the fix. Times are ISO 8601, without
an offset in UTC, or seconds since 1970; values whole or decimal numbers, an empty one 0. The order of rows never
matters.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from capline.model.errors import InvalidValueError, SegmentError
from capline.segment.build import table
from capline.segment.build.inputs import Input
from capline.segment.build.rules import VALUE_UNITS, Columns
from capline.segment.build.source import Paths, bad_row, expand, read_ids
from capline.tables.columns import first_bad, microseconds, texts_of
from capline.tables.times import read_time_us

_LARGEST_VALUE = 10**11


class Events(NamedTuple):
    """A batch of events: ids as numbers, or text as Arrow has it; what each was by its code, 0 for any other."""

    ids: Any
    at_us: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int32]
    values: npt.NDArray[np.int64]
    """In ten-thousandths."""


def read_events(
    paths: Paths, columns: Columns, codes: dict[str, int], kind: str, tell: Callable[[str], object], *, every: bool
) -> Iterator[Events]:
    """Read the events of these files; `tell` gets what a person should know of a file, in a line.

    With `every` other events get codes as well, which are added to `codes`.
    """
    others = tuple(name for name in columns[1:] if name is not None)
    total = 0
    for path in expand(paths):
        zoneless = False
        for ids, batch in read_ids(path, columns.id, others, text=kind == "text", kind=kind):
            rows = Batch(batch, path)
            at_us, without = rows.times(1, columns.time)
            zoneless |= without
            events, values = np.zeros(len(at_us), np.int32), np.zeros(len(at_us), np.int64)
            if columns.event is not None:
                events = rows.codes(2, columns.event, codes, every=every)
            if columns.value is not None:
                values = rows.values(len(others), columns.value)
            yield Events(ids, at_us, events, values)
            total += len(at_us)
        if zoneless:
            tell(f"{path}: times without a zone are read as UTC")
    if not total:
        raise SegmentError(f"{', '.join(map(str, expand(paths)))}: no events")


class Batch:
    """Columns of a batch, checked."""

    def __init__(self, columns: table.TableColumns, path: Input) -> None:
        self._columns, self._path = columns, path

    def _bad(self, row: int, why: str) -> SegmentError:
        return bad_row(self._columns, self._path, row, why)

    def _filled(self, place: int, name: str) -> Any:
        column = self._columns.arrays[place]
        null = table.first_null(column)
        if null is not None:
            raise self._bad(null, f"{name} is null; every event needs one")
        return column

    def codes(self, place: int, name: str, codes: dict[str, int], *, every: bool) -> npt.NDArray[np.int32]:
        """The codes of the events' names."""
        column = self._filled(place, name)
        if not table.is_text(column):
            raise SegmentError(f"{self._path}: column {name!r} holds {column.type}; events have names, so store text")
        found, names = table.codes(column)
        if every:
            for each in names:
                codes.setdefault(each, len(codes) + 1)
        return np.array([codes.get(each, 0) for each in names] or [0], np.int32)[found]

    def times(self, place: int, name: str) -> tuple[npt.NDArray[np.int64], bool]:
        """Microseconds since 1970, and whether any time was without a zone."""
        column = self._filled(place, name)
        if table.is_text(column):
            column = column.cast("string")
        elif not table.is_time(column):
            raise SegmentError(f"{self._path}: column {name!r} holds {column.type}; store times, or seconds")
        try:
            return microseconds(column, name)
        except InvalidValueError:
            bad = first_bad(texts_of(column), lambda text: read_time_us(text, name))
            if bad is None:
                raise
            raise self._bad(bad[0], str(bad[1])) from None

    def values(self, place: int, name: str) -> npt.NDArray[np.int64]:
        """Values in ten-thousandths."""
        column = self._columns.arrays[place]
        number, row = table.decimals(column)
        if number is None:
            if row is None:
                raise SegmentError(f"{self._path}: column {name!r} holds {column.type}; values are numbers")
            shown = repr(str(column[row].as_py())[:40])
            raise self._bad(row, f"{name} {shown} is not a number; write it like 12.50, or leave it empty")
        wrong = ~(np.abs(number) < _LARGEST_VALUE)  # NaN too
        if wrong.any():
            raise self._bad(int(np.argmax(wrong)), f"{name} is not a number within {_LARGEST_VALUE:,}")
        return np.rint(number * VALUE_UNITS).astype(np.int64)
