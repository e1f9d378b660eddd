"""Overrides in bulk, as CSV or as lines of JSON.

    subject,limits,granularity                                       in any order, the last may be left out
    user:42,10/day;50/week,
    {"subject": 42, "limits": ["10/day"], "granularity": null}

The rule: a subject once; empty limits, or null, remove its override. A fault is told with its line.
"""

import csv
import re
from collections.abc import Iterable, Iterator

import msgspec

from capline.model.errors import CaplineError, InvalidValueError
from capline.model.limit import Limit
from capline.model.subject import Subject, check_subject, parse_subject, subject_text

_KEYS = re.compile(r'"(\w+)"\s*:', re.ASCII)
_COLUMNS = ["limits", "subject"], ["granularity", "limits", "subject"]

Wanted = tuple[dict[Subject, list[str] | None], dict[Subject, str]]
"""The limits of each subject, None for none, and the granularity of those that have one."""


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    subject: Subject
    limits: list[str] | None
    granularity: str | None = None


def read_overrides(lines: Iterable[str], *, is_csv: bool) -> Wanted:
    """What the lines ask for; raises `InvalidValueError` with the line that is wrong."""
    limits: dict[Subject, list[str] | None] = {}
    granularity: dict[Subject, str] = {}
    read = _Counted(lines)
    try:
        for row in _of_csv(read) if is_csv else map(_of_json, read):
            if check_subject(row.subject) in limits:
                raise InvalidValueError(f"{subject_text(row.subject)} is there twice; give it once")
            limits[row.subject] = row.limits
            if row.granularity is not None:
                granularity[row.subject] = row.granularity
    except UnicodeDecodeError:  # of a block of lines: which of them is not known
        raise InvalidValueError("a byte is not UTF-8; save it as UTF-8") from None
    except (CaplineError, csv.Error, msgspec.MsgspecError) as error:
        raise InvalidValueError(f"line {max(1, read.count)}: {error}") from None
    return limits, granularity


class _Counted:
    """The lines, and how many of them were read."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines, self.count = lines, 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.count += 1
            yield line


def _of_csv(lines: Iterable[str]) -> Iterator[_Row]:
    reader = csv.DictReader(lines, strict=True)
    if sorted(reader.fieldnames or ()) not in _COLUMNS:
        raise InvalidValueError("the header names the columns subject and limits, and may name granularity")
    for cells in reader:
        if None in cells or None in cells.values():
            raise InvalidValueError("a row has a subject and limits, which may be empty")
        texts = [str(limit) for limit in Limit.parse_many(cells["limits"])] if cells["limits"] else None
        yield _Row(parse_subject(cells["subject"]), texts, cells.get("granularity") or None)


def _of_json(line: str) -> _Row:
    keys = _KEYS.findall(line)
    if len(set(keys)) < len(keys):
        raise InvalidValueError(f"a key twice, of {', '.join(keys)}; give each once")
    return msgspec.json.decode(line, type=_Row)
