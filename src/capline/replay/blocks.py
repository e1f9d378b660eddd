"""Reads events by columns: the rows of a file as blocks of arrays, ten times as fast as row by row.

pyarrow reads plain blocks of CSV, and each distinct subject, segment and zone is checked once. From the first block
that pyarrow might read differently (a quote, an unusual time, any fault), `events` reads the rows. So both ways give
the same events, and the same errors at the same rows.

A block is some 4 MB of the file. Only the distinct subjects, and pairs of segment and zone, are kept beyond it.
"""

from __future__ import annotations

import csv
import io
from importlib import import_module
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from capline.model.clock import LATEST_US
from capline.model.errors import CaplineError
from capline.model.zone import check_zone
from capline.replay.events import (
    Event,
    Layout,
    ReplayError,
    events_of,
    layout_of,
    no_rows,
    reading,
    step_back,
    subject_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

    from capline.model.subject import Subject

__all__ = ["Block", "EventFile"]

BLOCK_BYTES = 4 << 20
LONGEST_LINE_BYTES = 64 << 20
BLOCK_ROWS = 1 << 16
"""Rows of a block that is read one by one, or was sorted."""

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


class _UnusualError(Exception):
    """A block that pyarrow might read differently from `events`."""


class EventFile:
    """A file of events, as blocks; see `events` for what a file is, and for the errors."""

    def __init__(
        self,
        path: Path,
        subject_column: str,
        time_column: str,
        segment_column: str | None = None,
        zone_column: str | None = None,
    ) -> None:
        self._path = path
        self._columns = subject_column, time_column, segment_column, zone_column
        self._subjects, self._kinds, self._arrow = _Codes(), _Codes(), _arrow()

    def subjects(self, start: int = 0) -> list[Subject]:
        """The subjects met so far, from this code on."""
        return list(islice(self._subjects, start, None))

    def kinds(self, start: int = 0) -> list[tuple[str | None, str | None]]:
        """The pairs of segment and zone met so far, from this code on."""
        return list(islice(self._kinds, start, None))

    def blocks(self, *, sort: bool = False) -> Iterator[Block]:
        """Yield the blocks in order of time: `sort` reads them all first, else a step back raises `ReplayError`.

        Events of one instant keep the order of the file. Sorting holds 40 bytes a row.
        """
        return _sorted(self._blocks()) if sort else self._checked()

    def _checked(self) -> Iterator[Block]:
        newest_us = 0
        for block in self._blocks():
            back = np.flatnonzero(np.diff(block.at_us, prepend=newest_us) < 0)
            if back.size:
                raise step_back(self._path, block.row + int(back[0]) + 1)
            newest_us = int(block.at_us[-1])
            yield block

    def _blocks(self) -> Iterator[Block]:
        with reading(self._path) as data:
            chunks = _chunks(self._path, data)
            first = next(chunks, b"").removeprefix(b"\xef\xbb\xbf")
            line, end, rest = first.partition(b"\n")
            layout = row = None
            if self._arrow is not None and line.strip() and b'"' not in line and b"\r" not in line.rstrip(b"\r"):
                header = next(csv.reader([line.decode()]))
                layout, row = layout_of(self._path, header, *self._columns), 0
                for chunk in chain([rest], chunks):
                    try:
                        block = self._plain(layout, chunk, row, data)
                    except _UnusualError:
                        chunks = chain([chunk], chunks)
                        break
                    if block is not None:
                        yield block
                        row += len(block.at_us)
                else:
                    chunks = iter(())
            else:
                chunks = chain([line + end + rest], chunks)
            for block in self._one_by_one(layout, chunks, row or 0, data):
                yield block
                row = block.row + len(block.at_us)
            if not row:
                raise no_rows(self._path)

    def _one_by_one(self, layout: Layout | None, chunks: Iterator[bytes], row: int, data: IO[bytes]) -> Iterator[Block]:
        lines = chain.from_iterable(io.StringIO(chunk.decode(), newline="") for chunk in chunks)
        reader = csv.reader(lines, strict=True)
        if layout is None:
            layout = layout_of(self._path, next(reader, None), *self._columns)
        events = events_of(layout, reader, row)
        while some := list(islice(events, BLOCK_ROWS)):
            yield self._of_events(some, data)

    def _of_events(self, events: list[Event], data: IO[bytes]) -> Block:
        return Block(
            events[0].row - 1,
            self._subjects.of(event.subject for event in events),
            np.fromiter((event.at_us for event in events), np.int64),
            self._kinds.of((event.segment, event.zone) for event in events),
            _at_bytes(data),
        )

    def _plain(self, layout: Layout, chunk: bytes, row: int, data: IO[bytes]) -> Block | None:
        """Read one chunk by columns; None where it has no row. Raises `_UnusualError` where it must be read by rows."""
        if b'"' in chunk or b"\0" in chunk:
            raise _UnusualError
        if not chunk.strip(b"\r\n"):
            return None
        if not chunk.isascii():
            chunk.decode()
        table = self._table(layout, chunk)
        subjects, where = _distinct(table.column("subject"))
        try:
            of_subject = self._subjects.of(map(subject_of, subjects))
            segments = zones = None
            if layout.segment is not None:
                segments = _distinct(table.column("segment"))
            if layout.zone is not None:
                zones = _distinct(table.column("zone"))
                for zone in filter(None, zones[0]):
                    check_zone(zone)
        except CaplineError:
            raise _UnusualError from None
        kinds = self._pairs(segments, zones, len(where))
        return Block(row, of_subject[where], self._instants(table.column("time")), kinds, _at_bytes(data))

    def _table(self, layout: Layout, chunk: bytes) -> Any:
        pa, _, arrow_csv = self._arrow
        named = {layout.subject: "subject"}
        for place, name in ((layout.time, "time"), (layout.segment, "segment"), (layout.zone, "zone")):
            if place is not None and named.setdefault(place, name) != name:
                raise _UnusualError  # One column in two roles.
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
            if _all_match(compute, column, _WHOLE):
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

    def _pairs(self, segments: _Distinct | None, zones: _Distinct | None, rows: int) -> NDArray[np.int32]:
        """Codes of the pairs of segment and zone."""
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


def _at_bytes(data: Any) -> int:
    """Tell how far the file itself has been read, packed or not; 0 for a pipe."""
    raw = data.fileobj if hasattr(data, "fileobj") else data
    return raw.tell() if raw.seekable() else 0


def _sorted(blocks: Iterator[Block]) -> Iterator[Block]:
    every = list(blocks)
    at_us = np.concatenate([block.at_us for block in every])
    subjects = np.concatenate([block.subjects for block in every])
    kinds = np.concatenate([block.kinds for block in every])
    at_bytes = every[-1].at_bytes
    del every
    order = np.argsort(at_us, kind="stable")
    for start in range(0, len(order), BLOCK_ROWS):
        rows = order[start : start + BLOCK_ROWS]
        yield Block(start, subjects[rows], at_us[rows], kinds[rows], at_bytes)
