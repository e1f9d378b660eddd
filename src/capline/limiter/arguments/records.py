"""Records of exported and imported logs, and their lines of JSON.

    {"log": "promo/push", "subject": 42, "hits": [[1700000000000000, 1], [1700000003000000, 2]]}
    {"log": "promo", "subject": "user:42", "hits": [[1700000003000000, 2, "9ae16a3b2f90404f"]], "keyed": true}
    {"policy": "promo", "subject": "user:42", "at": "2026-01-31T16:00:00Z", "cost": 1, "channel": "push", "id": "m1"}

The first two are logs as a store has it: stamps in microseconds, units, and 64 bits of the hit's id where it had one. A
long log is several such lines. `"keyed": true` marks a subject that is a keyed hash already. The second form is for
whoever has past sends in a table: `at` is seconds since 1970 or ISO 8601 with a zone; `cost`, `channel` and `id` may be
left out. A record is bounded, so a stream of them takes a bounded memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import add
from typing import TYPE_CHECKING, Any

import msgspec

from capline.limiter.arguments.checks import count_of
from capline.model.clock import LATEST_US
from capline.model.errors import (
    CaplineError,
    InvalidTypeError,
    InvalidValueError,
    StoreDamagedError,
    StoreVersionError,
    quoted,
)
from capline.model.limit import LARGEST_QUOTA
from capline.model.subject import Subject
from capline.support.instant import zoned_instant_us
from capline.window.merge import Merged, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capline.store.protocol import Merge, ScannedLog

MOST_HITS = 1000
"""Hits in one record: one atomic step of a store, some milliseconds."""
MOST_LINE_BYTES = 1 << 18
WEIGHT_A_ROUND = 1024
"""Past hits that a store is handed at a time; a record of a log weighs as much as `RECORD_WEIGHT` of them."""
RECORD_WEIGHT = 8
MOST_FAULTS = 10
_MARK_DIGITS = 16


class LogRecord(msgspec.Struct, frozen=True):
    """A log of one subject, or a part of it: `log` is its name, as `promo` or, a channel's, `promo/push`.

    `hits` are (stamp in microseconds, units, 64 bits of the attempt's id or 0); 0 units is a hit that was given back.
    """

    log: str
    subject: Subject
    hits: Sequence[Row]
    keyed: bool = False


class PastHit(msgspec.Struct, frozen=True):
    """One past hit: recorded under the policy, and its channel, as `decide` would have at `at_us`."""

    policy: str
    subject: Subject
    at_us: int
    cost: int = 1
    channel: str | None = None
    id: str | None = None


Record = LogRecord | PastHit


class Loaded(msgspec.Struct, frozen=True):
    """Counts of a load: records, and their hits that were `added` or left out (the next four: see `Merged`).

    `failed` records were for a damaged log. `faults` are the errors of the first few records that failed or had a hit
    in the future, by record number from 1 on.
    """

    records: int = 0
    added: int = 0
    known: int = 0
    old: int = 0
    ahead: int = 0
    ambiguous: int = 0
    failed: int = 0
    faults: tuple[tuple[int, str], ...] = ()


class LoadProgress:
    """The rounds of a load, and counts while it runs; see `Loaded`."""

    def __init__(self) -> None:
        self.loaded = Loaded()
        self.records: list[Record] = []
        self._weight = 0
        self._groups: list[list[tuple[int, Merge]]] = []

    def add(self, record: Record) -> bool:
        """A record more of this round; whether that is enough."""
        self.records.append(record)
        self._weight += RECORD_WEIGHT if isinstance(record, LogRecord) else 1
        return self._weight >= WEIGHT_A_ROUND

    def grouped(self, merges: Sequence[Merge]) -> list[Merge]:
        """The merges of this round, those of one log as one: a store then looks at a long log once for all of them."""
        newest: dict[tuple[int, Subject, bool], list[tuple[int, Merge]]] = {}
        self._groups = []
        for number, merge in enumerate(merges, self.loaded.records + 1):
            key = id(merge.compiled), merge.subject, merge.exported
            group = newest.get(key)
            if group is None or sum(len(other.hits) for _, other in group) + len(merge.hits) > MOST_HITS:
                group = newest[key] = []
                self._groups.append(group)
            group.append((number, merge))
        return [
            msgspec.structs.replace(group[0][1], hits=[hit for _, merge in group for hit in merge.hits])
            for group in self._groups
        ]

    def take(self, outcomes: Sequence[Merged | CaplineError]) -> None:
        """The outcomes of this round; raises the error of a store that could not answer."""
        before = self.loaded
        sums = [before.added, before.known, before.old, before.ahead, before.ambiguous, before.failed]
        faults: list[tuple[int, str]] = []
        for group, outcome in zip(self._groups, outcomes, strict=True):
            if isinstance(outcome, Merged):
                sums[:5] = map(add, sums, msgspec.structs.astuple(outcome))
                for number, ahead in _ahead(group, outcome.ahead):
                    faults.append((number, f"{ahead} hit(s) later than the store's time were left out"))
            elif isinstance(outcome, (StoreDamagedError, StoreVersionError)):
                sums[5] += len(group)
                faults += [(number, str(outcome)) for number, _ in group]
            elif isinstance(outcome, InvalidValueError):
                others = f" and {len(group) - 1} more of its log" if len(group) > 1 else ""
                raise InvalidValueError(f"record {group[0][0]}{others}: {outcome}")
            else:
                raise outcome
        shown = (*before.faults, *sorted(faults))[:MOST_FAULTS]
        self.loaded = Loaded(before.records + len(self.records), *sums, faults=shown)
        self.records, self._groups, self._weight = [], [], 0


def _ahead(group: Sequence[tuple[int, Merge]], count: int) -> Iterator[tuple[int, int]]:
    """By record, how many of its hits are among the so many latest of the group."""
    latest = sorted((hit[0] for _, merge in group for hit in merge.hits), reverse=True)[:count]
    for number, merge in group if latest else ():
        ahead = sum(hit[0] >= latest[-1] for hit in merge.hits)
        if ahead:
            yield number, ahead


def records_of(found: ScannedLog, log: str, *, keyed: bool) -> Iterator[LogRecord]:
    """The records of a log that a scan found."""
    assert found.subject is not None  # noqa: S101 - a log that was read has a subject # nosec B101
    for first in range(0, len(found.hits), MOST_HITS):
        hits = found.hits[first : first + MOST_HITS]
        yield LogRecord(log, found.subject, [(hit.stamp_us, hit.units, hit.fingerprint) for hit in hits], keyed)


def check_rows(hits: Sequence[Row]) -> Sequence[Row]:
    """Return the hits of a record, 1 to 1000 of them, or raise."""
    count = count_of(hits, "hits of a record")
    if not 1 <= count <= MOST_HITS:
        raise InvalidValueError(f"a record has 1 to {MOST_HITS} hits, not {count}; a longer log is several records")
    for row in hits:
        if not isinstance(row, (tuple, list)) or len(row) != 3 or any(type(part) is not int for part in row):  # pyright: ignore[reportUnnecessaryIsInstance] # noqa: PLR2004 - as the message says
            raise InvalidTypeError(f"a hit is (stamp in microseconds, units, id's 64 bits or 0), not {quoted(row)}")
        stamp_us, units, fingerprint = row
        if not (0 <= stamp_us < LATEST_US and 0 <= units <= LARGEST_QUOTA and 0 <= fingerprint < 1 << 64):
            raise InvalidValueError(f"no hit has this stamp, these units or this id: {quoted(row)}")
    return hits


# --- lines ----------------------------------------------------------------------------------------------------------


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of either form."""

    subject: int | str
    log: str | None = None
    hits: list[list[int | str]] | None = None
    keyed: bool = False
    policy: str | None = None
    at: int | float | str | None = None
    cost: int = 1
    channel: str | None = None
    id: str | None = None


class _LogLine(msgspec.Struct, omit_defaults=True):
    log: str
    subject: Subject
    hits: list[list[Any]]
    keyed: bool = False


# In a text that is no key the quotes are escaped.
_KEYS = re.compile(rb'"(\w+)"\s*:')
_decoder = msgspec.json.Decoder(_Line)
_encode = msgspec.json.Encoder().encode


def line_of(record: LogRecord) -> bytes:
    """The record as a line, its newline included."""
    hits = [[*row[:2], f"{row[2]:0{_MARK_DIGITS}x}"] if row[2] else [*row[:2]] for row in record.hits]
    return _encode(_LogLine(record.log, record.subject, hits, record.keyed)) + b"\n"


def read_line(line: bytes) -> Record:
    """The record that a line is; raises `InvalidValueError` saying what is wrong with it."""
    if len(line) > MOST_LINE_BYTES:
        raise InvalidValueError(f"longer than {MOST_LINE_BYTES} bytes; give a long log in several lines")
    keys = _KEYS.findall(line)
    if len(set(keys)) < len(keys):
        raise InvalidValueError(f"a key twice, of {b', '.join(keys).decode()}; give each once")
    try:
        read = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{error}; a line is one JSON object, see docs/howto/logs.md") from None
    if read.log is not None and read.hits is not None and read.policy is None and read.at is None:
        return LogRecord(read.log, read.subject, [_row(hit) for hit in read.hits], read.keyed)
    if read.policy is not None and read.at is not None and read.log is None and read.hits is None:
        return PastHit(read.policy, read.subject, _instant_us(read.at), read.cost, read.channel, read.id)
    raise InvalidValueError("a line has either log, subject and hits, or policy, subject and at")


def _row(hit: list[int | str]) -> Row:
    match hit:
        case [int(stamp_us), int(units)]:
            return stamp_us, units, 0
        case [int(stamp_us), int(units), str(fingerprint)]:
            pass
        case _:
            raise InvalidValueError(
                f"a hit is [stamp in microseconds, units] or [.., .., id's 64 bits in hex], not {quoted(hit)}"
            )
    if len(fingerprint) != _MARK_DIGITS or not set(fingerprint) <= set("0123456789abcdef"):
        raise InvalidValueError(f"the id of a hit is {_MARK_DIGITS} hexadecimal digits, not {fingerprint[:40]!r}")
    return stamp_us, units, int(fingerprint, 16)


def _instant_us(at: float | str) -> int:
    """Seconds since 1970, or ISO 8601 with a zone, in microseconds."""
    if isinstance(at, str):
        try:
            return zoned_instant_us(at)
        except ValueError as error:
            raise InvalidValueError(f"at {error}") from None
    if not 0 <= at < LATEST_US / 1e6:  # not even where it is no number
        raise InvalidValueError(
            f"at {quoted(at)} is no number of seconds since 1970 (milliseconds and microseconds are not)"
        )
    return round(at * 1e6)
