"""Reads events by columns: the rows of a file as blocks of arrays, ten times as fast as row by row.

pyarrow reads plain blocks of CSV, and each distinct subject, segment and zone is checked once. From the first block
that pyarrow might read differently (a quote, an unusual time, any fault), `events` reads the rows. So both ways give
the same events, and the same errors at the same rows.

A block is some 4 MB of the file. Only the distinct subjects, and pairs of segment and zone, are kept beyond it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import BufferedReader
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from capline.model.clock import LATEST_US
from capline.model.errors import CaplineError
from capline.model.subject import Subject
from capline.model.zone import check_zone
from capline.replay import formats
from capline.replay.events import (
    Columns,
    Event,
    Layout,
    Opened,
    ReplayError,
    events_of,
    layout_of,
    needs_arrow,
    no_rows,
    reading,
    shown,
    subject_of,
)
from capline.replay.exported import exported_events
from capline.replay.ordered import BLOCK_ROWS, Events, OrderedEvents

BLOCK_BYTES = 4 << 20
LONGEST_LINE_BYTES = 64 << 20
HEAD_BYTES = 1 << 16
"""Bytes in which the header and the first row are looked for."""
MOST_TOLD = 5
"""Broken lines that are told, of all that are counted."""

_WHOLE = r"^[0-9]{1,10}$"
_FRACTION = r"^[0-9]{1,10}\.[0-9]{1,6}$"
_LOCAL = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?$"
_ZONED = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][01][0-9]:[0-5][0-9])$"


class Block(NamedTuple):
    """Some rows in order: each one's codes of its subject and its kind (segment and zone), and its instant.

    `row` rows came before; `at_bytes` is how far the file has been read.
    """

    row: int
    subjects: NDArray[np.int32]
    at_us: NDArray[np.int64]
    kinds: NDArray[np.int32]
    at_bytes: int


class _Codes(dict[Any, int]):
    """A number for each distinct key, in order of first use."""

    def __missing__(self, key: object) -> int:
        self[key] = code = len(self)
        return code

    def of(self, keys: Iterable[object]) -> NDArray[np.int32]:
        return np.fromiter(map(self.__getitem__, keys), np.int32)


class _Memo(dict[Any, int]):
    """The code of each distinct key; -1 for what cannot be read."""

    def __init__(self, code: Callable[[Any], int]) -> None:
        self._code = code

    def __missing__(self, key: Any) -> int:
        try:
            code = self._code(key)
        except (CaplineError, UnicodeDecodeError):
            code = -1
        self[key] = code
        return code


def _decoded(text: bytes | str) -> str:
    return text.decode() if isinstance(text, bytes) else text


class _UnusualError(Exception):
    """A block that pyarrow might read differently from `events`."""


class EventFile:
    """A file of events, as blocks; see `formats` for what a file is, and `events` for the errors of CSV.

    A column that is None is found out where there is one safe guess, and told in `notes`; `missing` is what the caller
    lacks besides, told in the same error. Broken lines of a log are left out, or with `strict` refused.
    """

    def __init__(
        self,
        path: Path,
        subject_column: str | None = None,
        time_column: str | None = None,
        segment_column: str | None = None,
        zone_column: str | None = None,
        *,
        strict: bool = False,
        missing: Sequence[str] = (),
    ) -> None:
        self._path = path
        self._wanted = Columns(subject_column, time_column, segment_column, zone_column)
        self._strict, self._missing = strict, missing
        self._subjects, self._kinds, self._arrow = _Codes(), _Codes(), _arrow()
        self.notes: list[str] = []
        """What was guessed, or is unusual, a sentence each."""
        self.broken: list[str] = []
        """The first five broken lines."""
        self.broken_lines = 0

    def subjects(self, start: int = 0) -> list[Subject]:
        """The subjects met so far, from this code on."""
        return list(islice(self._subjects, start, None))

    def kinds(self, start: int = 0) -> list[tuple[str | None, str | None]]:
        """The pairs of segment and zone met so far, from this code on."""
        return list(islice(self._kinds, start, None))

    def told(self) -> list[str]:
        """What to tell of the file once it is read: what was guessed or is unusual, and its broken lines."""
        lines = list(self.notes)
        if self.broken_lines:
            are = "line is" if self.broken_lines == 1 else "lines are"
            lines.append(f"{self._path}: {self.broken_lines:,} broken {are} left out (--strict refuses them):")
        return lines + self.broken

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in the order of the file."""
        row = 0
        with reading(self._path) as opened:
            for block in self._parquet(opened) if opened.start == b"PAR1" else self._text(opened):
                row = block.row + len(block.at_us)
                yield block
        if not row:
            raise no_rows(self._path)

    @contextmanager
    def in_order(self, progress: Callable[[int], object] = lambda _bytes: None) -> Generator[OrderedEvents]:
        """Read the whole file and sort it by time; events of one instant keep the order of the file.

        `progress` gets the bytes read so far. The events are in a temporary file until the block ends.
        """
        with TemporaryFile() as file:
            events = OrderedEvents(file)
            for block in self.blocks():
                events.add(Events(block.subjects, block.at_us, block.kinds))
                progress(block.at_bytes)
            events.end_run()
            yield events

    def _columns(self, form: str, opened: Opened, names: Sequence[str], first: Sequence[str]) -> Columns:
        """The columns to read, with a note of what was guessed."""
        found = formats.named_columns(self._path, names, first, self._wanted, self._missing)
        if form != formats.JSON:  # A line of JSON may have fewer fields than the next.
            layout_of(self._path, names, found)
        told = formats.misnamed(self._path, opened.start, form)
        if told is not None:
            self.notes.append(told)
        if found != self._wanted:
            what = f"subjects are {found.subject!r}, times {found.time!r}"
            self.notes.append(f"{self._path}: read as {form}; {what} (--subject-column, --time-column)")
        at = dict(zip((name.strip() for name in names), first, strict=False)).get(str(found.time), "")
        if not formats.has_zone(at):
            self._note_no_zone(at)
        return found

    def _note_no_zone(self, like: object) -> None:
        self.notes.append(f"{self._path}: times without a zone, like {like}, are read as UTC")

    def _text(self, opened: Opened) -> Iterator[Block]:
        chunks = _chunks(self._path, opened.data)
        start = next(chunks, b"").removeprefix(b"\xef\xbb\xbf")
        form = formats.sniff(start)
        if form == formats.EXPORT:
            return self._export(start, chunks, opened)
        return self._csv(start, chunks, opened) if form == formats.CSV else self._lines(form, start, chunks, opened)

    def _csv(self, start: bytes, chunks: Iterator[bytes], opened: Opened) -> Iterator[Block]:
        if b"\0" in start[:HEAD_BYTES]:
            raise ReplayError(f"{self._path}: not text in UTF-8, nor Parquet, gzip or zstd; save it as one of them")
        reader = csv.reader(io.StringIO(start[:HEAD_BYTES].decode(errors="replace"), newline=""))
        header = next(reader, None)
        if header is None:
            raise ReplayError(f"{self._path}: empty; it begins with a header like subject,time")
        columns = self._columns(formats.CSV, opened, header, next((fields for fields in reader if fields), list[str]()))
        line, end, rest = start.partition(b"\n")
        layout, row = None, 0
        if self._arrow is not None and line.strip() and not line.count(b'"') % 2 and b"\r" not in line.rstrip(b"\r"):
            layout = layout_of(self._path, next(csv.reader([line.decode()], strict=True)), columns)
            for chunk in chain([rest], chunks):
                try:
                    block = self._plain(layout, chunk, row, opened)
                except _UnusualError:
                    chunks = chain([chunk], chunks)
                    break
                if block is not None:
                    yield block
                    row += len(block.at_us)
            else:
                return
        else:
            chunks = chain([line + end + rest], chunks)
        lines = chain.from_iterable(io.StringIO(chunk.decode(), newline="") for chunk in chunks)
        rows = csv.reader(lines, strict=True)
        if layout is None:
            layout = layout_of(self._path, next(rows, None), columns)
        yield from self._one_by_one(events_of(layout, rows, row), opened)

    def _export(self, start: bytes, chunks: Iterator[bytes], opened: Opened) -> Iterator[Block]:
        if any(self._wanted):
            raise ReplayError(f"{self._path}: an export of logs: it has no columns; leave the names of columns out")
        if self._missing:
            raise ReplayError(f"{self._path}: say {', and '.join(self._missing)}")
        self.notes.append(f"{self._path}: read as {formats.EXPORT}; each hit is an event")
        yield from self._one_by_one(exported_events(self._path, chain([start], chunks), self.notes), opened)

    def _lines(self, form: str, start: bytes, chunks: Iterator[bytes], opened: Opened) -> Iterator[Block]:
        """Read an access log or JSON lines."""
        lines = formats.LogLines(form, self._columns(form, opened, *formats.first_line(form, start)))
        subject_at, time_at, segment_at, zone_at = lines.places
        subjects = _Memo(lambda text: self._subjects[subject_of(_decoded(text))])
        kinds = _Memo(self._kind)
        row = number = 0
        for chunk in chain([start], chunks):
            rows = lines.rows(chunk)
            good: list[Any] = [fields for fields in rows if fields]
            of_subject = np.fromiter(map(subjects.__getitem__, map(itemgetter(subject_at), good)), np.int32)
            at_us = np.fromiter(map(formats.log_instant_us, map(itemgetter(time_at), good)), np.int64)
            if segment_at is None and zone_at is None:
                of_kind = np.full(len(good), self._kinds[None, None], np.int32)
            else:
                named = (tuple("" if at is None else fields[at] for at in (segment_at, zone_at)) for fields in good)
                of_kind = np.fromiter((kinds[names] for names in named), np.int32)
            read = (of_subject >= 0) & (at_us >= 0) & (of_kind >= 0)
            if len(good) < len(rows) or not read.all():
                self._note_broken(rows, read, chunk, number)
            number += len(rows)
            if read.any():
                yield Block(row, of_subject[read], at_us[read], of_kind[read], _at_bytes(opened.raw))
                row += int(read.sum())

    def _kind(self, names: tuple[bytes | str, bytes | str]) -> int:
        segment, zone = map(_decoded, names)
        return self._kinds[segment or None, check_zone(zone) if zone else None]

    def _note_broken(self, rows: Sequence[Any], read: NDArray[np.bool_], chunk: bytes, number: int) -> None:
        """Count the lines that cannot be read, or with `strict` refuse the first."""
        good = iter(read.tolist())
        broken = [place for place, fields in enumerate(rows) if fields is None or (fields and not next(good))]
        self.broken_lines += len(broken)
        for place in broken[: MOST_TOLD - len(self.broken)]:
            text = chunk.split(b"\n", place + 1)[place].decode(errors="replace")
            line = f"line {number + place + 1}: {shown(text)}"
            if self._strict:
                raise ReplayError(f"{self._path}, {line} is broken; mend it, or leave --strict out")
            self.broken.append(line)

    def _parquet(self, opened: Opened) -> Iterator[Block]:
        if self._arrow is None:
            raise needs_arrow(self._path, "Parquet")
        pa = self._arrow[0]
        parquet: Any = import_module("pyarrow.parquet")
        try:
            file = parquet.ParquetFile(opened.raw if opened.raw.seekable() else pa.BufferReader(opened.raw.read()))
            names: list[str] = file.schema_arrow.names
            columns = self._columns(formats.PARQUET, opened, names, ())
            for name, kind in zip(names, file.schema_arrow.types, strict=True):
                if name == columns.time and (
                    pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
                ):
                    self._note_no_zone(kind)
            layout = layout_of(self._path, [name for name in names if name in columns], columns)
            row = 0
            for batch in file.iter_batches(BLOCK_ROWS, columns=[name for name in names if name in columns]):
                table = pa.Table.from_batches([batch])
                try:
                    roles = _roles(layout)
                    renamed = table.rename_columns([roles[place] for place in range(layout.fields)])
                    yield self._of_table(renamed, layout, row, opened)
                except _UnusualError:
                    fields = [[str("" if cell is None else cell) for cell in c.to_pylist()] for c in table.columns]
                    yield from self._one_by_one(events_of(layout, map(list, zip(*fields, strict=True)), row), opened)
                row += len(table)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ReplayError(f"{self._path}: not readable as Parquet ({str(error).splitlines()[0]})") from None

    def _one_by_one(self, events: Iterator[Event], opened: Opened) -> Iterator[Block]:
        while some := list(islice(events, BLOCK_ROWS)):
            yield self._of_events(some, opened)

    def _of_events(self, events: list[Event], opened: Opened) -> Block:
        return Block(
            events[0].row - 1,
            self._subjects.of(event.subject for event in events),
            np.fromiter((event.at_us for event in events), np.int64),
            self._kinds.of((event.segment, event.zone) for event in events),
            _at_bytes(opened.raw),
        )

    def _plain(self, layout: Layout, chunk: bytes, row: int, opened: Opened) -> Block | None:
        """Read one chunk by columns; None where it has no row. Raises `_UnusualError` where it must be read by rows."""
        if b'"' in chunk or b"\0" in chunk:
            raise _UnusualError
        if not chunk.strip(b"\r\n"):
            return None
        if not chunk.isascii():
            chunk.decode()
        return self._of_table(self._table(layout, chunk), layout, row, opened)

    def _of_table(self, table: Any, layout: Layout, row: int, opened: Opened) -> Block:
        """Read columns called subject, time, segment and zone."""
        subjects, where = _distinct(self._texts(table.column("subject")))
        try:
            of_subject = self._subjects.of(map(subject_of, subjects))
            segments = zones = None
            if layout.segment is not None:
                segments = _distinct(self._texts(table.column("segment")))
            if layout.zone is not None:
                zones = _distinct(self._texts(table.column("zone")))
                for zone in filter(None, zones[0]):
                    check_zone(zone)
        except CaplineError:
            raise _UnusualError from None
        kinds = self._pairs(segments, zones, len(where))
        return Block(row, of_subject[where], self._instants(table.column("time")), kinds, _at_bytes(opened.raw))

    def _texts(self, column: Any) -> Any:
        pa = self._arrow[0]
        if column.null_count:
            raise _UnusualError
        return column if pa.types.is_string(column.type) else column.cast(pa.string())

    def _table(self, layout: Layout, chunk: bytes) -> Any:
        pa, _, arrow_csv = self._arrow
        named = _roles(layout)
        names = [named.get(place, f"_{place}") for place in range(layout.fields)]
        try:
            return arrow_csv.read_csv(
                pa.BufferReader(chunk),
                arrow_csv.ReadOptions(column_names=names, block_size=len(chunk) + 1, use_threads=False),
                arrow_csv.ParseOptions(quote_char=False),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(named.values(), pa.string()),
                    include_columns=list(named.values()),
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            raise _UnusualError from None

    def _instants(self, column: Any) -> NDArray[np.int64]:
        """Microseconds since 1970, for columns in the four forms that nearly all files have."""
        pa, compute, _ = self._arrow
        try:
            if not pa.types.is_string(column.type):
                at_us = self._typed(column)
            elif _all_match(compute, column, _WHOLE):
                at_us = compute.cast(column, pa.int64()).to_numpy() * 1_000_000
            elif _all_match(compute, column, _FRACTION):
                parts = compute.multiply(compute.cast(column, pa.decimal128(17, 6)), pa.scalar(1_000_000, pa.int64()))
                at_us = compute.cast(parts, pa.int64()).to_numpy()
            elif _all_match(compute, column, _LOCAL):
                at_us = compute.cast(compute.cast(column, pa.timestamp("us")), pa.int64()).to_numpy()
            elif _all_match(compute, column, _ZONED):
                at_us = compute.cast(compute.cast(column, pa.timestamp("us", "UTC")), pa.int64()).to_numpy()
            else:
                raise _UnusualError
        except pa.ArrowInvalid:
            raise _UnusualError from None
        if int(at_us.min()) < 0 or int(at_us.max()) > LATEST_US:
            raise _UnusualError
        return at_us

    def _typed(self, column: Any) -> NDArray[np.int64]:
        """The same for the types of Parquet: timestamps, dates, and seconds as numbers."""
        pa, compute, _ = self._arrow
        if column.null_count:
            raise _UnusualError
        if pa.types.is_integer(column.type):
            return compute.multiply_checked(column.cast(pa.int64()), 1_000_000).to_numpy()
        if pa.types.is_floating(column.type):
            seconds = cast("NDArray[np.float64]", column.to_numpy())
            if not (np.abs(seconds) <= LATEST_US / 1e6).all():  # nor is NaN
                raise _UnusualError
            return np.round(seconds * 1e6).astype(np.int64)
        return column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy()

    def _pairs(self, segments: _Distinct | None, zones: _Distinct | None, rows: int) -> NDArray[np.int32]:
        if segments is None and zones is None:
            return np.full(rows, self._kinds[None, None], np.int32)
        names, where = segments or ([None], np.zeros(rows, np.int32))
        places, at = zones or ([None], np.zeros(rows, np.int32))
        used, first, inverse = np.unique(
            where.astype(np.int64) * len(places) + at, return_index=True, return_inverse=True
        )
        codes = np.empty(len(used), np.int32)
        for i in np.argsort(first).tolist():
            segment, zone = divmod(int(used[i]), len(places))
            codes[i] = self._kinds[names[segment] or None, places[zone] or None]
        return codes[inverse]


_Distinct = tuple[list[Any], "NDArray[np.int32]"]
"""The distinct values, and the index of each row's value."""


def _roles(layout: Layout) -> dict[int, str]:
    named = {layout.subject: "subject"}
    for place, name in ((layout.time, "time"), (layout.segment, "segment"), (layout.zone, "zone")):
        if place is not None and named.setdefault(place, name) != name:
            raise _UnusualError  # One column in two roles.
    return named


def _distinct(column: Any) -> _Distinct:
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def _all_match(compute: Any, column: Any, pattern: str) -> bool:
    # The first row rules out most forms.
    found = compute.match_substring_regex
    return found(column.slice(0, 1), pattern)[0].as_py() and compute.all(found(column, pattern)).as_py()


def _arrow() -> Any:
    """Find pyarrow with its compute and CSV parts, untyped; None where it is not installed."""
    try:
        return tuple(import_module(name) for name in ("pyarrow", "pyarrow.compute", "pyarrow.csv"))
    except ModuleNotFoundError:
        return None


def _chunks(path: Path, data: IO[bytes]) -> Iterator[bytes]:
    """Read whole lines, some megabytes of them at a time."""
    rest = b""
    while chunk := data.read(BLOCK_BYTES):
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield rest + chunk[:cut]
            rest = chunk[cut:]
        else:
            rest += chunk
            if len(rest) > LONGEST_LINE_BYTES:
                raise ReplayError(f"{path}: a line of more than {LONGEST_LINE_BYTES >> 20} MB; is it a CSV file?")
    if rest:
        yield rest


def _at_bytes(raw: BufferedReader) -> int:
    """Tell how far the file itself has been read, packed or not; 0 for a pipe."""
    return raw.tell() if raw.seekable() else 0
