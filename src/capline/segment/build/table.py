"""Columns of CSV, Parquet and JSON lines, by pyarrow, in batches of some 100,000 rows.

This module reports what is wrong with a *file*; `source` checks the *values*.

Arrow reads the CSV numbers `0x10` as 16 and ` 7` as 7, so CSV is read as text and checked. With a quote that is never
closed many rows are one value, so a line break in a value is an error.
"""

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from capline.model.errors import SegmentError
from capline.segment.build import inputs
from capline.segment.build.inputs import Input
from capline.tables.csv_file import CsvFile, chunks_of

# pyarrow ships no types: imported by name it is Any.
_pa: Any = import_module("pyarrow")
_compute: Any = import_module("pyarrow.compute")
_parquet: Any = import_module("pyarrow.parquet")

_CSV_SUFFIXES = (".csv", ".csv.gz")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_BATCH_ROWS = 1 << 17
_LONGEST_LINE_BYTES = 1 << 20
"""Of JSON: an endless line must not fill the memory."""


class TableColumns(NamedTuple):
    """A batch: the columns, the number of its first row (from 1), and whether its numbers are text."""

    arrays: tuple[Any, ...]
    first_row: int
    is_text: bool


def is_parquet(path: Input) -> bool:
    """Whether the name says Parquet."""
    return path.name.endswith(_PARQUET_SUFFIXES)


def parquet_rows(path: Input) -> int:
    """The number of rows that a Parquet file states."""
    with _arrow_errors(path), _parquet.ParquetFile(_opened(path)) as file:
        return int(file.metadata.num_rows)


@contextmanager
def read_columns(path: Input, names: tuple[str, ...]) -> Generator[Iterator[TableColumns]]:
    """These columns, batch by batch, in a block at whose end the file is closed.

    Raises `SegmentError` for a damaged file or a missing column.
    """
    form = _suffixes(path)
    read = _read_parquet if form is _PARQUET_SUFFIXES else _read_csv if form is _CSV_SUFFIXES else _read_json
    with closing(read(path, names)) as batches:
        yield batches


def _suffixes(path: Input) -> tuple[str, ...]:
    forms = (_CSV_SUFFIXES, _PARQUET_SUFFIXES, _JSON_SUFFIXES)
    for suffixes in forms:
        if path.name.endswith(suffixes):
            return suffixes
    known = ", ".join(chain.from_iterable(forms))
    raise SegmentError(f"{path}: its name does not say what it is; files of rows end in {known}")


def names(path: Input) -> list[str]:
    """The columns of a file: of JSON lines, those that the first row has."""
    form = _suffixes(path)
    with _arrow_errors(path):
        if form is _PARQUET_SUFFIXES:
            with _parquet.ParquetFile(_opened(path)) as header:
                return list(header.schema_arrow.names)
        if form is _JSON_SUFFIXES:
            with closing(_objects(path)) as rows:
                return list(next(rows, dict[str, Any]()))
        with _csv_file(path) as file:
            return file.names or []


def _read_json(path: Input, names: tuple[str, ...]) -> Generator[TableColumns]:
    with _arrow_errors(path), closing(_objects(path)) as rows:
        number = 1
        while some := list(islice(rows, _BATCH_ROWS)):
            if number == 1:
                _check_columns(path, names, list(some[0]))
            yield TableColumns(tuple(_of_json(path, number, name, some) for name in names), number, is_text=False)
            number += len(some)


def _objects(path: Input) -> Generator[dict[str, Any]]:
    """The rows of JSON lines, each an object; blank lines are skipped."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    raw, plain = _bytes_of(path)
    with raw, plain:
        row = 0
        while line := plain.readline(_LONGEST_LINE_BYTES):
            if not line.strip():
                continue
            row += 1
            try:
                yield decode(line.removeprefix(BOM_UTF8) if row == 1 else line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise SegmentError(f"{path}, row {row}: not a JSON object ({error}); get the whole file") from None


def _of_json(path: Input, first_row: int, name: str, rows: list[dict[str, Any]]) -> Any:
    values = [row.get(name) for row in rows]
    try:
        return _pa.array(values)
    except (OverflowError, _pa.ArrowException):
        kinds: list[type[object]] = [type(value) for value in values]
        first = next(kind for kind in kinds if kind is not type(None))
        bad = next((at for at, kind in enumerate(kinds) if kind not in (first, type(None))), None)
        why = "is of another type than those before; store one type"
        if first is int and bad is None:  # Arrow takes whole numbers for signed ones, unless told.
            bad = next((at for at, value in enumerate(values) if not 0 <= (value or 0) < 1 << 64), None)
            why = "is below 0 or above 2^64-1; store numbers between"
            if bad is None:
                return _pa.array(values, _pa.uint64())
        shown = repr(values[bad or 0])[:40]
        raise SegmentError(f"{path}, row {first_row + (bad or 0)}: {name} {shown} {why}") from None


def _read_parquet(path: Input, names: tuple[str, ...]) -> Generator[TableColumns]:
    with _arrow_errors(path):
        with _parquet.ParquetFile(_opened(path)) as header:
            _check_columns(path, names, header.schema_arrow.names)
        with _parquet.ParquetFile(
            _opened(path), read_dictionary=list(names[1:]), page_checksum_verification=True
        ) as file:
            row = 1
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(names)):
                there: list[str] = batch.schema.names
                yield TableColumns(tuple(batch.column(there.index(name)) for name in names), row, is_text=False)
                row += batch.num_rows


def _read_csv(path: Input, names: tuple[str, ...]) -> Generator[TableColumns]:
    with _arrow_errors(path), _csv_file(path) as file:
        there = file.names or []
        _check_columns(path, names, there)
        for row, (ids, *others) in file.blocks([there.index(name) for name in names], line_breaks=False):
            yield TableColumns((ids, *(column.dictionary_encode() for column in others)), row, is_text=True)


@contextmanager
def _csv_file(path: Input) -> Generator[CsvFile]:
    raw, plain = _bytes_of(path)
    with raw, plain:
        file = CsvFile(path, chunks_of(path, plain, SegmentError), SegmentError)
        if file.names is None:
            raise ValueError("Empty CSV file")
        yield file


def _opened(path: Input) -> Any:
    """What Arrow reads from: a path, or an opened object."""
    return path if isinstance(path, Path) else inputs.open_input(path.url)


def _bytes_of(path: Input) -> tuple[Any, Any]:
    raw: Any = path.open("rb") if isinstance(path, Path) else inputs.open_input(path.url)
    return raw, gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw


def _check_columns(path: Input, names: tuple[str, ...], there: list[str]) -> None:
    for name in names:
        if there.count(name) != 1:
            fault = "no column" if name not in there else "more than one column"
            listed = ", ".join(there[:20]) + (", …" if len(there) > 20 else "")  # noqa: PLR2004 - one line's worth
            raise SegmentError(f"{path}: {fault} {name!r}; its columns are: {listed}")


@contextmanager
def _arrow_errors(path: Input) -> Generator[None]:
    try:
        yield
    except SegmentError:
        raise
    except (_pa.ArrowException, OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()).rstrip(".")
        if isinstance(error, UnicodeDecodeError):
            reason = f"not UTF-8 text ({error.reason})"
        if reason == "Empty CSV file":
            raise SegmentError(
                f"{path}: cannot be read: it is empty; a CSV file begins with the names of its columns"
            ) from None
        raise SegmentError(
            f"{path}: cannot be read: {reason}; it is damaged, cut short or not what it is named"
        ) from None


def first_null(column: Any) -> int | None:
    """The index of the first null."""
    return _first(column.is_null()) if column.null_count else None


def first_not_decimal(column: Any, most_digits: int) -> int | None:
    """The index of the first text that is not 1 to `most_digits` decimal digits."""
    good = _compute.and_(
        _compute.ascii_is_decimal(column), _compute.less_equal(_compute.binary_length(column), most_digits)
    )
    return None if _compute.all(good).as_py() is not False else _first(_compute.invert(good))


def first_above(column: Any, digits: str) -> int | None:
    """The index of the first decimal text that is above this number, given with all its digits."""
    above = _compute.and_(_compute.equal(_compute.binary_length(column), len(digits)), _compute.greater(column, digits))
    return _first(above) if _compute.any(above).as_py() else None


def plain_text(column: Any) -> Any:
    """The column as plain text, whatever kind of text it is."""
    return column.cast(_pa.large_string())


def first_of_length(column: Any, least: int, most: int) -> int | None:
    """The index of the first text that is not `least` to `most` bytes of UTF-8."""
    lengths = _compute.binary_length(column)
    bad = _compute.or_(_compute.less(lengths, least), _compute.greater(lengths, most))
    return _first(bad) if _compute.any(bad).as_py() else None


def first_with_control(column: Any) -> int | None:
    """The index of the first text with a control character."""
    bad = _compute.match_substring_regex(column, r"[\x00-\x1f\x7f-\x{9f}]")
    return _first(bad) if _compute.any(bad).as_py() else None


def by_length(column: Any) -> list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.bytes_]]]:
    """Group a text column without nulls by length in bytes: the length, the rows, the texts at a fixed width."""
    lengths = _compute.binary_length(column).to_numpy(zero_copy_only=False)
    found: list[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.bytes_]]] = []
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        # Texts of one length lie side by side, so their bytes are the array.
        some = column.take(_pa.array(places))
        cells = np.frombuffer(some.buffers()[2], dtype=f"S{length}", count=places.size)
        found.append((length, places, cells))
    return found


def is_integer(column: Any) -> bool:
    """Whether the column's type is one of the eight integers."""
    return bool(_pa.types.is_integer(column.type))


def is_time(column: Any) -> bool:
    """Whether the column holds times, or numbers that may be seconds."""
    types, kind = _pa.types, column.type
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_integer(kind) or types.is_floating(kind))


def is_text(column: Any) -> bool:
    """Whether the column holds text, dictionary-encoded or not."""
    kind = column.type.value_type if _pa.types.is_dictionary(column.type) else column.type
    return bool(_pa.types.is_string(kind) or _pa.types.is_large_string(kind) or _pa.types.is_string_view(kind))


def numbers(column: Any) -> npt.NDArray[np.integer[Any]]:
    """Convert a column of integers, or of decimal digits, without nulls, to an array."""
    return (column if is_integer(column) else column.cast(_pa.uint64())).to_numpy(zero_copy_only=False)


def codes(column: Any) -> tuple[npt.NDArray[np.integer[Any]], tuple[str, ...]]:
    """Convert a column of text without nulls to codes and the texts they stand for."""
    encoded = column if _pa.types.is_dictionary(column.type) else column.cast(_pa.string()).dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False), tuple(encoded.dictionary.to_pylist())


def _first(mask: Any) -> int:
    return int(np.argmax(mask.to_numpy(zero_copy_only=False)))


def decimals(column: Any) -> tuple[npt.NDArray[np.float64] | None, int | None]:
    """A column of numbers or of their text, a null or empty one 0; or else None, and the first bad row if one is."""
    of = _pa.types
    if is_text(column):
        texts = plain_text(column)
        texts = _compute.if_else(_compute.equal(_compute.binary_length(texts), 0), "0", texts)
        good = _compute.match_substring_regex(texts, r"^[+-]?([0-9]{1,14}(\.[0-9]*)?|\.[0-9]{1,14})$").fill_null(True)
        if not _compute.all(good).as_py():
            return None, _first(_compute.invert(good))
        column = texts
    elif not any(known(column.type) for known in (of.is_integer, of.is_floating, of.is_decimal, of.is_null)):
        return None, None
    return column.cast(_pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False), None


def record_batch(columns: dict[str, Any], schema: Any) -> Any:
    """A batch of Arrow's of these columns."""
    return _pa.record_batch([_pa.array(column) for column in columns.values()], schema=schema)


def batch_reader(schema: Any, batches: Iterator[Any]) -> Any:
    """What hands batches to an engine, one at a time."""
    return _pa.RecordBatchReader.from_batches(schema, batches)


def schema_of(**types: str) -> Any:
    """A schema of Arrow's by the names of its types."""
    return _pa.schema([(name, getattr(_pa, kind)()) for name, kind in types.items()])
