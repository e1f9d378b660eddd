"""Columns of CSV, Parquet and JSON lines, by pyarrow, in batches of some 100,000 rows.

This module reports what is wrong with a *file*; `source` checks the *values*.

Two traps. Arrow reads the CSV numbers `0x10` as 16 and ` 7` as 7, so CSV is read as text and checked. And with a quote
that is never closed, Arrow reads many rows as one value: so all columns are read, and a line break in a value is an
error.
"""

import csv
import gzip
import io
import threading
import weakref
import zlib
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

# pyarrow ships no types: imported by name it is Any.
_pa: Any = import_module("pyarrow")
_compute: Any = import_module("pyarrow.compute")
_csv: Any = import_module("pyarrow.csv")
_parquet: Any = import_module("pyarrow.parquet")

_CSV_SUFFIXES = (".csv", ".csv.gz")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_BLOCK_BYTES = 4 << 20
_BATCH_ROWS = 1 << 17
_LONGEST_HEADER = 1 << 20
"""In characters: an endless first line must not fill the memory."""
_LET_GO_S = 5.0
"""The longest that closing a CSV file waits for Arrow's reading thread."""

NUMBER, ZONED, ZONELESS, NO_TIME = range(4)
"""Forms of a time in text."""
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_FORMS = (r"^[0-9]{1,15}(\.[0-9]{1,6})?$", rf"^{_DAY}{_CLOCK}(Z|[+-][0-9]{{2}}:?[0-9]{{2}})$", rf"^{_DAY}({_CLOCK})?$")


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
        return _header(path)


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
        while line := plain.readline(_LONGEST_HEADER):
            if not line.strip():
                continue
            row += 1
            try:
                yield decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise SegmentError(f"{path}, row {row}: not a JSON object ({error}); get the whole file") from None


def _of_json(path: Input, first_row: int, name: str, rows: list[dict[str, Any]]) -> Any:
    values = [row.get(name) for row in rows]
    try:
        return _pa.array(values)
    except _pa.ArrowException:
        kinds: list[type[object]] = [type(value) for value in values]
        first = next(kind for kind in kinds if kind is not type(None))
        bad = next((at for at, kind in enumerate(kinds) if kind not in (first, type(None))), 0)
        shown = repr(values[bad])[:40]
        raise SegmentError(
            f"{path}, row {first_row + bad}: {name} {shown} is of another type than those before; store one type"
        ) from None


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
    invalid: list[Any] = []
    row = 1
    with _arrow_errors(path, invalid):
        there = _header(path)
        _check_columns(path, names, there)
        text = dict.fromkeys(there, _pa.string())
        text.update(dict.fromkeys(names[1:], _pa.dictionary(_pa.int32(), _pa.string())))
        with closing(_csv_batches(path, text, invalid)) as batches:
            for batch in batches:
                _check_line_breaks(path, there, batch, row)
                yield TableColumns(tuple(batch.column(there.index(name)) for name in names), row, is_text=True)
                row += batch.num_rows


def _csv_batches(path: Input, types: dict[str, Any], invalid: list[Any]) -> Generator[Any]:
    """The batches of a CSV file; Arrow's description of a bad row is added to `invalid`.

    Arrow's reading thread outlives the reader for a moment, and takes the interpreter's lock once more to release the
    objects that it was given. An interpreter that exits just then aborts (before Python 3.14), so closing waits here.
    """
    held: list[Any] = [_unpacked(path), _BadRows(invalid)]
    lent = [_Lent(item) for item in held if not isinstance(item, Path)]
    # With one thread Arrow knows the number of a bad row, and is as fast.
    options = _csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)
    try:
        held.append(
            _csv.open_csv(
                held[0],
                read_options=options,
                parse_options=_csv.ParseOptions(invalid_row_handler=held[1]),
                convert_options=_csv.ConvertOptions(column_types=types, strings_can_be_null=False),
            )
        )
        with held[-1]:
            yield from held[-1]
    finally:
        held.clear()  # an error's traceback would keep this frame, and these objects with it
        for item in lent:
            item.wait()


class _BadRows:
    """Arrow's handler for invalid rows: collects them."""

    def __init__(self, found: list[Any]) -> None:
        self._found = found

    def __call__(self, row: Any) -> str:
        self._found.append(row)
        return "error"


class _Lent:
    """Whether anybody still holds this object."""

    def __init__(self, lent: object) -> None:
        self._let_go = threading.Event()
        self._reference = weakref.ref(lent, lambda _: self._let_go.set())

    def wait(self) -> None:
        """Wait until nobody does, 5 s at most."""
        self._let_go.wait(_LET_GO_S)


def _opened(path: Input) -> Any:
    """What Arrow reads from: a path, or an opened object."""
    return path if isinstance(path, Path) else inputs.open_input(path.url)


def _unpacked(path: Input) -> Any:
    """The same for CSV: Arrow decompresses files by their name, but not objects."""
    if isinstance(path, Path):
        return path
    opened: Any = inputs.open_input(path.url)
    return gzip.GzipFile(fileobj=opened) if path.name.endswith(".gz") else opened


def _header(path: Input) -> list[str]:
    """The names in the first row, read without Arrow, which must know the columns' types before it opens the file."""
    raw, plain = _bytes_of(path)
    with raw, io.TextIOWrapper(plain, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        try:
            return next(csv.reader(_bounded(file)))
        except StopIteration:
            raise ValueError("Empty CSV file") from None
        except (csv.Error, EOFError, zlib.error) as error:
            raise ValueError(str(error)) from None


def _bytes_of(path: Input) -> tuple[Any, Any]:
    raw: Any = path.open("rb") if isinstance(path, Path) else inputs.open_input(path.url)
    return raw, gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw


def _bounded(file: io.TextIOWrapper) -> Iterator[str]:
    """The lines of a file, as long as all of them together are no longer than a header may be."""
    left = _LONGEST_HEADER
    while line := file.readline(left):
        left -= len(line)
        if not left:
            raise ValueError(f"a header of more than {_LONGEST_HEADER:,} characters")
        yield line


def _check_columns(path: Input, names: tuple[str, ...], there: list[str]) -> None:
    for name in names:
        if there.count(name) != 1:
            fault = "no column" if name not in there else "more than one column"
            listed = ", ".join(there[:20]) + (", …" if len(there) > 20 else "")  # noqa: PLR2004 - one line's worth
            raise SegmentError(f"{path}: {fault} {name!r}; its columns are: {listed}")


def _check_line_breaks(path: Input, there: list[str], batch: Any, row: int) -> None:
    for name, column in zip(there, batch.columns, strict=True):
        values = column.dictionary if _pa.types.is_dictionary(column.type) else column
        if _compute.any(_compute.match_substring(values, "\n")).as_py():
            broken = _compute.match_substring(column.cast(_pa.string()), "\n")
            raise SegmentError(
                f"{path}, row {row + _first(broken)}: {name} has a line break inside quotes; "
                "close the quote, or leave line breaks out"
            )


@contextmanager
def _arrow_errors(path: Input, invalid: list[Any] | None = None) -> Generator[None]:
    try:
        yield
    except SegmentError:
        raise
    except (_pa.ArrowException, OSError, EOFError, zlib.error, ValueError) as error:
        if invalid:
            bad = invalid[0]
            raise SegmentError(
                f"{path}, row {bad.number - 1}: {bad.actual_columns} values where the header has "
                f"{bad.expected_columns}: {bad.text[:60]!r}; fix the row, or get the whole file"
            ) from None
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()).rstrip(".")
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


def time_forms(column: Any) -> npt.NDArray[np.int8]:
    """The form of each text of a time."""
    found = np.full(len(column), NO_TIME, np.int8)
    for form in (ZONELESS, ZONED, NUMBER):
        left = np.flatnonzero(found == NO_TIME)
        if not left.size:
            break
        some = column if len(left) == len(column) else column.take(_pa.array(left))
        found[left[_compute.match_substring_regex(some, _FORMS[form]).to_numpy(zero_copy_only=False)]] = form
    return found


def instants(column: Any, form: int) -> npt.NDArray[np.int64] | None:
    """Texts of this form in microseconds since 1970; None if one is no time, like February 30."""
    if form == NO_TIME:
        return None
    if form == NUMBER:
        return np.rint(column.cast(_pa.float64()).to_numpy(zero_copy_only=False) * 1e6).astype(np.int64)
    try:
        times = column.cast(_pa.timestamp("us", "UTC" if form == ZONED else None))
    except _pa.ArrowException:
        return None
    return times.cast(_pa.int64()).to_numpy(zero_copy_only=False)


def microseconds(column: Any) -> tuple[npt.NDArray[np.int64], bool] | None:
    """A column of times, or of seconds since 1970, without nulls, and whether its times have no zone."""
    kind = column.type
    if _pa.types.is_timestamp(kind) or _pa.types.is_date(kind):
        times = column.cast(_pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(_pa.int64())
        return times.to_numpy(zero_copy_only=False), getattr(kind, "tz", None) is None
    if not (is_integer(column) or _pa.types.is_floating(kind)):
        return None
    seconds = column.to_numpy(zero_copy_only=False).astype(np.float64)
    past = ~((seconds >= 0) & (seconds < 1e11))  # noqa: PLR2004 - far above any: an error of the caller's
    return np.where(past, -1, np.rint(np.where(past, 0, seconds) * 1e6)).astype(np.int64), False


def decimals(column: Any) -> tuple[npt.NDArray[np.float64] | None, int | None]:
    """A column of numbers or of their text, a null or empty one 0; or else None, and the first bad row if one is."""
    if is_text(column):
        texts = plain_text(column)
        texts = _compute.if_else(_compute.equal(_compute.binary_length(texts), 0), "0", texts)
        good = _compute.match_substring_regex(texts, r"^[+-]?([0-9]{1,14}(\.[0-9]*)?|\.[0-9]{1,14})$").fill_null(True)
        if not _compute.all(good).as_py():
            return None, _first(_compute.invert(good))
        column = texts
    elif not (is_integer(column) or _pa.types.is_floating(column.type) or _pa.types.is_decimal(column.type)):
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
