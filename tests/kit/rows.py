"""The events of a CSV file row by row, which every faster way of reading must equal."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from capline.replay.events import Columns, Event, events_of, layout_of, no_rows, reading


def read_events(path: Path, *columns: str | None) -> Iterator[Event]:
    """In the order of the file; `columns` name the subject, the time, and then the segment and the zone."""
    with reading(path) as opened:
        rows = csv.reader(io.TextIOWrapper(opened.data, encoding="utf-8-sig", newline=""), strict=True)
        event = None
        for event in events_of(layout_of(path, next(rows, None), Columns(*columns)), rows):
            yield event
        if event is None:
            raise no_rows(path)
