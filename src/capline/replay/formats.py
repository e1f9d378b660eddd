"""What a file of events is, and which of its columns to read, where there is one safe guess.

The bytes say what a file is, whatever its name: Parquet, JSON lines, an access log in the common or the combined form,
an export of logs, or else CSV with a header. Lines of an access log may be broken, as a server stops in the middle of
one: `LogLines` leaves them out, and counts them.
"""

import re
from calendar import month_abbr
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from capline.model.errors import CaplineError
from capline.replay.events import Columns, ReplayError
from capline.replay.exported import is_export
from capline.tables.times import EPOCH, MICROSECOND, read_time_us

CSV, JSON, ACCESS, PARQUET = "CSV", "JSON lines", "an access log", "Parquet"
EXPORT = "an export of logs"

_SUFFIXES = {".csv": CSV, ".jsonl": JSON, ".ndjson": JSON, ".parquet": PARQUET}
_PACKED = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
_LOOKED_AT = 1 << 16
"""Bytes in which a line must say what the file is."""

_WHO = (
    "user|customer|client|account|member|recipient|visitor|person|provider|tenant|phone|email|"
    "address|(api_?)?key|(remote|ip)_?addr(ess)?|(client_?|remote_?)?ip"
)
_SUBJECT = re.compile(rf"({_WHO})(_?id)?", re.IGNORECASE)
_TIME = re.compile(
    r"@?timestamp|ts|date_?time|date|at|when|(created|sent|event|occurred)_?(at|time|date)", re.IGNORECASE
)

_TEXT = rb'[^"\\\n]*(?:\\.[^"\\\n]*)*'
_ACCESS = {
    "address": (b"^", rb"\S+", b""),
    "ident": (b" ", rb"\S+", b""),
    "user": (b" ", rb"[^\n\[]+", b""),
    "time": (rb" \[", rb"[^\]\n]+", rb"\]"),
    "request": (b' "', _TEXT, b'"'),
    "status": (b" ", rb"\d{3}", b""),
    "size": (b" ", rb"(?:\d+|-)", b""),
    "referer": (b' "', _TEXT, b'"'),
    "agent": (b' "', _TEXT, b'"'),
}
"""The fields of a line: what stands before each, the field, and what stands after it."""
_HOUR = re.compile(rb"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d) ([+-])(\d\d)(\d\d)")
_PAST_THE_HOUR_US = {b":%02d:%02d" % (at // 60, at % 60): at * 1_000_000 for at in range(3600)}
_MONTHS = {month.encode(): number for number, month in enumerate(month_abbr)}


def sniff(start: bytes) -> str:
    """What the file is, by its first bytes, unpacked."""
    lines = start[:_LOOKED_AT].split(b"\n")
    access = _access_pattern(("address", "time"))
    if any(access.match(line) for line in lines):
        return ACCESS
    objects = [line for line in lines if line.startswith(b"{") and _fields(line)]
    return CSV if not objects else EXPORT if is_export(objects[0]) else JSON


def misnamed(path: Path, start: bytes, form: str) -> str | None:
    """A sentence where the file's name says something else than its bytes."""
    *_, before, last = ("", "", *path.suffixes)
    packing = _PACKED.get(last)
    said = _SUFFIXES.get(before if packing else last)
    if packing and not start.startswith(packing):
        return f"{path}: not packed, whatever its name says"
    return f"{path}: {form}, whatever its name says" if said not in (None, form) else None


def named_columns(
    path: Path, names: Sequence[str], first: Sequence[str], wanted: Columns, missing: Sequence[str]
) -> Columns:
    """The columns with those that nobody named: the only one whose name, or for a time whose first value, fits.

    Raises one `ReplayError` for all that is missing; `missing` is what the caller lacks besides.
    """
    stripped = [name.strip() for name in names]
    lacks = [*missing]
    subjects = [name for name in stripped if _SUBJECT.fullmatch(name)]
    subject = wanted.subject or ("address" if names == [*_ACCESS] else _only("subject", subjects, stripped))
    if subject is None:
        lacks.append("the column of subjects (--subject-column NAME)")
    times = [name for name in stripped if _TIME.fullmatch(name)]
    if not times:
        times = [name for name, value in zip(stripped, first, strict=False) if _is_time(value)]
    time = wanted.time or _only("time", times, stripped)
    if time is None:
        lacks.append("the column of times (--time-column NAME)")
    if lacks:
        raise ReplayError(f"{path}: say {', and '.join(lacks)}; its columns are: {', '.join(stripped)[:400]}")
    return wanted._replace(subject=subject, time=time)


def _only(name: str, fitting: list[str], names: Sequence[str]) -> str | None:
    return name if name in names else fitting[0] if len(fitting) == 1 else None


def _is_time(value: str) -> bool:
    try:
        return not value.isdecimal() and len(value) >= len("20250101") and read_time_us(value) > 0
    except CaplineError:
        return False


class LogLines:
    """Reads lines of an access log, or JSON lines: their subject, time, segment and zone, as they stand there."""

    def __init__(self, form: str, columns: Columns) -> None:
        names = [name for name in columns if name is not None]
        # With two groups or more, matches are tuples.
        access = [name for name in _ACCESS if name in (*names, "address", "time")]
        self._names = access if form == ACCESS else list(dict.fromkeys(names))
        self.places = [None if name is None else self._names.index(name) for name in columns]
        """Where in a row the subject, the time, the segment and the zone are."""
        self._pattern = _access_pattern(self._names) if form == ACCESS else None

    def rows(self, chunk: bytes) -> list[Any]:
        """The row of each line; None for a broken line, False for a blank one."""
        if self._pattern is None:
            return [line.strip() and self._of_json(line) for line in chunk.removesuffix(b"\n").split(b"\n")]
        found = self._pattern.findall(chunk)
        if len(found) != chunk.count(b"\n", 0, -1) + 1:
            lines = chunk.removesuffix(b"\n").split(b"\n")
            matches = [self._pattern.match(line) for line in lines]
            found = [
                match.groups() if match else line.strip() and None for match, line in zip(matches, lines, strict=True)
            ]
        return found

    def _of_json(self, line: bytes) -> tuple[str, ...] | None:
        fields = _fields(line)
        if fields is None:
            return None
        values = [fields.get(name) for name in self._names]
        return tuple("" if value is None else str(value) for value in values)


def first_line(form: str, start: bytes) -> tuple[list[str], list[str]]:
    """The columns of an access log or of JSON lines, and the values in the first line that can be read."""
    if form == ACCESS:
        return list(_ACCESS), []
    fields = next(fields for line in start.split(b"\n") if (fields := _fields(line)))
    return [*fields], [str(value) for value in fields.values()]


def log_instant_us(text: bytes | str) -> int:
    """Read the time of an access log, like 17/May/2015:10:05:03 +0000, or of JSON lines; -1 for any other text."""
    if isinstance(text, str):
        return _text_us(text)
    hour_us, past_us = _hour_us(text[:14] + text[20:]), _PAST_THE_HOUR_US.get(text[14:20])
    return -1 if hour_us is None or past_us is None else max(hour_us + past_us, -1)


@lru_cache(maxsize=1 << 16)
def _text_us(text: str) -> int:
    try:
        return read_time_us(text)
    except ValueError:
        return -1


@lru_cache(maxsize=1 << 12)
def _hour_us(text: bytes) -> int | None:
    """When the hour of this stamp, like 17/May/2015:10 +0000, begins; None for any other text."""
    found = _HOUR.fullmatch(text)
    if found is None:
        return None
    day, month, year, hour, sign, hours, minutes = found.groups()
    try:
        at = datetime(int(year), _MONTHS.get(month, 0), int(day), int(hour), tzinfo=UTC)
    except ValueError:
        return None
    east = timedelta(hours=int(hours), minutes=int(minutes))
    return (at - EPOCH - (east if sign == b"+" else -east)) // MICROSECOND


def _access_pattern(captured: Sequence[str]) -> re.Pattern[bytes]:
    names = [*_ACCESS]
    needed = names[: max(names.index(name) for name in (*captured, "size")) + 1]
    parts = [
        before + (b"(%s)" if name in captured else b"%s") % field + after
        for name, (before, field, after) in _ACCESS.items()
        if name in needed
    ]
    # The rest of the line is taken too, as the search for the next one is slower.
    return re.compile(b"".join([*parts, rb"[^\n]*"]), re.MULTILINE)


def _fields(line: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
