"""Reads events: rows (id, time, event, value) of CSV and Parquet files, as columns of numbers, batch by batch.

The rule of `source` holds: a bad row is an error that names the file, the row and the fix. Times are ISO 8601, without
an offset in UTC, or seconds since 1970; values whole or decimal numbers, an empty one 0. The order of rows never
matters.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from capline.model.clock import LATEST_US
from capline.model.errors import SegmentError
from capline.segment.build import table
from capline.segment.build.inputs import Input
from capline.segment.build.rules import VALUE_UNITS, Columns
from capline.segment.build.source import Paths, bad_row, expand, read_ids

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
            found, zoneless = self._times_of_text(table.plain_text(column), name)
        else:
            known = table.microseconds(column)
            if known is None:
                raise SegmentError(f"{self._path}: column {name!r} holds {column.type}; store times, or seconds")
            found, zoneless = known
        wrong = (found < 0) | (found > LATEST_US)
        if wrong.any():
            why = f"{name} is not between 1970 and 2255; numbers are seconds since 1970, not milliseconds"
            raise self._bad(int(np.argmax(wrong)), why)
        return found, zoneless

    def _times_of_text(self, column: Any, name: str) -> tuple[npt.NDArray[np.int64], bool]:
        form = table.time_forms(column)
        found = np.zeros(len(column), np.int64)
        for kind in np.unique(form).tolist():
            rows = np.flatnonzero(form == kind)
            texts = column if len(rows) == len(column) else column.take(rows)
            instants = table.instants(texts, kind)
            if instants is None:
                row = next(
                    row for row, text in zip(rows.tolist(), texts.to_pylist(), strict=True) if not _is_time(text)
                )
                shown = repr(column[row].as_py()[:40])
                why = f"{name} {shown} is neither ISO 8601, like 2025-03-01T16:00:00Z, nor seconds since 1970"
                raise self._bad(row, why)
            found[rows] = instants
        return found, bool((form == table.ZONELESS).any())

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


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
