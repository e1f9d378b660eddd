"""The rows of a CSV file as events: subject, time and, where there are columns for them, segment and time zone.

The rule: every row is an event, or nothing is answered. A row that is short, or has no subject or no readable time, is
an error that names the file, the row and the fix; none is skipped or guessed.

Times are ISO 8601 (`1997-01-12`, `2025-03-01T16:00:00+01:00`; without an offset they are UTC), or seconds since 1970,
with or without a fraction. Subjects of digits alone are integers, as campaigns have them; everything else is text, of
which more than 512 bytes become the hash by which a limiter knows such a key of a request.

1 to 2 µs a row; `blocks` reads plain files faster.
"""

import csv
import gzip
import re
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from capline.model.clock import LATEST_US
from capline.model.errors import CaplineError, InvalidValueError
from capline.model.subject import LARGEST_ID, Subject, check_subject, short_subject
from capline.model.zone import check_zone
from capline.support.interruptible import interruptible

_SECONDS = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,6})0*)?")
_HOUR_24 = re.compile(r"[^\d:.+W-]24")
"""24:00, which only Python 3.14 and later read: refused, so that a file means the same everywhere."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
_LONGEST_SHOWN = 40
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MOST_DIGITS = len(str(LARGEST_ID))


class ReplayError(InvalidValueError):
    """A file of events that cannot be replayed; the message names the row."""


class Columns(NamedTuple):
    """The columns to read, by name; None for a segment or a zone that is not read, or for what is to be found out."""

    subject: str | None
    time: str | None
    segment: str | None = None
    zone: str | None = None


class Event(NamedTuple):
    """One row: `row` counts from 1, the header and blank lines left out; `at_us` is in microseconds since 1970."""

    row: int
    subject: Subject
    at_us: int
    segment: str | None
    zone: str | None = None


class Layout(NamedTuple):
    """Where the columns of a file are, counted from 0; `fields` is how many each row has."""

    path: Path
    fields: int
    subject: int
    time: int
    segment: int | None
    zone: int | None


def layout_of(path: Path, header: Sequence[str] | None, columns: Columns) -> Layout:
    """Find the columns in a header; raises `ReplayError` where one is missing, or there twice."""
    if header is None:
        raise ReplayError(f"{path}: empty; it begins with a header like subject,time")
    subject, time, segment, zone = columns
    return Layout(
        path,
        len(header),
        _place(path, header, str(subject)),
        _place(path, header, str(time)),
        None if segment is None else _place(path, header, segment),
        None if zone is None else _place(path, header, zone),
    )


def events_of(layout: Layout, rows: Iterable[list[str]], row: int = 0) -> Iterator[Event]:
    """Read rows of fields, each checked; `row` of them came before. Blank lines are skipped."""
    path, width, subject_at, time_at, segment_at, zone_at = layout
    for fields in rows:
        if not fields:
            continue
        row += 1
        if len(fields) != width:
            raise ReplayError(f"{path}, row {row}: {len(fields)} fields, and the header has {width}")
        try:
            subject = subject_of(fields[subject_at])
            at_us = instant_us(fields[time_at])
            zone = check_zone(fields[zone_at]) if zone_at is not None and fields[zone_at] else None
        except CaplineError as error:
            raise ReplayError(f"{path}, row {row}: {error}") from None
        segment = (fields[segment_at] or None) if segment_at is not None else None
        yield Event(row, subject, at_us, segment, zone)


def no_rows(path: Path) -> ReplayError:
    """The error for a file that has only a header."""
    return ReplayError(f"{path}: no rows below the header; there is nothing to replay")


@lru_cache(maxsize=4096)
def instant_us(text: str) -> int:
    """Read an ISO 8601 date or time, or seconds since 1970, as microseconds since 1970; raises `InvalidValueError`."""
    seconds = _SECONDS.fullmatch(text.strip())
    if seconds:
        at_us = int(seconds[1]) * 1_000_000 + int((seconds[2] or "").ljust(6, "0"))
        if at_us > LATEST_US:
            raise InvalidValueError(
                f"time {text!r} is past the year 2255; numbers are seconds since 1970, not milliseconds"
            )
        return at_us
    try:
        at = datetime.fromisoformat("" if _HOUR_24.search(text) else text.strip())
    except ValueError:
        raise InvalidValueError(
            f"time {shown(text)} is neither ISO 8601, like 2025-03-01T16:00:00Z, nor seconds since 1970"
        ) from None
    at_us = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND
    if not 0 <= at_us <= LATEST_US:
        raise InvalidValueError(f"time {text!r} is not between 1970 and 2255")
    return at_us


def subject_of(text: str) -> Subject:
    """Read digits as the integer, other text as itself, or as its hash if it is long; raises if it is empty."""
    if text.isascii() and text.isdecimal():
        digits = text.lstrip("0") or "0"
        if len(digits) <= _MOST_DIGITS and int(digits) <= LARGEST_ID:
            return int(digits)
    return check_subject(short_subject(text))


def _place(path: Path, header: Sequence[str], column: str) -> int:
    found = [place for place, name in enumerate(header) if name.strip() == column]
    if len(found) == 1:
        return found[0]
    if found:
        raise ReplayError(f"{path}: {len(found)} columns are called {column!r}; give each a name of its own")
    raise ReplayError(f"{path}: no column {shown(column)}; there are: {shown(', '.join(header))}")


def shown(text: str) -> str:
    """The text in quotes, cut where it is long."""
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


class Opened(NamedTuple):
    """A file that is read: its bytes unpacked, the file itself, and the bytes that it starts with."""

    data: IO[bytes]
    raw: BufferedReader
    start: bytes


@contextmanager
def reading(path: Path) -> Generator[Opened]:
    """Open the file, or standard input for `-`; gzip and zstd are unpacked, whatever its name.

    Whatever is wrong with its bytes, at any row, becomes one `ReplayError`.
    """
    try:
        with interruptible(sys.stdin.buffer) if str(path) == "-" else path.open("rb") as file:
            raw = cast("BufferedReader", file)
            start = raw.peek(len(_ZSTD))[: len(_ZSTD)]
            with (
                gzip.open(raw)
                if start.startswith(_GZIP)
                else _zstd(path, raw)
                if start.startswith(_ZSTD)
                else nullcontext(raw) as data
            ):
                yield Opened(cast("IO[bytes]", data), raw, start)
    except FileNotFoundError:
        raise ReplayError(f"{path}: no such file; name a file of events") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ReplayError(f"{path}: not a whole gzip file ({error}); copy it again") from None
    except UnicodeDecodeError as error:
        raise ReplayError(f"{path}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise ReplayError(f"{path}: not readable as CSV ({error})") from None
    except OSError as error:
        raise ReplayError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None


def _zstd(path: Path, raw: BufferedReader) -> Any:
    try:
        arrow = import_module("pyarrow")
    except ModuleNotFoundError:
        raise needs_arrow(path, "zstd") from None
    return arrow.CompressedInputStream(raw, "zstd")


def needs_arrow(path: Path, what: str) -> ReplayError:
    """The error for a file that only pyarrow reads, where it is not installed."""
    return ReplayError(f'{path}: {what} is read with pyarrow: pip install "capline[segments]"')
