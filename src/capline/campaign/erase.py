"""Erases a subject from campaigns and uploads, as if it had never been in them.

From the campaigns of a store: its rows in audiences and outcomes.

A batch is read, and written again without the subject, if it is still as it was read and nobody has it: a worker has
its batch in memory. What a worker has is counted, so that the call can be repeated when that is settled. The campaign's
and the segment's audience is one less. Cost: two comparisons for a batch that is decided; one that is not is unpacked,
some 10 ms for 10,000 rows.

From audiences that were uploaded: a file with the subject is written again without its rows, some 2 s a million. Beside
each upload lies which column its ids are in (`columns/NAME`); where that is of another file, it is the column "id". The
other files of audiences, and those of a sender, are the caller's.
"""

import csv
import gzip
import hashlib
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from capline.campaign.file import SUFFIXES
from capline.campaign.part import Part
from capline.campaign.store.protocol import CampaignStore, UnreadableRunError, names_of
from capline.campaign.store.records import StoredRun
from capline.campaign.store.rows import RETRIED
from capline.model.errors import SegmentError
from capline.model.subject import Subject
from capline.segment import IdSet
from capline.segment.objects.address import open_objects
from capline.segment.objects.store import ObjectMissingError, ObjectStore
from capline.support.scratch import ScratchFolder

_TRIES = 3
_COLUMN_BYTES = 1 << 16
_SUFFIXES = (*chain.from_iterable(SUFFIXES.values()),)


class ErasedFrom(msgspec.Struct, frozen=True):
    """What was erased from a campaign: rows of its audience that were not decided, and outcomes.

    `in_work`: batches with the subject that a worker has now, from which nothing was erased: erase again later.
    """

    campaign: str
    audience: int
    outcomes: int
    in_work: int


def erase(store: CampaignStore, subject: Subject) -> list[ErasedFrom]:
    """Erase a subject from each campaign that has it; by name. Those of another version of capline are left alone."""
    found: list[ErasedFrom] = []
    for name in names_of(store):
        try:
            run = store.find(name)
        except UnreadableRunError:
            continue
        if run is None or (run.facts.ids == "text") != isinstance(subject, str):
            continue
        erased = ErasedFrom(name, 0, 0, 0)
        for number in store.holding(name, subject):
            what = _from_batch(store, run, number, subject)
            if what:
                erased = msgspec.structs.replace(erased, **{what: getattr(erased, what) + 1})
        if erased.audience or erased.outcomes or erased.in_work:
            found.append(erased)
    return found


def _from_batch(store: CampaignStore, run: StoredRun, number: int, subject: Subject) -> str:
    """What the subject had in a batch, a field of `ErasedFrom`; empty if it was not in it."""
    for _ in range(_TRIES):
        was = store.stored(run.facts.campaign, number)
        if was is None:
            return ""
        part = Part.claimed(was, run) if was.data else None
        rows = was.steps()
        held = rows or part
        keeps = np.empty(0, bool) if held is None else held.ids != subject
        if held is None or keeps.all():
            return ""
        if rows is not None and rows.todo("decide").size:
            return "in_work"  # what was asked of the limiter is not known yet
        row = int(np.argmin(keeps))
        # A row that was retried counts where it was retried.
        counts = rows is None or int(rows.state[row]) != RETRIED
        left = None if rows is None else rows.take(keeps)
        now = replace(was, rows=int(keeps.sum()), data=b"" if part is None else part.take(keeps).pack())
        if left is not None:
            now = replace(now, **dict(zip(("decided", "outcome"), left.pack(decided=True), strict=True)))
        done = counts and left is not None and left.is_done
        if store.rewrite(was, now, left, int(held.codes[row]) if counts else None, done=done):
            return "audience" if rows is None else "outcomes"
    return "in_work"


class IdColumn(msgspec.Struct, frozen=True):
    """Which column of the upload with this SHA-256 has the ids; whether they are text, None: as they are stored."""

    sha256: str
    column: str
    text: bool | None

    def keep(self, objects: ObjectStore, upload: str) -> None:
        """Put it beside the upload."""
        objects.put(_beside(upload), msgspec.json.encode(self))


class ErasedUpload(msgspec.Struct, frozen=True):
    """An upload from which so many rows were erased. `unread` says why it could not be looked through."""

    upload: str
    rows: int
    unread: str | None = None


def erase_uploads(address: str, subject: Subject) -> list[ErasedUpload]:
    """Erase a subject from each upload at this address that has it; by name. One without any other row is deleted."""
    with closing(open_objects(address)) as objects:
        names = sorted(name for name in objects.list("") if name.endswith(_SUFFIXES))
        found = (_from_upload(objects, name, subject) for name in names)
        return [upload for upload in found if upload.rows or upload.unread]


def delete_upload(objects: ObjectStore, upload: str) -> None:
    """Delete an upload, and what lies beside it."""
    objects.delete([upload, _beside(upload)])


def _beside(upload: str) -> str:
    return f"columns/{upload}"


def _from_upload(objects: ObjectStore, name: str, subject: Subject) -> ErasedUpload:
    with ScratchFolder("capline-erase-") as folder:
        was, now = Path(folder, f"was-{name}"), Path(folder, name)
        before = objects.list("").get(name)
        try:
            if before is None:
                return ErasedUpload(name, 0)
            sha256 = objects.download(name, was, before.bytes)
            column = _column_of(objects, name, sha256)
            rows, left = _without(was, now, column, subject)
        except ObjectMissingError:
            return ErasedUpload(name, 0)
        except (SegmentError, OSError, ValueError, LookupError, EOFError, csv.Error) as error:
            return ErasedUpload(name, 0, " ".join(str(error).split()).replace(str(was), name) or type(error).__name__)
        if rows and objects.list("").get(name) != before:
            return ErasedUpload(name, 0, "another was uploaded meanwhile: erase again")
        if rows and left:
            with now.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            msgspec.structs.replace(column, sha256=digest).keep(objects, name)
            objects.upload(name, now, digest)
        elif rows:
            delete_upload(objects, name)
        return ErasedUpload(name, rows)


def _column_of(objects: ObjectStore, upload: str, sha256: str) -> IdColumn:
    try:
        found = objects.get(_beside(upload), _COLUMN_BYTES)
        column = None if found is None else msgspec.json.decode(found.data, type=IdColumn)
    except (ObjectMissingError, msgspec.DecodeError):
        column = None
    return column if column is not None and column.sha256 == sha256 else IdColumn(sha256, "id", None)


def _without(was: Path, now: Path, ids: IdColumn, subject: Subject) -> tuple[int, int]:
    """Write a file without the subject; how many rows that takes out of it, and how many are left."""
    is_text = isinstance(subject, str)
    if was.name.endswith(SUFFIXES["bitmap"]):
        bits = IdSet.from_file(was)
        if is_text or subject > IdSet.largest or subject not in bits:
            return 0, len(bits)
        left = bits - IdSet([subject])
        left.to_file(now)
        return 1, len(left)
    if was.name.endswith(SUFFIXES["parquet"]):
        return _rows_without(was, now, ids, subject)
    if is_text != bool(ids.text):
        return 0, 1
    rows = left = 0
    opened: Any = gzip.open if was.name.endswith(".gz") else open
    with opened(was, "rt", newline="", encoding="utf-8-sig") as source, opened(now, "wt", newline="") as target:
        reader, writer = csv.reader(source), csv.writer(target, lineterminator="\n")
        header = next(reader, list[str]())
        if ids.column not in header:
            raise SegmentError(f"{was}: no column {ids.column!r}; upload it again, and say which has the ids")
        place = header.index(ids.column)
        writer.writerow(header)
        for row in reader:
            if row and (row[place] if is_text else int(row[place])) == subject:
                rows += 1
            else:
                writer.writerow(row)
                left += bool(row)
    return rows, left


def _rows_without(was: Path, now: Path, ids: IdColumn, subject: Subject) -> tuple[int, int]:
    # pyarrow ships no types: imported by name it is Any.
    pa, compute, parquet = map(import_module, ("pyarrow", "pyarrow.compute", "pyarrow.parquet"))
    rows = left = 0
    with parquet.ParquetFile(was) as source:
        kind = source.schema_arrow.field(ids.column).type
        if pa.types.is_integer(kind) == isinstance(subject, str):
            return 0, 1
        with parquet.ParquetWriter(now, source.schema_arrow) as target:
            for batch in source.iter_batches():
                is_other = compute.not_equal(batch.column(ids.column).cast(pa.string()), str(subject))
                others = batch.filter(is_other)
                target.write_batch(others)
                rows, left = rows + batch.num_rows - others.num_rows, left + others.num_rows
    return rows, left
