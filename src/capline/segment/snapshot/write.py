"""Writes a snapshot: whole under its name, or not at all.

    1  .NAME.<random>.tmp/     a hidden directory beside the final name, on the same file system
    2  *.roaring  *.ids        each written and forced to disk; dictionary files that exist already are linked
    3  manifest.json           last, sealed
    4  fsync the directory     the entries are durable before the name is
    5  rename to NAME          atomic; onto a name that is taken it fails, so two writers cannot both succeed
    6  fsync the parent        the name is durable

A killed writer leaves at most a hidden directory that nothing reads and anyone may delete. To replace a snapshot, the
two directories swap names in one system call (Linux `renameat2`, RENAME_EXCHANGE), and the old one is
then deleted; on a file system without that call, the old one steps aside first, and a kill between the two renames
leaves no snapshot under the name: never half of one.
"""

import ctypes
import errno
import hashlib
import os
import shutil
from pathlib import Path

from capline.model.errors import SegmentError
from capline.segment import files
from capline.segment.dictionary.dictionary import link_or_copy
from capline.segment.manifest import FORMAT, FORMAT_VERSION, MANIFEST, MOST_PAIRED, Manifest, SegmentEntry
from capline.segment.seal import seal
from capline.segment.snapshot.snapshot import Snapshot
from capline.segment.snapshot.verified import VERIFIED

SUFFIX = ".roaring"
_SUFFIXES = (SUFFIX, ".ids")

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def write_snapshot(snapshot: Snapshot, path: str | Path, *, replace: bool = False, partial: bool = False) -> Manifest:
    """Write the snapshot as the directory `path`, all at once, and return its manifest.

    A `partial` one is for merging only: it is not verified to be disjoint, and not served.

    `SegmentError` where the name is taken: `replace` allows it to be an earlier snapshot (never a directory that holds
    anything else). On any error, a full disk included, what was there before is untouched.
    """
    final = Path(path).absolute()
    if final.exists() or final.is_symlink():
        _check_replaceable(final, replace)
    temporary = files.beside(final)
    with files.os_errors("write the snapshot", path):
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            manifest = _fill(temporary, snapshot, partial)
            _rename(temporary, final, replace)
        finally:
            # By now this is the unfinished new snapshot, the replaced old one, or gone.
            shutil.rmtree(temporary, ignore_errors=True)
        files.fsync_directory(final.parent)
    return manifest


def _fill(directory: Path, snapshot: Snapshot, partial: bool) -> Manifest:
    directory.mkdir()
    entries: list[SegmentEntry] = []
    for name, ids in snapshot.sets.items():
        data = ids.to_bytes()
        digest = hashlib.sha256(data).hexdigest()
        file = f"{name}-{digest[:16]}{SUFFIX}"
        files.create(directory / file, data)
        entries.append(
            SegmentEntry(
                name=name,
                file=file,
                cardinality=len(ids),
                bytes=len(data),
                sha256=digest,
                exclusive=name in snapshot.names,
            )
        )
    dictionary = () if snapshot.ids is None else snapshot.ids.entries
    for entry, source in zip(dictionary, () if snapshot.ids is None else snapshot.ids.paths, strict=True):
        link_or_copy(source, directory / entry.file)
    manifest = Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        version=snapshot.version,
        created_us=snapshot.created_us,
        ids=snapshot.kind,
        partial=partial,
        # The sum is the number of different ids: that was verified when the snapshot was made.
        union=sum(entry.cardinality for entry in entries if entry.exclusive),
        segments=tuple(entries),
        pairs=_pairs(snapshot),
        dictionary=dictionary,
    )
    files.create(directory / MANIFEST, seal(manifest))
    files.fsync_directory(directory)
    return manifest


def _pairs(snapshot: Snapshot) -> tuple[tuple[int, int, int], ...]:
    sets = tuple(snapshot.sets.values())
    if len(sets) > MOST_PAIRED:
        return ()
    return tuple((left, other, sets[left].overlap(ids)) for other, ids in enumerate(sets) for left in range(other))


def _rename(temporary: Path, final: Path, replace: bool) -> None:
    try:
        # Fails onto a file or a directory that is not empty, so there is no race between a check and the rename.
        os.rename(temporary, final)  # noqa: PTH104 - Path.rename says the same with the direction hidden
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        _check_replaceable(final, replace)
        if not _exchange(temporary, final):
            retired = files.beside(final)
            final.rename(retired)
            temporary.rename(final)
            shutil.rmtree(retired, ignore_errors=True)


def _exchange(left: Path, other: Path) -> bool:
    """Swap the names of two directories at once; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return rename is not None and not rename(
        _AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)
    )


def _check_replaceable(final: Path, replace: bool) -> None:
    """Refuse a taken name; `replace` allows a directory that has a snapshot's files and no others."""
    if not final.is_dir() or final.is_symlink():
        raise SegmentError(f"{final}: something else has that name; choose another")
    names = os.listdir(final)  # noqa: PTH208 - names are all that is asked
    if not names:
        return
    if MANIFEST not in names or not all(name in (MANIFEST, VERIFIED) or name.endswith(_SUFFIXES) for name in names):
        raise SegmentError(f"{final}: a directory that is not a snapshot; choose another name")
    if not replace:
        raise SegmentError(f"{final}: there is a snapshot already; choose another name, or replace it (--replace)")
