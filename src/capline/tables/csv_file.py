"""The columns of a CSV file as texts, some megabytes of it at a time.

Arrow reads most blocks. From the first one on that it might read otherwise than Python's `csv` (a quote within a value,
a row of another length, a line break that is a fault), `csv` reads the rest row by row. So both give the same rows, and
the same errors.
"""

import csv
import io
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, Any, NamedTuple

import numpy as np

from capline.model.errors import InvalidValueError
from capline.tables.columns import arrow, columns_of

BLOCK_BYTES = 4 << 20
BLOCK_ROWS = 1 << 16
LONGEST_LINE_BYTES = 64 << 20
_LONGEST_SHOWN = 60


class Block(NamedTuple):
    """Some rows: the number of the first one, from 1 without the header and blank lines, and the wanted columns."""

    first_row: int
    columns: list[Any]


def chunks_of(path: object, data: IO[bytes], fault: type[InvalidValueError]) -> Iterator[bytes]:
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
                raise fault(f"{path}: a line of more than {LONGEST_LINE_BYTES >> 20} MB; is it a CSV file?")
    if rest:
        yield rest


class CsvFile:
    """A CSV file by its chunks of whole lines: `names` has its header, None if it is empty.

    What is wrong is a `fault` that names the file and the row; or what decoding and unpacking raise.
    """

    def __init__(self, path: object, chunks: Iterator[bytes], fault: type[InvalidValueError]) -> None:
        self._path, self._chunks, self._fault = path, chunks, fault
        start = next(chunks, b"").removeprefix(b"\xef\xbb\xbf")
        ends: list[int] = [0]

        def lines() -> Iterator[str]:
            for line in start.splitlines(keepends=True):
                ends.append(ends[-1] + len(line))
                yield line.decode()

        try:
            self.names = next(csv.reader(lines(), strict=True), None)
        except csv.Error as error:
            raise fault(f"{path}: not readable as CSV ({error})") from None
        self._rest = start[ends[-1] :]

    def first(self) -> Sequence[str]:
        """The values of the first row, as far as they can be read."""
        text = self._rest[: 1 << 16].decode(errors="replace")
        return next((fields for fields in csv.reader(io.StringIO(text, newline="")) if fields), list[str]())

    def blocks(self, places: Sequence[int], *, line_breaks: bool) -> Generator[Block]:
        """The columns at these places, block by block; a value may have line breaks, or is then a fault."""
        row, chunks = 1, chain([self._rest], self._chunks)
        for chunk in chunks:
            if not chunk.strip(b"\r\n"):
                continue
            columns = None if arrow() is None else self._by_arrow(chunk, places, line_breaks=line_breaks)
            if columns is None:
                yield from self._by_rows(chain([chunk], chunks), row, places, line_breaks=line_breaks)
                return
            yield Block(row, columns)
            row += len(columns[0])

    def _by_arrow(self, chunk: bytes, places: Sequence[int], *, line_breaks: bool) -> list[Any] | None:
        quoted = b'"' in chunk
        if b"\0" in chunk or (quoted and not _quotes_in_pairs(chunk, line_breaks=line_breaks)):
            return None
        if not chunk.isascii():
            chunk.decode()
        pa, table = arrow(), arrow(".csv")
        names = [f"{place}" for place in range(len(self.names or ()))]
        wanted = [names[place] for place in dict.fromkeys(places)]
        try:
            read = table.read_csv(
                pa.BufferReader(chunk),
                table.ReadOptions(column_names=names, block_size=len(chunk) + 1, use_threads=False),
                table.ParseOptions(quote_char='"' if quoted else False, newlines_in_values=quoted),
                table.ConvertOptions(
                    column_types=dict.fromkeys(wanted, pa.string()), include_columns=wanted, strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid:
            return None
        return [read.column(names[place]).combine_chunks() for place in places]

    def _by_rows(
        self, chunks: Iterable[bytes], row: int, places: Sequence[int], *, line_breaks: bool
    ) -> Generator[Block]:
        some: list[list[str]] = []
        try:
            for fields in self._checked(chunks, row, line_breaks=line_breaks):
                some.append(fields)
                if len(some) == BLOCK_ROWS:
                    yield self._block(row, some, places)
                    row, some = row + len(some), []
        except Exception:
            if some:  # which may have faults of their own, and come first
                yield self._block(row, some, places)
            raise
        if some:
            yield self._block(row, some, places)

    def _checked(self, chunks: Iterable[bytes], row: int, *, line_breaks: bool) -> Iterator[list[str]]:
        """The rows from this one on, each as long as the header."""
        header = self.names or []
        lines = chain.from_iterable(io.StringIO(chunk.decode(), newline="") for chunk in chunks)
        try:
            rows = (fields for fields in csv.reader(lines, strict=True) if fields)
            for fields in rows:
                where = f"{self._path}, row {row}"
                if len(fields) != len(header):
                    text = ",".join(fields)[:_LONGEST_SHOWN]
                    raise self._fault(
                        f"{where}: {len(fields)} values where the header has {len(header)}: {text!r}; "
                        "fix the row, or get the whole file"
                    )
                if not line_breaks and "\n" in "".join(fields):
                    name = next(name for name, text in zip(header, fields, strict=True) if "\n" in text)
                    raise self._fault(
                        f"{where}: {name} has a line break inside quotes; close the quote, or leave line breaks out"
                    )
                yield fields
                row += 1
        except csv.Error as error:
            what = f"not readable as CSV ({error}); is a quote open, or out of place?"
            raise self._fault(f"{self._path}, row {row}: {what}") from None

    @staticmethod
    def _block(row: int, some: Sequence[Sequence[str]], places: Sequence[int]) -> Block:
        return Block(row, columns_of([[fields[place] for place in places] for fields in some]))


def _quotes_in_pairs(chunk: bytes, *, line_breaks: bool) -> bool:
    """Whether quotes stand in pairs, each around a whole value, so that none is part of a value.

    And no line break is, unless `line_breaks` may be.
    """
    data = np.frombuffer(b"\n" + chunk + b"\n", np.uint8)
    quotes = np.flatnonzero(data == ord('"'))
    ends = np.zeros(256, np.bool_)
    ends[[*b",\r\n"]] = True
    if len(quotes) % 2 or not (ends[data[quotes[::2] - 1]].all() and ends[data[quotes[1::2] + 1]].all()):
        return False
    return line_breaks or not (np.searchsorted(quotes, np.flatnonzero(data == ord("\n"))) % 2).any()
