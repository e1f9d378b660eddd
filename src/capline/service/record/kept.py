"""The record: rows of all processes of a service, in files of one folder that ends with it.

    file     record-PID-NUMBER, appended to by one process; the next one after a 64th of the bytes or of the time
    chunk    length (4 bytes, big-endian), then msgpack: [row, ...]
    row      [kind, microseconds since 1970, subject, whether it was allowed, the attempt's id]
    kind     [policy, segment, channel, zone, cost, keep_free, who asked]; an empty policy says that the subject was
             erased then

The rule: a decision never waits for it nor fails by it, and all files together stay within `bytes`, but for those that
are written to: the oldest go first. Cost: some 35 bytes a decision, and what `bench/service_parts.py` prints.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from heapq import nlargest
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from capline.model.subject import subject_text
from capline.service.settings.kept import kept_key, path_of
from capline.support.fork import wait_at_fork
from capline.support.scratch import ScratchFolder

if TYPE_CHECKING:
    from capline.model.subject import Subject
    from capline.service.settings.values import Record as Settings

log = logging.getLogger("capline.service")

FLUSH_EVERY_S = 1.0
_FLUSH_ROWS = 4096
_PARTS = 64
_HASH_BYTES = 8
_LENGTH_BYTES = 4

Kind = tuple[str, str | None, str | None, str | None, int, int, str]
"""Policy, segment, channel, zone, cost, what was to stay free, who asked."""


_ERASURE: Kind = "", None, None, None, 0, 0, ""
_ERASED = msgspec.msgpack.encode(_ERASURE)

RowTuple = tuple[Kind, int, "Subject", bool, str | None, str | None]


class Row(NamedTuple):
    """A decision: what was asked, of whom, when, whether it was allowed, else by which limit it was refused."""

    kind: Kind
    at_us: int
    subject: Subject
    allowed: bool
    id: str | None
    limit: str | None


class Record:
    """Adds the rows of this process, and reads those of all; `hashed` keeps no subject, only a keyed hash of it."""

    def __init__(self, settings: Settings) -> None:
        self.hashed = settings.hashed
        self._keep_s, self._most_bytes = settings.keep, settings.bytes
        shared = path_of("record")
        self._own = None if shared else ScratchFolder("capline-record-")
        self._folder = Path(self._own.name) if self._own else shared.parent  # pyright: ignore[reportOptionalMemberAccess] - one of both
        self._key = kept_key()
        self._rows: list[RowTuple] = []
        self._files = 0
        self._file_bytes = 0
        self._file_until_s = 0.0
        self._path = self._folder
        self._fails = False
        self._lock = Lock()
        wait_at_fork(self._lock)

    def add(self, row: RowTuple) -> None:
        """Add a decision: a `Row`, or a tuple like one."""
        rows = self._rows
        rows.append(row)
        if len(rows) >= _FLUSH_ROWS:
            self.flush()

    def erase(self, subject: Subject) -> None:
        """Forget what was there of a subject: it is read no more, and is out of the files after `keep`."""
        self.add((_ERASURE, time.time_ns() // 1000, subject, False, None, None))

    async def follow(self) -> None:
        """Write what was added every second, until this is cancelled."""
        try:
            while True:
                await asyncio.sleep(FLUSH_EVERY_S)
                self.flush()
        finally:
            self.flush()

    def flush(self) -> None:
        """Write what was added."""
        rows, self._rows = self._rows, []
        self.write(rows)

    def write(self, rows: Sequence[RowTuple]) -> None:
        """Write these; where there is no room for them, they are forgotten, and the log says so once."""
        if self.hashed:
            rows = [(kind, at_us, self._hash(subject), *rest) for kind, at_us, subject, *rest in rows]  # pyright: ignore[reportAssignmentType] - a star has no length
        chunk = msgspec.msgpack.encode(rows) if rows else b""
        with self._lock:
            if self._file_bytes + len(chunk) > self._most_bytes / _PARTS or time.monotonic() > self._file_until_s:
                self._files += 1
                self._path = self._folder / f"record-{os.getpid()}-{self._files:09}"
                self._file_bytes, self._file_until_s = 0, time.monotonic() + self._keep_s / _PARTS
                self._drop()
            if rows:
                self._append(len(chunk).to_bytes(_LENGTH_BYTES) + chunk)

    def _append(self, data: bytes) -> None:
        self._file_bytes += len(data)
        try:
            with self._path.open("ab") as file:
                file.write(data)
            self._fails = False
        except OSError as error:
            if not self._fails:
                log.warning("decisions are not recorded: %s", error)
            self._fails = True

    def _hash(self, subject: Subject) -> int:
        told = subject_text(subject).encode()
        return int.from_bytes(blake2b(told, digest_size=_HASH_BYTES, key=self._key).digest())

    def _drop(self) -> None:
        """Remove the files that are too old, or too many."""
        left = self._most_bytes
        for written_s, path, size_bytes in reversed(self._listed()):
            left -= size_bytes
            if left < 0 or written_s < time.time() - self._keep_s:
                with suppress(OSError):  # another process was faster
                    path.unlink()

    def _listed(self) -> list[tuple[float, Path, int]]:
        found: list[tuple[float, Path, int]] = []
        for path in self._folder.glob("record-*-*"):
            with suppress(OSError):
                state = path.stat()
                found.append((state.st_mtime, path, state.st_size))
        return sorted(found)

    def rows(self, policy: str) -> tuple[int | None, list[Row]]:
        """When the record begins, None where it is empty; and what is there of one policy, in order of time."""
        began_us: list[int] = []
        found: list[Row] = []
        for rows in filter(None, self.pieces()):
            began_us.append(rows[0][1])
            found += [Row(*row) for row in rows if row[0][0] == policy]
        return min(began_us, default=None), sorted(found, key=lambda row: row.at_us)

    def of_subject(self, subject: Subject, policies: Container[str], most: int) -> tuple[list[Row], list[Row]]:
        """The newest rows of one subject under these policies, newest first: those that were allowed, and refused ones.

        Cost: each file is read, and decoded where the subject may be.
        """
        wanted = self._hash(subject) if self.hashed else subject
        newest: tuple[list[Row], list[Row]] = ([], [])
        for rows in self.pieces(msgspec.msgpack.encode(wanted)):
            found = [Row(*row) for row in rows if row[2] == wanted and row[0][0] in policies]
            for of, allowed in zip(newest, (True, False), strict=True):
                of[:] = nlargest(most, [*of, *(row for row in found if row.allowed is allowed)], key=_at_us)
        return newest

    def pieces(self, holding: bytes = b"") -> Iterator[list[RowTuple]]:
        """All that is there, some thousand rows at a time, in no order; at least those with these bytes."""
        erased_us: dict[Subject, int] = {}
        for _, path, _ in self._listed():
            for rows in _chunks(path, _ERASED):
                erased_us |= {row[2]: max(row[1], erased_us.get(row[2], 0)) for row in rows if not row[0][0]}
        least_us = time.time_ns() // 1000 - int(self._keep_s * 1e6)
        for _, path, _ in self._listed():
            for rows in _chunks(path, holding):
                yield [
                    row
                    for row in rows
                    if row[0][0] and row[1] >= least_us and (not erased_us or row[1] > erased_us.get(row[2], 0))
                ]

    def close(self) -> None:
        """Remove the files, where they are this process's alone."""
        if self._own is not None:
            self._own.cleanup()


def _at_us(row: Row) -> int:
    return row.at_us


def _chunks(path: Path, holding: bytes = b"") -> Iterator[list[RowTuple]]:
    """The chunks of a file that hold these bytes, but for one that is being written."""
    try:
        data = path.read_bytes()
    except OSError:  # it was too old
        return
    at = 0
    while at + _LENGTH_BYTES <= len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES])
        if end > len(data):
            return
        if holding in data[at:end]:
            yield _CHUNK.decode(data[at + _LENGTH_BYTES : end])
        at = end


_CHUNK = msgspec.msgpack.Decoder(list[tuple[Kind, int, str | int, bool, str | None, str | None]])
