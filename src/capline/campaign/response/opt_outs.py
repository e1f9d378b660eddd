"""Adds those who unsubscribed to the file of opt-outs that campaigns exclude (`exclude: {csv: optouts.csv}`).

The rule: readers see the old file or the new one, never half of one, and of two writers neither loses the other's rows:
the file is replaced under a lock beside it. Rows that are there stay as they are.
"""

import csv
import io
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from capline.model.errors import SegmentError
from capline.segment.files import os_errors, read, replacing
from capline.support.private import private_opener
from capline.support.system import lock_file, take_rights

_MOST_BYTES = 4 << 30


def add_opt_outs(path: Path, ids: Iterable[str], column: str = "id") -> int:
    """Add those who are not in the CSV file yet; how many they were. A missing file is made."""
    if path.suffix != ".csv":
        raise SegmentError(f"{path}: the name of a file of opt-outs ends in .csv")
    lock = path.with_name(f".{path.name}.lock")
    with os_errors("lock it", lock), closing(open(lock, "ab", opener=private_opener)) as held:
        lock_file(held.fileno())
        text = _text(path) if path.exists() else f"{column}\n"
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        try:
            header = next(rows, list[str]())
            if header.count(column) != 1:
                raise SegmentError(f"{path}: no column {column!r}; begin it with a row that says so")
            place = header.index(column)
            there = {row[place] for row in rows if row}
        except (csv.Error, IndexError):
            raise SegmentError(f"{path}: a row is not like its header; mend it first") from None
        new = sorted(set(ids) - there)
        if new or not path.exists():
            added = io.StringIO(newline="")
            writer = csv.writer(added, lineterminator="\r\n" if "\r\n" in text else "\n")
            writer.writerows([each if at == place else "" for at in range(len(header))] for each in new)
            end = "" if text.endswith("\n") else "\n"
            with os_errors("write it", path), replacing(path, private_opener) as target:
                if path.exists():
                    take_rights(target.fileno(), path.stat())
                target.write(f"{text}{end}{added.getvalue()}".encode())
        return len(new)


def _text(path: Path) -> str:
    try:
        return read(path, _MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SegmentError(f"{path}: not UTF-8 text; save it as UTF-8") from None
