"""Reads a snapshot: whole and verified, or not at all.

    segments/2025-03-01/                     the snapshot; the name is the publisher's choice
    ├── manifest.json                        format, version, instant; what each file must be; a seal (`manifest`)
    ├── active-60303ae22b998861.roaring      one file per segment: roaring's portable format, nothing before or after it
    ├── new-9f86d081884c7d65.roaring
    ├── ids-fd61a03af4f77d87.ids             where ids are text: the dictionary's files (`idfile`)
    └── .verified/                           made by a reader with `trust="stamp"` (`verified`); never published

Loading checks the manifest against its seal, each file's size before reading it, its SHA-256, that it is exactly one
bitmap of the stated cardinality, and that no id is in two exclusive segments. Whatever fails is a `SegmentError`; a
file that was cut short never makes an empty segment.

That costs some 0.3 s for 270 million ids in four segments, and copies them. With `trust="stamp"` that is done
once on a machine; files that have not changed since are then mapped: 1 ms, and a page is loaded when it is first read,
once for all processes. `python -m capline.segment.snapshot.load DIRECTORY` does it in a process of its own.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from capline.model.errors import SegmentError
from capline.segment import files
from capline.segment.dictionary.dictionary import Dictionary, open_file
from capline.segment.manifest import LARGEST_MANIFEST_BYTES, MANIFEST, Manifest, SegmentEntry, decode_manifest
from capline.segment.sets.idset import IdSet, set_type
from capline.segment.snapshot import verified
from capline.segment.snapshot.snapshot import Snapshot

Trust = Literal["nothing", "stamp"]
REFUSED = 2


def load_snapshot(path: str | Path, *, trust: Trust = "nothing") -> Snapshot:
    """Read the snapshot in this directory; `SegmentError` for anything that is not exactly what was written.

    `trust="nothing"` verifies every file. `trust="stamp"` skips that where the directory has a stamp (`.verified/`)
    which says that this machine has verified these very files. Without a stamp everything is verified, and a stamp is
    written if the directory is writable. Files of a snapshot that is opened so must not be changed in place.

    A directory that is replaced while it is being read is read again: the answer is the old snapshot or the new one.
    """
    if trust not in ("nothing", "stamp"):
        raise SegmentError(f"trust is 'nothing' or 'stamp', not {trust!r}")
    return _load(path, trust, partial=False)


def load_partial(path: str | Path) -> Snapshot:
    """Read a partial snapshot (or a whole one), for merging: its sets need not be disjoint."""
    return _load(path, "nothing", partial=True)


def _load(path: str | Path, trust: Trust, *, partial: bool) -> Snapshot:
    while True:
        directory = files.open_directory(path)
        try:
            return _read(directory, Path(path), trust, partial=partial)
        except SegmentError:
            if _is_still(directory, path):
                raise
        finally:
            os.close(directory)


def _read(directory: int, path: Path, trust: Trust, *, partial: bool) -> Snapshot:
    where = str(path / MANIFEST)
    data = files.read(MANIFEST, LARGEST_MANIFEST_BYTES, directory=directory, shown=where)
    manifest = decode_manifest(data, where)
    if manifest.partial and not partial:
        raise SegmentError(f"{path}: a partial build cannot be served; unite the parts: capline segments merge")
    overlapping = [entry.name for entry in manifest.segments if not entry.exclusive]
    if trust == "stamp":
        opened = verified.open_sets(directory, manifest, data)
        if opened is not None:
            ids = _dictionary(directory, path, manifest, verify=False)
            return Snapshot.verified(opened, manifest.version, manifest.created_us, overlapping=overlapping, ids=ids)
    sets = {entry.name: _read_segment(directory, path, entry, set_type(manifest.ids)) for entry in manifest.segments}
    ids = _dictionary(directory, path, manifest, verify=True)
    _check_numbers(sets, ids, path)
    make = Snapshot.verified if partial else Snapshot
    try:
        snapshot = make(sets, manifest.version, manifest.created_us, overlapping=overlapping, ids=ids)
    except SegmentError as error:
        raise SegmentError(f"{path}: {error}") from None
    if trust == "stamp" and verified.write(directory, path, manifest, data, sets):
        # Map what was just verified: the copies are freed, and all processes share the same pages.
        opened = verified.open_sets(directory, manifest, data)
        if opened is not None:
            return Snapshot.verified(opened, manifest.version, manifest.created_us, overlapping=overlapping, ids=ids)
    return snapshot


def _read_segment(directory: int, path: Path, entry: SegmentEntry, kind: type[IdSet]) -> IdSet:
    where = str(path / entry.file)
    data = files.read(entry.file, min(entry.bytes, kind.largest_bytes), directory=directory, shown=where)
    if len(data) != entry.bytes:
        raise SegmentError(f"{where}: {len(data)} bytes, the manifest says {entry.bytes}; it is cut short")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise SegmentError(
            f"{where}: does not match the SHA-256 in the manifest; it is damaged: build the snapshot again"
        )
    ids = kind.from_bytes(data, where)
    if len(ids) != entry.cardinality:
        raise SegmentError(f"{where}: {len(ids)} ids, and the manifest says {entry.cardinality}")
    return ids


def _dictionary(directory: int, path: Path, manifest: Manifest, *, verify: bool) -> Dictionary | None:
    if manifest.ids != "text":
        return None
    paths = [path / entry.file for entry in manifest.dictionary]
    opened = [
        open_file(entry, file_path, verify=verify, directory=directory)
        for entry, file_path in zip(manifest.dictionary, paths, strict=True)
    ]
    return Dictionary(opened, manifest.dictionary, paths)


def _check_numbers(sets: Mapping[str, IdSet], ids: Dictionary | None, path: Path) -> None:
    """Every number must have a text: else a lookup would fail long after the mistake."""
    if not ids:  # with an empty dictionary the manifest allows no numbers
        return
    for name, numbers in sets.items():
        stray = numbers.page(len(ids) - 1, 1)
        if stray:
            raise SegmentError(f"{path}: segment {name!r} has the number {stray[0]}, which no text has")


def _is_still(directory: int, path: str | Path) -> bool:
    try:
        return os.path.samestat(os.fstat(directory), Path(path).stat())
    except OSError:
        return True


def main() -> None:
    """Verify the directory that is named on the command line; exit with `REFUSED` and one line where it is not whole.

    The threads of the process that waits for this one go on meanwhile, and a decoder that crashes ends only this one.
    """
    if sys.platform != "win32":
        os.nice(5)  # serving processes come first
    try:
        load_snapshot(sys.argv[1], trust="stamp")
    except SegmentError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
