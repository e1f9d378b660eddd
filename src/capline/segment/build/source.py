"""Reads ids: rows (id, segment) and audiences, from CSV, Parquet and bitmap files.

The rule: every row has an id, a whole number from 0 to 2^32-1 (kind `uint64`: to 2^64-1; kind `text`: 1 to 512 bytes
of UTF-8), or the whole source is refused. No row is skipped, rounded, trimmed or wrapped: a bad row is an error that
names the file, the row and the fix. Rows are counted from 1, without the header and blank lines.

    .csv .csv.gz       a header, then rows; ids are decimal digits only (so not 0x10, 1e3, +7 or 1.0)
    .parquet .pq       ids in any integer type, the segment in text or dictionary-encoded text
    .roaring .bitmap   a bitmap file, for audiences

An uncompressed CSV that was cut short at the end of a row, or in its last field, cannot be detected. Gzip and Parquet
state their lengths.

Files are read in batches, so memory does not grow with the source. Cost: about 0.1 s a million rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from capline.model.errors import PolicyError, SegmentError
from capline.model.policy import check_name
from capline.segment.build import inputs, table
from capline.segment.build.inputs import Input, RemoteFile
from capline.segment.dictionary.idfile import LONGEST_TEXT_BYTES, Group
from capline.segment.sets.idset import IdArray, IdSet, set_type

if TYPE_CHECKING:
    from capline.segment.dictionary.dictionary import Dictionary

Paths = str | Path | Iterable[str | Path]
"""One path or several; text may be a glob, `**` included, or (for rows and audiences) a URL."""

BITMAP_SUFFIXES = (".roaring", ".bitmap")

NONE = "-"
"""Stands for "in no segment" among changes."""

_GATHERED = 4_000_000
_NEGATIVE = re.compile(r"-[0-9]+")
_FRACTION = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DIGITS = 19
"""Any number of 19 digits fits uint64."""


class Rows(NamedTuple):
    """A batch of rows: row i puts `ids[i]` into the segment `names[codes[i]]`."""

    ids: IdArray
    codes: npt.NDArray[np.integer[Any]]
    names: tuple[str, ...]


class TextRows(NamedTuple):
    """A batch of rows with text ids, which are given by groups of one length."""

    groups: list[Group]
    codes: npt.NDArray[np.integer[Any]]
    names: tuple[str, ...]


def expand(paths: Paths) -> tuple[Input, ...]:
    """The files that the paths name, with globs expanded in sorted order, each once; objects by their URL.

    Raises `SegmentError` for a path without a file, and for a directory.
    """
    found: list[Input] = []
    for path in [paths] if isinstance(paths, (str, Path)) else paths:
        if inputs.is_url(path):
            urls = inputs.list_inputs(str(path)) if has_magic(str(path)) else [str(path)]
            if not urls:
                raise SegmentError(f"{path}: no object matches")
            found += map(RemoteFile, urls)
            continue
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
    """How many rows there are, for progress bars; None unless all files are Parquet, which states it."""
    counts = [table.parquet_rows(path) if table.is_parquet(path) else None for path in expand(paths)]
    return None if None in counts else sum(count for count in counts if count is not None)


def read_rows(
    paths: Paths, id_column: str = "id", segment_column: str = "segment", kind: str = "uint32", *, or_none: bool = False
) -> Iterator[Rows]:
    """Read (id, segment) rows, batch by batch; `SegmentError` at the first bad row, or without any row.

    `kind` is `uint32` or `uint64`; text ids are read by `read_text_rows`. With `or_none` a segment may be `-`.
    """
    for columns, path in _filled(paths, id_column, segment_column):
        ids = _ids(columns, path, id_column, set_type(kind))
        yield Rows(ids, *_segments(columns, path, segment_column, or_none=or_none))


def read_text_rows(
    paths: Paths, id_column: str = "id", segment_column: str = "segment", *, or_none: bool = False
) -> Iterator[TextRows]:
    """`read_rows` for text ids: 1 to 512 bytes of UTF-8, taken as they are; case and blanks count."""
    for columns, path in _filled(paths, id_column, segment_column):
        yield TextRows(_texts(columns, path, id_column), *_segments(columns, path, segment_column, or_none=or_none))


def _filled(paths: Paths, *names: str) -> Iterator[tuple[table.TableColumns, Input]]:
    """The batches of all files; `SegmentError` at the end where there was no row."""
    total = 0
    for path in expand(paths):
        with table.read_columns(path, names) as batches:
            for columns in batches:
                yield columns, path
                total += len(columns.arrays[0])
    if not total:
        raise SegmentError(f"{_shown(paths)}: no rows; a set of segments needs at least one")


def read_texts(paths: Paths, id_column: str = "id") -> Iterator[list[Group]]:
    """The text ids of an audience, batch by batch, by groups of one length; see `Dictionary.find`."""
    for path in expand(paths):
        with table.read_columns(path, (id_column,)) as batches:
            for columns in batches:
                yield _texts(columns, path, id_column)


def read_ids(
    path: Input, id_column: str, others: tuple[str, ...], *, text: bool | None, kind: str = "uint64"
) -> Iterator[tuple[Any, table.TableColumns]]:
    """The ids of a file of rows with further columns, batch by batch: numbers of this kind, or text as Arrow has it.

    `text` says which; None: what a Parquet column's type says, and numbers in CSV. Text has no control characters.
    """
    with table.read_columns(path, (id_column, *others)) as batches:
        for columns in batches:
            if text or (text is None and not columns.is_text and table.is_text(columns.arrays[0])):
                column = _text_column(columns, path, id_column)
                bad = table.first_with_control(column)
                if bad is not None:
                    shown = repr(column[bad].as_py()[:40])
                    raise bad_row(columns, path, bad, f"{id_column} {shown} has a control character; leave it out")
                yield column, columns
            else:
                yield _ids(columns, path, id_column, set_type(kind)), columns


def find_audience(paths: Paths, id_column: str, texts: Dictionary) -> tuple[IdSet, int]:
    """The numbers of an audience of text ids, and how many distinct ids have no number."""
    numbered: list[IdSet] = []
    unknown: dict[int, list[npt.NDArray[np.bytes_]]] = {}
    for groups in read_texts(paths, id_column):
        for group in groups:
            numbers = texts.find(group)
            numbered.append(IdSet.from_array(numbers[numbers >= 0]))
            missing = unknown.setdefault(group.length_bytes, [])
            missing.append(group.cells[numbers < 0])
    others = sum(len(np.unique(np.concatenate(cells))) for cells in unknown.values())
    return IdSet.union(numbered), others


def read_audience(
    paths: Paths,
    id_column: str = "id",
    drop_duplicates: bool = False,
    progress: Callable[[int], object] | None = None,
    kind: str = "uint32",
) -> IdSet:
    """Read the ids of an audience, in any order.

    Duplicates, also across files, raise `SegmentError` with their number and the first ten, unless `drop_duplicates`;
    so does an empty audience. `progress` is called with the rows so far.
    """
    parts: list[IdSet] = []
    repeated: list[IdSet] = []
    waiting: list[IdArray] = []
    total = 0
    its = set_type(kind)
    for path in expand(paths):
        for ids in _audience_ids(path, id_column, its):
            if isinstance(ids, IdSet):
                parts.append(ids)
                total += len(ids)
            else:
                waiting.append(ids)
                total += ids.size
            if progress is not None:
                progress(total)
            if sum(each.size for each in waiting) >= _GATHERED:
                _to_bitmap(waiting, parts, repeated, its)
    _to_bitmap(waiting, parts, repeated, its)
    audience = its.union(parts)
    if not audience:
        raise SegmentError(f"{_shown(paths)}: an empty audience; name at least one id")
    if len(audience) != total and not drop_duplicates:
        raise SegmentError(f"{_shown(paths)}: {_duplicates(parts, repeated, total - len(audience), its)}")
    return audience


def _audience_ids(path: Input, id_column: str, kind: type[IdSet]) -> Iterator[IdArray | IdSet]:
    if path.suffix in BITMAP_SUFFIXES and isinstance(path, Path):
        yield kind.from_file(path)
        return
    with table.read_columns(path, (id_column,)) as batches:
        for columns in batches:
            yield _ids(columns, path, id_column, kind)


def _to_bitmap(waiting: list[IdArray], parts: list[IdSet], repeated: list[IdSet], kind: type[IdSet]) -> None:
    if not waiting:
        return
    ids = np.sort(np.concatenate(waiting))
    waiting.clear()
    parts.append(kind.from_array(ids))
    if len(parts[-1]) != ids.size:
        repeated.append(kind.from_array(ids[1:][ids[1:] == ids[:-1]]))


def _duplicates(parts: list[IdSet], repeated: list[IdSet], surplus: int, kind: type[IdSet]) -> str:
    seen, twice = kind(), kind.union(repeated)
    for part in parts:
        twice |= seen & part
        seen |= part
    first = twice.page(limit=10)
    listed = ", ".join(map(str, first)) + (", …" if len(twice) > len(first) else "")
    return (
        f"{len(twice)} id{'s come' if len(twice) > 1 else ' comes'} more than once ({surplus} row"
        f"{'s' if surplus > 1 else ''} too many): {listed}; remove them, or ask for duplicates to be dropped"
    )


def _ids(columns: table.TableColumns, path: Input, name: str, kind: type[IdSet]) -> IdArray:
    """Check one column of ids and return it as the kind's integers."""
    column = columns.arrays[0]
    _check_null(columns, path, name)
    if columns.is_text:
        digits = str(kind.largest)
        most = max(len(digits), _DIGITS)
        bad = table.first_not_decimal(column, most)
        if bad is None and most == len(digits):
            bad = table.first_above(column, digits)
        if bad is not None:
            raise bad_row(columns, path, bad, f"{name} {_why_not(column[bad].as_py(), kind.largest)}")
    elif not table.is_integer(column):
        raise SegmentError(
            f"{path}: column {name!r} holds {column.type}; ids are whole numbers, so store an integer type"
        )
    values: npt.NDArray[np.integer[Any]] = table.numbers(column)
    if values.size and (int(values.min()) < 0 or int(values.max()) > kind.largest):
        bad = int(np.argmax((values < 0) | (values > min(kind.largest, np.iinfo(values.dtype).max))))
        raise bad_row(columns, path, bad, f"{name} {_why_not(str(int(values[bad])), kind.largest)}")
    return values.astype(kind.dtype, copy=False)


def _texts(columns: table.TableColumns, path: Input, name: str) -> list[Group]:
    """Check one column of text ids and return it by groups of one length."""
    return [Group(*each) for each in table.by_length(_text_column(columns, path, name))]


def _text_column(columns: table.TableColumns, path: Input, name: str) -> Any:
    """Check one column of text ids and return it as plain text."""
    column = columns.arrays[0]
    if not table.is_text(column):
        raise SegmentError(f"{path}: column {name!r} holds {column.type}; text ids are stored as text")
    _check_null(columns, path, name)
    column = table.plain_text(column)
    bad = table.first_of_length(column, 1, LONGEST_TEXT_BYTES)
    if bad is not None:
        text = column[bad].as_py()
        why = "is empty; every row needs an id" if not text else f"is longer than {LONGEST_TEXT_BYTES} bytes"
        raise bad_row(columns, path, bad, f"{name} {why}")
    try:
        column.validate(full=True)
    except ValueError:
        raise SegmentError(f"{path}: column {name!r} holds bytes that are not UTF-8") from None
    return column


def _check_null(columns: table.TableColumns, path: Input, name: str) -> None:
    null = table.first_null(columns.arrays[0])
    if null is not None:
        raise bad_row(columns, path, null, f"{name} is null; every row needs an id")


def _why_not(text: str, largest: int) -> str:
    """Why this text is not an id; a long text is shown shortened."""
    shown = text if len(text) <= 40 else f"{text[:40]}…"  # noqa: PLR2004 - enough to find it by
    if not text:
        return "is empty; every row needs an id"
    if _NEGATIVE.fullmatch(text):
        return f"{shown} is negative; ids are 0 to {largest}"
    if text.isascii() and text.isdecimal():
        return f"{shown} is above {largest}, the largest id"
    if _FRACTION.fullmatch(text):
        return f"{shown!r} is not written as a whole number; write the digits only, like 42"
    return f"{shown!r} is not a number; ids are whole numbers from 0 to {largest}"


def _segments(
    columns: table.TableColumns, path: Input, name: str, *, or_none: bool
) -> tuple[npt.NDArray[np.integer[Any]], tuple[str, ...]]:
    """Check one column of segment names and return it as codes and the names they stand for."""
    column = columns.arrays[1]
    if not table.is_text(column):
        raise SegmentError(f"{path}: column {name!r} holds {column.type}; segments are names, so store text")
    null = table.first_null(column)
    if null is not None:
        raise bad_row(columns, path, null, f"{name} is null; leave out the rows of ids that are in no segment")
    codes, names = table.codes(column)
    for code, count in enumerate(np.bincount(codes, minlength=len(names)).tolist()):
        if not count or (or_none and names[code] == NONE):
            continue
        try:
            check_name(names[code], name)
        except PolicyError as error:
            row = int(np.argmax(codes == code))
            why = (
                f"{name} is empty; leave out the rows of ids that are in no segment" if not names[code] else str(error)
            )
            raise bad_row(columns, path, row, why) from None
    return codes, names


def bad_row(columns: table.TableColumns, path: Input, index: int, why: str) -> SegmentError:
    """The error for one row of a batch."""
    return SegmentError(f"{path}, row {columns.first_row + index}: {why}")


def _shown(paths: Paths) -> str:
    return str(paths) if isinstance(paths, (str, Path)) else ", ".join(map(str, paths))
