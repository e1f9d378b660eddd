"""Reads events by columns: the rows of a file as blocks of arrays, ten times as fast as row by row.

The rule: every row is an event, or nothing is answered. A row that is short, or has no subject or no readable time, is
an error that names the file, the row and the fix; none is skipped or guessed. But lines of logs, which may be broken,
are left out and counted. Each distinct subject, time, segment and zone of a block is checked once.

A block is some 4 MB of the file. Only the distinct subjects, and pairs of segment and zone, are kept beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capline.model.errors import CaplineError
from capline.model.subject import Subject
from capline.model.zone import check_zone
from capline.replay import formats
from capline.replay.events import (
    Columns,
    Opened,
    ReplayError,
    needs_arrow,
    no_rows,
    places_of,
    reading,
    subject_of,
)
from capline.replay.exported import exported_events
from capline.replay.ordered import BLOCK_ROWS, Events, OrderedEvents
from capline.tables.columns import arrow, distinct, first_bad, microseconds, texts_of
from capline.tables.csv_file import CsvFile, chunks_of
from capline.tables.times import has_zone, read_time_us, shown

HEAD_BYTES = 1 << 16
"""Bytes in which the header and the first row are looked for."""
MOST_TOLD = 5
"""Broken lines that are told, of all that are counted."""


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
        self._subjects, self._kinds = _Codes(), _Codes()
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
            places_of(self._path, names, found)
        told = formats.misnamed(self._path, opened.start, form)
        if told is not None:
            self.notes.append(told)
        if found != self._wanted:
            what = f"subjects are {found.subject!r}, times {found.time!r}"
            self.notes.append(f"{self._path}: read as {form}; {what} (--subject-column, --time-column)")
        at = dict(zip((name.strip() for name in names), first, strict=False)).get(str(found.time), "")
        if not has_zone(at):
            self._note_no_zone(at)
        return found

    def _note_no_zone(self, like: object) -> None:
        self.notes.append(f"{self._path}: times without a zone, like {like}, are read as UTC")

    def _text(self, opened: Opened) -> Iterator[Block]:
        chunks = chunks_of(self._path, opened.data, ReplayError)
        start = next(chunks, b"").removeprefix(b"\xef\xbb\xbf")
        form = formats.sniff(start)
        if form == formats.EXPORT:
            return self._export(start, chunks, opened)
        return self._csv(start, chunks, opened) if form == formats.CSV else self._lines(form, start, chunks, opened)

    def _csv(self, start: bytes, chunks: Iterator[bytes], opened: Opened) -> Iterator[Block]:
        if b"\0" in start[:HEAD_BYTES]:
            raise ReplayError(f"{self._path}: not text in UTF-8, nor Parquet, gzip or zstd; save it as one of them")
        file = CsvFile(self._path, chain([start], chunks), ReplayError)
        if file.names is None:
            raise ReplayError(f"{self._path}: empty; it begins with a header like subject,time")
        places = places_of(self._path, file.names, self._columns(formats.CSV, opened, file.names, file.first()))
        for first_row, columns in file.blocks([place for place in places if place is not None], line_breaks=True):
            there = iter(columns)
            yield self._block(first_row, [None if place is None else next(there) for place in places], opened)

    def _export(self, start: bytes, chunks: Iterator[bytes], opened: Opened) -> Iterator[Block]:
        if any(self._wanted):
            raise ReplayError(f"{self._path}: an export of logs: it has no columns; leave the names of columns out")
        if self._missing:
            raise ReplayError(f"{self._path}: say {', and '.join(self._missing)}")
        self.notes.append(f"{self._path}: read as {formats.EXPORT}; each hit is an event")
        events, row = exported_events(self._path, chain([start], chunks), self.notes), 0
        while some := list(islice(events, BLOCK_ROWS)):
            subjects, at_us = zip(*some, strict=True)
            kinds = np.full(len(some), self._kinds[None, None], np.int32)
            yield Block(row, self._subjects.of(subjects), np.array(at_us, np.int64), kinds, _at_bytes(opened.raw))
            row += len(some)

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
        return self._kinds[segment or None, _zone_of(zone)]

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
        pa = arrow()
        if pa is None:
            raise needs_arrow(self._path, "Parquet")
        try:
            file = arrow(".parquet").ParquetFile(
                opened.raw if opened.raw.seekable() else pa.BufferReader(opened.raw.read()),
                page_checksum_verification=True,
            )
            names: list[str] = file.schema_arrow.names
            columns = self._columns(formats.PARQUET, opened, names, ())
            for name, kind in zip(names, file.schema_arrow.types, strict=True):
                if name == columns.time and (
                    pa.types.is_date(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)
                ):
                    self._note_no_zone(kind)
            there = [None if place is None else names[place] for place in places_of(self._path, names, columns)]
            row = 1
            for batch in file.iter_batches(BLOCK_ROWS, columns=[*filter(None, dict.fromkeys(there))]):
                yield self._block(row, [None if name is None else batch.column(name) for name in there], opened)
                row += len(batch)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ReplayError(f"{self._path}: not readable as Parquet ({str(error).splitlines()[0]})") from None

    def _block(self, first_row: int, columns: Sequence[Any], opened: Opened) -> Block:
        """The events in columns of subjects, times, segments and zones, of which the last two may be None."""
        subjects, times, segments, zones = columns
        try:
            some, where = distinct(texts_of(subjects))
            of_subject = self._subjects.of(map(subject_of, some))[where]
            at_us, _ = microseconds(times)
            kinds = self._pairs(segments, zones, len(where))
        except CaplineError:
            checks = ((subjects, subject_of), (times, read_time_us), (zones, _zone_of))
            faults = [first_bad(texts_of(column), check) for column, check in checks if column is not None]
            row, why = min(filter(None, faults), key=itemgetter(0))
            raise ReplayError(f"{self._path}, row {first_row + row}: {why}") from None
        return Block(first_row - 1, of_subject, at_us, kinds, _at_bytes(opened.raw))

    def _pairs(self, segments: Any, zones: Any, rows: int) -> NDArray[np.int32]:
        names, where = ([""], np.zeros(rows, np.int32)) if segments is None else distinct(texts_of(segments))
        places, at = ([""], np.zeros(rows, np.int32)) if zones is None else distinct(texts_of(zones))
        used, first, inverse = np.unique(
            where.astype(np.int64) * len(places) + at, return_index=True, return_inverse=True
        )
        codes = np.empty(len(used), np.int32)
        for i in np.argsort(first).tolist():
            segment, zone = divmod(int(used[i]), len(places))
            codes[i] = self._kinds[names[segment] or None, _zone_of(places[zone])]
        return codes[inverse]


def _zone_of(text: str) -> str | None:
    return check_zone(text) if text else None


def _at_bytes(raw: BufferedReader) -> int:
    """Tell how far the file itself has been read, packed or not; 0 for a pipe."""
    return raw.tell() if raw.seekable() else 0
