"""The manifest of a snapshot: what the directory holds, with a seal (`seal`).

    {
      "format": "capline-segments",
      "format_version": 2,
      "version": "20250301T120000.000000Z",
      "created_us": 1740830400000000,
      "ids": "uint32",
      "partial": false,
      "union": 5,
      "segments": [
        {"name": "new", "file": "new-9f86d081884c7d65.roaring", "cardinality": 3, "bytes": 24, "sha256": "…",
         "exclusive": true}, …
      ],
      "pairs": [[0, 1, 0]],
      "dictionary": []
      ,"sha256": "…"
    }

`ids` is uint32, uint64 or text; for text, the sets hold numbers and `dictionary` names the files that map them to
texts. `union` is the number of ids in all exclusive segments; it equals the sum of their cardinalities, so no id is in
two. `pairs` has the number of ids that two segments share, by their indices in `segments`; it is empty for more than 32
segments. A `partial` snapshot may have ids in two segments and is only for merging. A file's name has the first 16
digits of its SHA-256, so an unchanged file keeps its name.

The rule: only a manifest that capline wrote is accepted. A newer format version is reported as such, not as damage.
File names are plain names: a manifest cannot point outside its directory.
"""

import re
from pathlib import Path

import msgspec

from capline.model.clock import LATEST_US
from capline.model.errors import PolicyError, SegmentError
from capline.model.policy import check_name
from capline.segment import files
from capline.segment.seal import is_sealed

FORMAT = "capline-segments"
FORMAT_VERSION = 2
MANIFEST = "manifest.json"

MOST_SEGMENTS = 1024
"""As many as one policy may have. With more, the columns are probably mixed up."""

MOST_PAIRED = 32
"""The most segments for which the manifest has `pairs`."""

MOST_IDS = 1 << 48
"""The most ids that a manifest may state for a segment, far above what fits a machine."""

KINDS = ("uint32", "uint64", "text")

LARGEST_MANIFEST_BYTES = 1 << 20
"""Twice what 1,024 segments with the longest names take."""

_OLD_VERSION = 1
_MOST_BYTES = 1 << 40

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of a snapshot: its size, content and number of ids or texts."""

    file: str
    cardinality: int
    bytes: int
    sha256: str


class SegmentEntry(FileEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One segment of a snapshot; one that is not `exclusive` may share ids with any other."""

    name: str
    exclusive: bool = True


class DictionaryEntry(FileEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of the id dictionary: `cardinality` texts, numbered from `first` on."""

    first: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a snapshot's directory holds; `segments` are in the order of their codes, `created_us` is since 1970."""

    format: str
    format_version: int
    version: str
    created_us: int
    ids: str
    partial: bool
    union: int
    segments: tuple[SegmentEntry, ...]
    pairs: tuple[tuple[int, int, int], ...] = ()
    dictionary: tuple[DictionaryEntry, ...] = ()

    @property
    def exclusive(self) -> bool:
        """Whether no id is in two of the segments, as declared and verified."""
        return not self.partial and all(entry.exclusive for entry in self.segments)

    def files(self) -> tuple[FileEntry, ...]:
        """All files beside the manifest: those of segments, and those of the id dictionary."""
        return (*self.segments, *self.dictionary)


class _Sealed(Manifest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    sha256: str


class _OldEntry(FileEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str


class _Old(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Format version 1: uint32 ids in exclusive segments; file names without a hash."""

    format: str
    format_version: int
    version: str
    created_us: int
    exclusive: bool
    segments: tuple[_OldEntry, ...]
    sha256: str

    def renewed(self) -> Manifest:
        if not self.exclusive:
            raise ValueError("its segments may overlap, which format version 1 cannot rule out; build it again")
        entries = tuple(SegmentEntry(**msgspec.structs.asdict(entry)) for entry in self.segments)
        union = sum(entry.cardinality for entry in entries)
        head = (self.format, self.format_version, self.version, self.created_us)
        return Manifest(*head, ids="uint32", partial=False, union=union, segments=entries)


class _Header(msgspec.Struct, frozen=True):
    """What every format version has."""

    format: str
    format_version: int


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Decode a manifest's file; `SegmentError`, naming `where`, unless it is exactly as it was written."""
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (ValueError, RecursionError):
        raise SegmentError(f"{where}: not a segment manifest, or a damaged one; build the snapshot again") from None
    if header.format == FORMAT and header.format_version not in (_OLD_VERSION, FORMAT_VERSION):
        raise SegmentError(
            f"{where}: format version {header.format_version}, and this capline reads up to {FORMAT_VERSION}; "
            "build the snapshot again, or use the capline that wrote it"
        )
    if header.format != FORMAT or not is_sealed(data):
        raise SegmentError(f"{where}: does not match its own checksum; it is damaged or was edited: build it again")
    try:
        if header.format_version == _OLD_VERSION:
            manifest = msgspec.json.decode(data, type=_Old).renewed()
        else:
            sealed = msgspec.json.decode(data, type=_Sealed)
            manifest = Manifest(**{field: getattr(sealed, field) for field in Manifest.__struct_fields__})
        _check(manifest)
    except ValueError as error:
        raise SegmentError(f"{where}: {error}") from None
    return manifest


def read_manifest(path: str | Path) -> Manifest:
    """Read only the manifest of the snapshot in this directory; `SegmentError` if it is missing or damaged.

    `load_snapshot` verifies the other files.
    """
    where = Path(path) / MANIFEST
    return decode_manifest(files.read(where, LARGEST_MANIFEST_BYTES), str(where))


def check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names; raises `SegmentError` unless they are 1 to 1,024 different names of segments."""
    if not 1 <= len(names) <= MOST_SEGMENTS:
        raise SegmentError(f"{len(names)} segments, where 1 to {MOST_SEGMENTS} can be; is it the right column?")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SegmentError(f"segment {twice!r} is named twice; name each once")
    try:
        return tuple(check_name(name, "segment") for name in names)
    except PolicyError as error:
        raise SegmentError(str(error)) from None


def _check(manifest: Manifest) -> None:
    """Check the bounds of the values, which the seal does not."""
    check_names(tuple(entry.name for entry in manifest.segments))
    if not 0 <= manifest.created_us <= LATEST_US:
        raise SegmentError("its creation time is impossible")
    if manifest.ids not in KINDS:
        raise SegmentError(f"its ids are {manifest.ids[:40]!r}, and this capline knows {', '.join(KINDS)}")
    _check_files(manifest)
    following = 0
    for entry in manifest.dictionary:
        if entry.first != following or not entry.cardinality:
            raise SegmentError("its dictionary leaves out numbers, or gives one twice")
        following += entry.cardinality
    numbered = manifest.ids == "text" and any(entry.cardinality for entry in manifest.segments)
    if (numbered and not following) or (following and manifest.ids != "text"):
        raise SegmentError("a dictionary goes with text ids, and with no others")
    if not manifest.partial:
        _check_proof(manifest)


def _check_files(manifest: Manifest) -> None:
    if len({entry.file for entry in manifest.files()}) < len(manifest.files()):
        raise SegmentError("two segments share a file")
    most = MOST_IDS if manifest.ids == "uint64" else 1 << 32
    for entry in manifest.files():
        what = f"segment {entry.name!r}" if isinstance(entry, SegmentEntry) else f"dictionary file {entry.file!r}"
        if not _FILE.fullmatch(entry.file) or entry.file == MANIFEST or not _SHA256.fullmatch(entry.sha256):
            raise SegmentError(f"{what} has no proper file name and SHA-256")
        if not (0 <= entry.cardinality <= most and 0 < entry.bytes <= _MOST_BYTES):
            raise SegmentError(f"{what} has an impossible size")


def _check_proof(manifest: Manifest) -> None:
    together = sum(entry.cardinality for entry in manifest.segments if entry.exclusive)
    if manifest.union != together:
        raise SegmentError(f"its exclusive segments have {together} ids, and {manifest.union} different ones")
    count = len(manifest.segments)
    wanted = [(left, other) for other in range(count) for left in range(other)] if count <= MOST_PAIRED else []
    if manifest.format_version != _OLD_VERSION and [pair[:2] for pair in manifest.pairs] != wanted:
        raise SegmentError("it does not say how many ids each two segments share")
    for left, other, shared in manifest.pairs:
        first, second = manifest.segments[left], manifest.segments[other]
        most = 0 if first.exclusive and second.exclusive else min(first.cardinality, second.cardinality)
        if not 0 <= shared <= most:
            raise SegmentError(f"segments {first.name!r} and {second.name!r} share {shared} ids, and may share {most}")
