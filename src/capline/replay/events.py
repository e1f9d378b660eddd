"""Files of events, opened whatever packs them, and what is in their columns: subject, time, segment and time zone.

Subjects of digits alone are integers, as campaigns have them; everything else is text, of which more than 512 bytes
become the hash by which a limiter knows such a key of a request.
"""

import gzip
import sys
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from capline.model.errors import InvalidValueError
from capline.model.subject import LARGEST_ID, Subject, check_subject, short_subject
from capline.support.interruptible import interruptible
from capline.tables.times import shown

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


def places_of(path: Path, header: Sequence[str], columns: Columns) -> list[int | None]:
    """Where these columns are in a header; raises `ReplayError` where one is missing, or there twice."""
    return [None if name is None else _place(path, header, name) for name in columns]


def no_rows(path: Path) -> ReplayError:
    """The error for a file that has only a header."""
    return ReplayError(f"{path}: no rows below the header; there is nothing to replay")


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
