"""Where ids come from: rows (id, segment) and audiences, out of CSV, Parquet and bitmap files.

The rule: an id is a whole number from 0 to 2^32-1, and every row has one, or nothing is taken from the source at all.
There is no row that is skipped, rounded, trimmed or wrapped: one bad row is an error that names the file, the row and
the mend. Rows are counted from 1; the header and blank lines are not rows.

    .csv .csv.gz       a header, then rows; ids are decimal digits only (so not 0x10, 1e3, +7 or 1.0)
    .parquet .pq       ids in any integer type, the segment in text or dictionary-encoded text
    .roaring .bitmap   a bitmap file, for audiences

What cannot be seen: a CSV without compression that was cut short exactly at the end of a row, or within its last field.
Gzip and Parquet carry their own lengths.

Files are read in batches, so memory does not grow with the source; the checks work on columns, about 0.1 s a million
rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from capline.model.errors import PolicyError, SegmentError
from capline.model.policy import check_name
from capline.segment import table
from capline.segment.idset import LARGEST_UINT32, IdArray, IdSet

__all__ = ["BITMAP_SUFFIXES", "Paths", "Rows", "count_rows", "expand", "read_audience", "read_rows"]

Paths = str | Path | Iterable[str | Path]
"""One path or several; text may be a glob, `**` included."""

BITMAP_SUFFIXES = (".roaring", ".bitmap")

_GATHERED = 4_000_000
_NEGATIVE = re.compile(r"-[0-9]+")
_FRACTION = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST_UINT64 = 19
"""Digits that any number may have and still fit uint64."""


class Rows(NamedTuple):
    """A batch of rows: row i puts `ids[i]` into the segment `names[codes[i]]`."""

    ids: IdArray
    codes: npt.NDArray[np.integer[Any]]
    names: tuple[str, ...]


def expand(paths: Paths) -> tuple[Path, ...]:
    """List the files that the paths name, globs replaced by their matches in sorted order; each once.

    `SegmentError` for what names nothing, and for a directory.
    """
    found: list[Path] = []
    for path in [paths] if isinstance(paths, (str, Path)) else paths:
        matches = [Path(path)]
        if not matches[0].exists() and has_magic(str(path)):
            matches = [Path(match) for match in sorted(glob(str(path), recursive=True))]  # noqa: PTH207 - Path.glob takes no absolute pattern
            if not matches:
                raise SegmentError(f"{path}: no file matches")
        for match in matches:
            if match.is_dir():
                raise SegmentError(f"{match}: a directory; name its files, like '{match}/*.parquet'")
            if not match.exists():
                raise SegmentError(f"{match}: no such file")
        found += matches
    if not found:
        raise SegmentError("no source file named; give at least one")
    return tuple(dict.fromkeys(found))


def count_rows(paths: Paths) -> int | None:
    """How many rows there will be, where that costs nothing to know (Parquet says so); for progress bars."""
    counts = [table.parquet_rows(path) if table.is_parquet(path) else None for path in expand(paths)]
    return None if None in counts else sum(count for count in counts if count is not None)


def read_rows(paths: Paths, id_column: str = "id", segment_column: str = "segment") -> Iterator[Rows]:
    """Read (id, segment) rows, batch by batch; `SegmentError` at the first bad one, and where there is none."""
    total = 0
    for path in expand(paths):
        for columns in table.read_columns(path, (id_column, segment_column)):
            ids = _ids(columns, path, id_column)
            yield Rows(ids, *_segments(columns, path, segment_column))
            total += ids.size
    if not total:
        raise SegmentError(f"{_shown(paths)}: no rows; a set of segments needs at least one")


def read_audience(
    paths: Paths,
    id_column: str = "id",
    drop_duplicates: bool = False,
    progress: Callable[[int], object] | None = None,
) -> IdSet:
    """Read the ids of an audience, in any order.

    An id that comes twice, in one file or in two, is a `SegmentError` with their number and the first ten, unless
    `drop_duplicates`; so is an audience of nobody. `progress` is called with the rows so far.
    """
    parts: list[IdSet] = []
    repeated: list[IdSet] = []
    waiting: list[IdArray] = []
    total = 0
    for path in expand(paths):
        for ids in _audience_ids(path, id_column):
            if isinstance(ids, IdSet):
                parts.append(ids)
                total += len(ids)
            else:
                waiting.append(ids)
                total += ids.size
            if progress is not None:
                progress(total)
            if sum(each.size for each in waiting) >= _GATHERED:
                _settle(waiting, parts, repeated)
    _settle(waiting, parts, repeated)
    audience = IdSet.union(parts)
    if not audience:
        raise SegmentError(f"{_shown(paths)}: an empty audience; name at least one id")
    if len(audience) != total and not drop_duplicates:
        raise SegmentError(f"{_shown(paths)}: {_duplicates(parts, repeated, total - len(audience))}")
    return audience


def _audience_ids(path: Path, id_column: str) -> Iterator[IdArray | IdSet]:
    if path.suffix in BITMAP_SUFFIXES:
        yield IdSet.from_file(path)
        return
    for columns in table.read_columns(path, (id_column,)):
        yield _ids(columns, path, id_column)


def _settle(waiting: list[IdArray], parts: list[IdSet], repeated: list[IdSet]) -> None:
    if not waiting:
        return
    ids = np.sort(np.concatenate(waiting))
    waiting.clear()
    parts.append(IdSet.from_array(ids))
    if len(parts[-1]) != ids.size:
        repeated.append(IdSet.from_array(ids[1:][ids[1:] == ids[:-1]]))


def _duplicates(parts: list[IdSet], repeated: list[IdSet], surplus: int) -> str:
    seen, twice = IdSet(), IdSet.union(repeated)
    for part in parts:
        twice |= seen & part
        seen |= part
    first = twice.page(limit=10)
    listed = ", ".join(map(str, first)) + (", …" if len(twice) > len(first) else "")
    return (
        f"{len(twice)} id{'s come' if len(twice) > 1 else ' comes'} more than once ({surplus} row"
        f"{'s' if surplus > 1 else ''} too many): {listed}; remove them, or ask for duplicates to be dropped"
    )


def _ids(columns: table.Columns, path: Path, name: str) -> IdArray:
    """Check one column of ids and return it as uint32."""
    column = columns.arrays[0]
    null = table.first_null(column)
    if null is not None:
        raise _bad(columns, path, null, f"{name} is null; every row needs an id")
    if columns.is_text:
        bad = table.first_not_decimal(column, _LONGEST_UINT64)
        if bad is not None:
            raise _bad(columns, path, bad, f"{name} {_why_not(column[bad].as_py())}")
    elif not table.is_integer(column):
        raise SegmentError(
            f"{path}: column {name!r} holds {column.type}; ids are whole numbers, so store an integer type"
        )
    values: npt.NDArray[np.integer[Any]] = table.numbers(column)
    if values.size and (int(values.min()) < 0 or int(values.max()) > LARGEST_UINT32):
        bad = int(np.argmax((values < 0) | (values > LARGEST_UINT32)))
        raise _bad(columns, path, bad, f"{name} {_why_not(str(int(values[bad])))}")
    return values.astype(np.uint32, copy=False)


def _why_not(text: str) -> str:
    """Why this text is no id; the longest texts are shown by their beginning."""
    shown = text if len(text) <= 40 else f"{text[:40]}…"  # noqa: PLR2004 - enough to find it by
    if not text:
        return "is empty; every row needs an id"
    if _NEGATIVE.fullmatch(text):
        return f"{shown} is negative; ids are 0 to {LARGEST_UINT32}"
    if text.isascii() and text.isdecimal():
        return f"{shown} is above {LARGEST_UINT32}, the largest id"
    if _FRACTION.fullmatch(text):
        return f"{shown!r} is not written as a whole number; write the digits only, like 42"
    return f"{shown!r} is not a number; ids are whole numbers from 0 to {LARGEST_UINT32}"


def _segments(columns: table.Columns, path: Path, name: str) -> tuple[npt.NDArray[np.integer[Any]], tuple[str, ...]]:
    """Check one column of segment names and return it as codes and the names they stand for."""
    column = columns.arrays[1]
    if not table.is_text(column):
        raise SegmentError(f"{path}: column {name!r} holds {column.type}; segments are names, so store text")
    null = table.first_null(column)
    if null is not None:
        raise _bad(columns, path, null, f"{name} is null; leave out the rows of ids that are in no segment")
    codes, names = table.codes(column)
    for code, count in enumerate(np.bincount(codes, minlength=len(names)).tolist()):
        if not count:
            continue
        try:
            check_name(names[code], name)
        except PolicyError as error:
            row = int(np.argmax(codes == code))
            why = (
                f"{name} is empty; leave out the rows of ids that are in no segment" if not names[code] else str(error)
            )
            raise _bad(columns, path, row, why) from None
    return codes, names


def _bad(columns: table.Columns, path: Path, index: int, why: str) -> SegmentError:
    return SegmentError(f"{path}, row {columns.first_row + index}: {why}")


def _shown(paths: Paths) -> str:
    return str(paths) if isinstance(paths, (str, Path)) else ", ".join(map(str, paths))
