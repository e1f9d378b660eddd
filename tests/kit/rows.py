"""The events of a CSV file row by row, which every faster way of reading must equal."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from capline import CaplineError
from capline.model.subject import Subject
from capline.model.zone import check_zone
from capline.replay.events import Columns, ReplayError, no_rows, places_of, reading, subject_of
from capline.tables.times import read_time_us


class Event(NamedTuple):
    """One row: `row` counts from 1, the header and blank lines left out; `at_us` is in microseconds since 1970."""

    row: int
    subject: Subject
    at_us: int
    segment: str | None
    zone: str | None = None


def read_events(path: Path, *columns: str | None) -> Iterator[Event]:
    """In the order of the file; `columns` name the subject, the time, and then the segment and the zone."""
    row = 0
    try:
        for event in _events(path, Columns(*columns)):
            row = event.row
            yield event
    except csv.Error as error:
        what = f"not readable as CSV ({error}); is a quote open, or out of place?"
        raise ReplayError(f"{path}, row {row + 1}: {what}") from None


def _events(path: Path, columns: Columns) -> Iterator[Event]:
    with reading(path) as opened:
        rows = csv.reader(io.TextIOWrapper(opened.data, encoding="utf-8-sig", newline=""), strict=True)
        header = next(rows, None)
        if header is None:
            raise ReplayError(f"{path}: empty; it begins with a header like subject,time")
        places, row = places_of(path, header, columns), 0
        for row, fields in enumerate((fields for fields in rows if fields), 1):
            if len(fields) != len(header):
                text = ",".join(fields)[:60]
                raise ReplayError(
                    f"{path}, row {row}: {len(fields)} values where the header has {len(header)}: {text!r}; "
                    "fix the row, or get the whole file"
                )
            subject, time, segment, zone = ("" if place is None else fields[place] for place in places)
            try:
                yield Event(
                    row, subject_of(subject), read_time_us(time), segment or None, check_zone(zone) if zone else None
                )
            except CaplineError as error:
                raise ReplayError(f"{path}, row {row}: {error}") from None
        if not row:
            raise no_rows(path)
