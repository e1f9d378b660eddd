"""Publishes snapshots: files become immutable objects at an address, and one pointer names the version to serve.

    ADDRESS/
    ├── pointer.json                 what is served; see `capline.segment.publish.pointer`
    ├── publishers.json              who published it; see `capline.segment.publish.publishers`
    ├── manifests/<SHA-256>.json     a snapshot's manifest, byte for byte
    └── objects/<SHA-256>            a snapshot's file, byte for byte, under the hash that its manifest gives it

    publish   verify the snapshot (text ids: that they extend the current ones) -> list objects -> upload what is
              missing -> upload the manifest -> swap the pointer
    rollback  swap the pointer: another current version of those in its list
    pin       swap the pointer: a version that is never retired
    collect   swap the pointer: a list without the oldest -> delete what no listed version needs

The rule: the pointer is swapped last, by a conditional write against what was read first. A publisher that is killed
before that leaves the old version current, and objects that nothing refers to. If another version became current in
between, it raises `SegmentConflictError`.

Why nothing that a version needs is ever deleted:

- a version leaves the list before its objects are deleted, and only listed versions become current;
- publishers wait while a collector deletes (`collect`), so an object that a publisher found stays.

Cost: the snapshot is read twice, the objects are listed once, and changed files are uploaded.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from capline.model.clock import Clock, SystemClock
from capline.model.errors import SegmentConflictError, SegmentError
from capline.segment import files
from capline.segment.dictionary.dictionary import Dictionary
from capline.segment.manifest import LARGEST_MANIFEST_BYTES, MANIFEST, Manifest, decode_manifest
from capline.segment.objects.address import open_objects
from capline.segment.objects.store import ObjectStore
from capline.segment.publish.collect import GRACE_US, KEEP, Collected, collect
from capline.segment.publish.extends import check_extends
from capline.segment.publish.fetch import read_manifest_of
from capline.segment.publish.pointer import MOST_VERSIONS, NOTHING, OBJECTS, Pointer, Published, check_version
from capline.segment.publish.publishers import check_publisher, note_publisher, publishers_of
from capline.segment.publish.versions import TRIES, Publication, Versions, read_pointer
from capline.segment.snapshot.load import load_snapshot

_PAUSE_S = 0.2


class Sent(msgspec.Struct, frozen=True):
    """The result of a publication. `flipped`: it became current now; `reused_bytes` were there before."""

    version: str
    sequence: int
    flipped: bool
    sent_files: int
    sent_bytes: int
    reused_files: int
    reused_bytes: int
    cardinality: int
    manifest: str


class Publisher:
    """Publishes snapshots at an address, and manages the versions there.

    >>> with Publisher("s3://bucket/segments") as publisher:             # doctest: +SKIP
    ...     publisher.publish("segments/today").sent_bytes

    The address and `options` are those of `open_objects`. Nothing is read before the first call. A call that raises
    `SegmentError` leaves the served version unchanged.
    """

    def __init__(
        self, url: str | Path, options: Mapping[str, str] | None = None, *, clock: Clock | None = None
    ) -> None:
        self._objects = open_objects(url, options)
        self._clock = SystemClock() if clock is None else clock
        self._versions = Versions(self._objects, self._clock)

    def publish(
        self,
        snapshot: str | Path,
        *,
        version: str | None = None,
        expected: str | None = None,
        resend: bool = False,
        new_dictionary: bool = False,
        who: str | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Sent:
        """Publish the snapshot in this directory and make it current, unless it is already.

        `version` is its published name, by default that of its manifest; a name cannot be used for other content.
        `expected` is the version that must be current, for a snapshot that was made from it. `resend` also sends files
        that are there, to fix damaged ones; if the pointer cannot be read, it starts a new list with only this version.
        For text ids, each text of the current version must have the same number in this one, unless `new_dictionary`
        allows another dictionary. `who` publishes it, by default this process's account. `progress` is called
        with the bytes sent and the bytes to send.

        Raises `SegmentConflictError` if another version became current meanwhile.
        """
        directory, name = Path(snapshot), check_publisher(who)
        data, manifest, ids = _verified(directory)
        ours = _entry(version, data, manifest, self._clock.now_us())
        if not ours.cardinality:
            raise SegmentError(f"{directory}: no segment has an id, so no reader takes it; was it built from all rows?")
        before = self._versions.read(repair=resend)
        began_with = None if before is None else before.pointer.current
        if expected is not None and began_with != expected:
            current_version = "nothing" if began_with is None else f"version {began_with!r}"
            raise SegmentConflictError(
                f"{self._objects.where}: {current_version} is current, not {expected!r}; "
                "make the snapshot from what is current, and publish that"
            )
        current = None if before is None or not before.pointer.versions else before.pointer.serving
        if ids is not None and current is not None and current.manifest != ours.manifest and not new_dictionary:
            check_extends(self._objects, current, ids, directory)
        writer = secrets.token_hex(8)
        for _ in range(TRIES):
            before = self._undisturbed(before)
            if (None if before is None else before.pointer.current) != began_with:
                break
            if before is not None and self._has_already(before.pointer, ours) and not resend:
                return _outcome(ours, before.pointer.sequence, manifest, {}, flipped=False)
            sent = self._send(directory, data, ours, manifest, resend, progress)
            after = _with(before, ours, writer, self._clock.now_us())
            if self._versions.swapped(after, before):
                note_publisher(self._objects, after, ours, name)
                return _outcome(ours, after.sequence, manifest, sent, flipped=True)
            before, resend = self._versions.read(repair=resend), False
        raise _lost(self._objects, before, ours.version)

    def rollback(self, version: str | None = None, *, expected: str | None = None) -> Pointer:
        """Make another listed version current: this one, or the one published before the current.

        `expected` is the version that must be current. Raises `SegmentError` if one of its objects is missing,
        `SegmentConflictError` if another version became current meanwhile.
        """
        seen = self._versions.needed().pointer
        if expected is not None and seen.current not in (expected, version):
            raise SegmentConflictError(
                f"{self._objects.where}: version {seen.current!r} is current, not {expected!r}; "
                "look at it, and roll back again"
            )
        # Decided once: after somebody else's rollback "the one before" is another.
        target = _previous(seen, self._objects.where) if version is None else self._versions.listed(seen, version)

        def change(pointer: Pointer) -> dict[str, Any]:
            if pointer.current not in (seen.current, target.version):
                raise SegmentConflictError(
                    f"{self._objects.where}: version {pointer.current!r} became current meanwhile, in place of "
                    f"{seen.current!r}; look at it, and roll back again"
                )
            self._check_there(self._versions.listed(pointer, target.version))
            return {"current": target.version}

        return self._versions.change(change)

    def pin(self, version: str, *, pinned: bool = True) -> Pointer:
        """Pin or unpin a version: `collect` and later publications never retire a pinned one."""

        def change(pointer: Pointer) -> dict[str, Any]:
            target = self._versions.listed(pointer, version)
            renewed = msgspec.structs.replace(target, pinned=pinned)
            return {"versions": tuple(renewed if each is target else each for each in pointer.versions)}

        return self._versions.change(change)

    def pointer(self) -> Pointer:
        """The pointer: the served version and all others; `SegmentError` if nothing was published."""
        return self._versions.needed().pointer

    def publishers(self, pointer: Pointer) -> dict[str, str]:
        """Who published the versions of this pointer, by version, as far as is known."""
        return publishers_of(self._objects, pointer)

    def collect(self, *, keep: int = KEEP, grace_us: int = GRACE_US, dry_run: bool = False) -> Collected:
        """Retire old versions, then delete objects that no version needs.

        Keeps the current version, the pinned ones, the newest `keep`, those published within `grace_us`, and objects
        younger than `grace_us`, which an unfinished publication may have sent.
        """
        return collect(self._versions, self._clock, keep=keep, grace_us=grace_us, dry_run=dry_run)

    def close(self) -> None:
        """Close connections."""
        self._objects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- publishing --------------------------------------------------------------------------------------------------

    def _has_already(self, pointer: Pointer, ours: Published) -> bool:
        """Whether this very version is current; `SegmentError` if its name has other content."""
        there = pointer.find(ours.version)
        if there is not None and there.manifest != ours.manifest:
            raise SegmentError(
                f"{self._objects.where}: version {ours.version!r} is published already, with other content; "
                "name this one otherwise (--version)"
            )
        return there is not None and pointer.current == ours.version

    def _undisturbed(self, before: Publication | None) -> Publication | None:
        """Wait until no collector has a lease; return the pointer then."""
        while before is not None and before.pointer.collector:
            if before.pointer.collecting_until_us <= self._clock.now_us():
                return before
            time.sleep(_PAUSE_S)
            before = read_pointer(self._objects)
        return before

    def _send(
        self,
        directory: Path,
        data: bytes,
        ours: Published,
        manifest: Manifest,
        resend: bool,
        progress: Callable[[int, int], object] | None,
    ) -> dict[str, int]:
        """Upload the missing files, then the manifest; return the sizes of the sent files, by hash."""
        there = {} if resend else self._objects.list(OBJECTS)
        missing = {
            each.sha256: each
            for each in manifest.files()
            if each.sha256 not in there or there[each.sha256].bytes != each.bytes
        }
        total, done = sum(each.bytes for each in missing.values()), 0
        for name, each in missing.items():
            report = None if progress is None else _part(progress, done, total)
            self._objects.upload(f"{OBJECTS}/{name}", directory / each.file, name, report)
            done += each.bytes
        self._objects.put(ours.manifest_path, data)
        return {name: each.bytes for name, each in missing.items()}

    def _check_there(self, version: Published) -> None:
        there = self._objects.list(OBJECTS)
        for each in read_manifest_of(self._objects, version)[1].files():
            found = there.get(each.sha256)
            if found is None or found.bytes != each.bytes:
                raise SegmentError(
                    f"{self._objects.where}: version {version.version!r} lacks {OBJECTS}/{each.sha256}; "
                    "choose another, or publish its snapshot again"
                )


def _verified(directory: Path) -> tuple[bytes, Manifest, Dictionary | None]:
    """Verify the whole snapshot and read its manifest."""
    ids = load_snapshot(directory).ids
    where = directory / MANIFEST
    data = files.read(where, LARGEST_MANIFEST_BYTES)
    return data, decode_manifest(data, str(where)), ids


def _entry(version: str | None, data: bytes, manifest: Manifest, now_us: int) -> Published:
    return Published(
        version=check_version(manifest.version if version is None else version),
        manifest=hashlib.sha256(data).hexdigest(),
        manifest_bytes=len(data),
        bytes=sum(each.bytes for each in manifest.files()),
        cardinality=sum(each.cardinality for each in manifest.segments),
        published_us=now_us,
    )


def _part(progress: Callable[[int, int], object], base: int, total: int) -> Callable[[int], object]:
    return lambda sent: progress(base + sent, total)


def _with(before: Publication | None, ours: Published, writer: str, now_us: int) -> Pointer:
    """The pointer after this publication; if its list is full, without the oldest version that is not pinned."""
    old = () if before is None else before.pointer.versions
    versions = [each for each in old if each.version != ours.version]
    was = next((each for each in old if each.version == ours.version), None)
    versions.append(ours if was is None else msgspec.structs.replace(ours, pinned=was.pinned))
    if len(versions) > MOST_VERSIONS:
        current = None if before is None else before.pointer.current
        leaving = next((each for each in versions[:-1] if not each.pinned and each.version != current), None)
        if leaving is None:
            raise SegmentError(f"all of {MOST_VERSIONS} versions are pinned; unpin some (pin --remove)")
        versions.remove(leaving)
    pointer = NOTHING if before is None else before.pointer
    return pointer.changed(
        writer, now_us, current=ours.version, collector="", collecting_until_us=0, versions=tuple(versions)
    )


def _previous(pointer: Pointer, where: str) -> Published:
    index = pointer.versions.index(pointer.serving)
    if index == 0:
        raise SegmentError(f"{where}: no version before {pointer.current!r}; name one (capline segments list {where})")
    return pointer.versions[index - 1]


def _outcome(ours: Published, sequence: int, manifest: Manifest, sent: dict[str, int], *, flipped: bool) -> Sent:
    all_files = {each.sha256: each.bytes for each in manifest.files()}
    reused = [size for name, size in all_files.items() if name not in sent]
    return Sent(
        ours.version,
        sequence,
        flipped,
        len(sent),
        sum(sent.values()),
        len(reused),
        sum(reused),
        ours.cardinality,
        ours.manifest,
    )


def _lost(objects: ObjectStore, now: Publication | None, version: str) -> SegmentConflictError:
    theirs = "something else" if now is None else f"version {now.pointer.current!r}"
    return SegmentConflictError(
        f"{objects.where}: {theirs} was published meanwhile and is served, {version!r} is not; look at it, and publish "
        "again to replace it (what was sent is not sent twice)"
    )
