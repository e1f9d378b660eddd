"""Records that this machine has verified a snapshot: a stamp, and bitmaps that can be mapped into memory.

    segments/2025-03-01/.verified/
    ├── stamp.json                      sealed: the manifest's SHA-256; of each file inode, size, mtime;
    │                                   the bitmaps' layout (`frozen.identity`)
    ├── active-60303ae22b998861.frozen  the segment in roaring's frozen format, mapped by each process
    └── new-9f86d081884c7d65.frozen

The rule: a stamp is valid for exactly the files that were verified. A file that was replaced, cut or written to has
another inode, size or modification time; the stamp is then ignored and everything is verified again. It is written
last, after its files are forced to disk, so a crash leaves none. It does not protect against someone who can write to
the directory, nor against bits that rot on the disk later.

Small snapshots (below 1 MiB) are verified every time: that takes less than a millisecond and writes nothing.
uint64 ids have no frozen file: their stamp saves the hashing and checking, but they are read and copied.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from capline.model.errors import SegmentError
from capline.segment import files
from capline.segment.seal import is_sealed, seal
from capline.segment.sets import frozen
from capline.segment.sets.idset import IdSet, set_type

if TYPE_CHECKING:
    from capline.segment.manifest import Manifest, SegmentEntry

VERIFIED = ".verified"

_STAMP = "stamp.json"
_A_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_LARGEST_STAMP_BYTES = 1 << 20
_SMALL_BYTES = 1 << 20


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it was when it was verified."""

    name: str
    inode: int
    bytes: int
    changed_ns: int


class _Verified(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    manifest_sha256: str
    layout: str | None
    files: tuple[_File, ...]
    sha256: str | msgspec.UnsetType = msgspec.UNSET


def open_sets(directory: int, manifest: Manifest, data: bytes) -> dict[str, IdSet] | None:
    """The sets of the snapshot in this open directory, unverified; None where there is no valid stamp.

    `data` is the manifest's bytes.
    """
    try:
        home = os.open(VERIFIED, os.O_RDONLY | _A_DIRECTORY, dir_fd=directory)
    except OSError:
        return None
    try:
        found = files.read(_STAMP, _LARGEST_STAMP_BYTES, directory=home)
        if not is_sealed(found):
            return None
        stamp = msgspec.json.decode(found, type=_Verified)
        there = _describe(directory, home, manifest, stamp.layout)
        if (stamp.manifest_sha256, stamp.layout, stamp.files) != (_digest(data), _layout(manifest), there):
            return None
        sets: dict[str, IdSet] = {}
        for entry, frozen_file in zip(manifest.segments, there[len(manifest.files()) :] or there, strict=False):
            ids = _open(directory, home, manifest, entry, frozen_file.bytes)
            if ids is None or len(ids) != entry.cardinality:
                return None
            sets[entry.name] = ids
    except (OSError, ValueError):
        # SegmentError is a ValueError too. Whatever is wrong with the stamp, the snapshot itself is verified instead.
        return None
    finally:
        os.close(home)
    return sets


def write(directory: int, path: Path, manifest: Manifest, data: bytes, sets: Mapping[str, IdSet]) -> bool:
    """Write a stamp for the sets that were just verified; False where none is needed or none can be written."""
    if sum(entry.bytes for entry in manifest.files()) < _SMALL_BYTES:
        return False
    home = path / VERIFIED
    layout = _layout(manifest)
    try:
        # Opened again by name: the stamp must be in the directory that was read, not in one that replaced it.
        if not os.path.samestat(os.fstat(directory), path.stat()):
            return False
        home.mkdir(exist_ok=True)
        if layout is not None:
            for entry in manifest.segments:
                # Where two processes write the same file, either's is right.
                files.write(home / _frozen_name(entry), sets[entry.name].to_frozen())
        handle = files.open_directory(home)
        try:
            stamp = _Verified(_digest(data), layout, _describe(directory, handle, manifest, layout))
        finally:
            os.close(handle)
        files.write(home / _STAMP, seal(stamp))
    except (OSError, SegmentError):
        return False
    return True


def _open(directory: int, home: int, manifest: Manifest, entry: SegmentEntry, size_bytes: int) -> IdSet | None:
    kind = set_type(manifest.ids)
    if _layout(manifest) is None:
        memory = files.map_file(entry.file, entry.bytes, directory=directory)
        return kind.from_bytes(memory.data)
    return kind.from_frozen(files.map_file(_frozen_name(entry), size_bytes, directory=home))


def _layout(manifest: Manifest) -> str | None:
    return None if manifest.ids == "uint64" else frozen.identity()


def _describe(directory: int, home: int, manifest: Manifest, layout: str | None) -> tuple[_File, ...]:
    """Every file of the stamp: the snapshot's own, then those of segments in the frozen format."""
    seen = [_status(entry.file, directory) for entry in manifest.files()]
    if layout is not None:
        seen += [_status(_frozen_name(entry), home) for entry in manifest.segments]
    return tuple(seen)


def _status(name: str, directory: int) -> _File:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return _File(name, status.st_ino, status.st_size, status.st_mtime_ns)


def _frozen_name(entry: SegmentEntry) -> str:
    return f"{entry.file.rsplit('.', 1)[0]}.frozen"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
