"""An export of logs (`capline export`) as events: each hit is one.

    {"log": "promo", "subject": 42, "hits": [[1769875200000000, 1, "9ae16a3b2f90404f"], [1769878800000000, 2]]}

A hit is in the log of its policy, and in that of its channel (`promo/push`), which is left out. A hit that was given
back (0 units) is no event, and one of several units is one. The hits of a line are in order of time, as in its log.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from capline.model.clock import LATEST_US
from capline.model.errors import CaplineError
from capline.model.subject import Subject, check_subject
from capline.replay.events import ReplayError
from capline.tables.times import shown


class _Hit(msgspec.Struct, array_like=True, frozen=True):
    """Its stamp in microseconds and its units; where it had an id, the id's hash follows."""

    at_us: int
    units: int


class _Line(msgspec.Struct, frozen=True):
    """Some hits of one log."""

    log: str
    subject: Subject
    hits: list[_Hit]


_read = msgspec.json.Decoder(_Line).decode


def is_export(line: bytes) -> bool:
    """Whether a line that can be read is one of an export."""
    try:
        _read(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def exported_events(path: Path, chunks: Iterable[bytes], notes: list[str]) -> Iterator[tuple[Subject, int]]:
    """The subject and instant of each hit of an export of one policy's logs, with notes of what was left out.

    Raises `ReplayError`.
    """
    number = several = 0
    logs: dict[str, str | None] = {}
    for chunk in chunks:
        for text in chunk.removesuffix(b"\n").split(b"\n"):
            number += 1
            if not text.strip():
                continue
            try:
                line = _read(text)
                check_subject(line.subject)
            except (msgspec.DecodeError, UnicodeDecodeError, CaplineError) as error:
                what = f"{path}, line {number}: {shown(text.decode(errors='replace'))}"
                raise ReplayError(f"{what} is no line of an export ({error})") from None
            log = logs.setdefault(line.log, None if "/" in line.log else line.log)
            if log is None:
                continue
            if len(names := [name for name in logs.values() if name]) > 1:
                raise ReplayError(f"{path}: an export of logs {', '.join(names)}; export one: --policy NAME")
            for hit in line.hits:
                if not 0 <= hit.at_us <= LATEST_US:
                    raise ReplayError(f"{path}, line {number}: a hit at {hit.at_us}, which is no instant")
                if hit.units:
                    several += hit.units > 1
                    yield line.subject, hit.at_us
    channels = [name for name, log in logs.items() if log is None]
    notes += [f"{path}: {', '.join(channels)} left out: hits of channels are in the policy's log"] if channels else []
    notes += [f"{path}: {several:,} hits of several units are one event each"] if several else []
