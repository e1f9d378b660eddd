"""What this machine verified once, and need not again: a stamp, and bitmaps ready to be used where they lie.

    segments/2025-03-01/.verified/
    ├── stamp.json                      sealed: the manifest's SHA-256; of every file inode, size and time of change;
    │                                   the bitmaps' layout (`frozen.identity`)
    ├── active-60303ae22b998861.frozen  the segment in roaring's frozen format, mapped by whoever opens it
    └── new-9f86d081884c7d65.frozen

The rule: a stamp vouches for exactly the files that were verified, as they lie there. A file that was replaced, cut or
written to has another inode, size or time of change, and then the stamp counts for nothing: everything is verified
again. It is written last, after the files it vouches for are forced to disk, so a crash leaves none. It does not guard
against whoever can write to the directory, nor against bits that rot on the disk after they were verified.

Small snapshots (below 1 MiB) are verified every time: that costs less than a millisecond, and leaves nothing behind.
uint64 ids have no frozen file: their stamp saves hashing and proving, and they are read and copied.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from capline.model.errors import SegmentError
from capline.segment import files
from capline.segment.manifest import Manifest, is_sealed, seal
from capline.segment.sets import frozen
from capline.segment.sets.idset import IdSet, set_type

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from capline.segment.manifest import SegmentEntry

__all__ = ["VERIFIED", "leave", "open_sets"]

VERIFIED = ".verified"

_STAMP = "stamp.json"
_LARGEST_STAMP_BYTES = 1 << 20
_SMALL_BYTES = 1 << 20


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file as it lay there when it was verified."""

    name: str
    inode: int
    bytes: int
    changed_ns: int


class _Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    manifest_sha256: str
    layout: str | None
    files: tuple[_File, ...]
    sha256: str | msgspec.UnsetType = msgspec.UNSET


def open_sets(directory: int, manifest: Manifest, data: bytes) -> dict[str, IdSet] | None:
    """The sets of the snapshot in this open directory, unverified; None where no stamp vouches for them.

    `data` is the manifest's file.
    """
    try:
        home = os.open(VERIFIED, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
    except OSError:
        return None
    try:
        found = files.read(_STAMP, _LARGEST_STAMP_BYTES, directory=home)
        if not is_sealed(found):
            return None
        stamp = msgspec.json.decode(found, type=_Stamp)
        there = _look(directory, home, manifest, stamp.layout)
        if (stamp.manifest_sha256, stamp.layout, stamp.files) != (_digest(data), _layout(manifest), there):
            return None
        sets: dict[str, IdSet] = {}
        for entry, frozen_file in zip(manifest.segments, there[len(manifest.files()) :] or there, strict=False):
            ids = _open(directory, home, manifest, entry, frozen_file.bytes)
            if ids is None or len(ids) != entry.cardinality:
                return None
            sets[entry.name] = ids
    except (OSError, ValueError):
        # SegmentError is a ValueError: whatever is wrong here, the files themselves are asked.
        return None
    finally:
        os.close(home)
    return sets


def leave(directory: int, path: Path, manifest: Manifest, data: bytes, sets: Mapping[str, IdSet]) -> bool:
    """Leave a stamp for the sets that were just verified; False where none is needed or none can be written."""
    if sum(entry.bytes for entry in manifest.files()) < _SMALL_BYTES:
        return False
    home = path / VERIFIED
    layout = _layout(manifest)
    try:
        # Looked at again by name: the stamp must stand in the directory that was read, not in one that replaced it.
        if not os.path.samestat(os.fstat(directory), path.stat()):
            return False
        home.mkdir(exist_ok=True)
        if layout is not None:
            for entry in manifest.segments:
                _write(home, _frozen_name(entry), sets[entry.name].to_frozen())
        handle = files.open_directory(home)
        try:
            stamp = _Stamp(_digest(data), layout, _look(directory, handle, manifest, layout))
        finally:
            os.close(handle)
        _write(home, _STAMP, seal(stamp))
        files.fsync_directory(home)
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


def _look(directory: int, home: int, manifest: Manifest, layout: str | None) -> tuple[_File, ...]:
    """Every file that the stamp vouches for: the snapshot's own, then those of segments in the frozen format."""
    seen = [_seen(entry.file, directory) for entry in manifest.files()]
    if layout is not None:
        seen += [_seen(_frozen_name(entry), home) for entry in manifest.segments]
    return tuple(seen)


def _seen(name: str, directory: int) -> _File:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return _File(name, status.st_ino, status.st_size, status.st_mtime_ns)


def _frozen_name(entry: SegmentEntry) -> str:
    return f"{entry.file.rsplit('.', 1)[0]}.frozen"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(home: Path, name: str, data: bytes | memoryview) -> None:
    """A file under its name when it is on disk; of two processes that write the same, either's will do."""
    temporary = home / f".{secrets.token_hex(6)}.tmp"
    try:
        files.create(temporary, data)
        temporary.replace(home / name)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
