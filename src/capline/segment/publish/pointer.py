"""The pointer: the one object of a publication that changes, by conditional writes.

    pointer.json
    {                                                             -+
      "format": "capline-segments-pointer",                        |
      "format_version": 1,                                         |
      "sequence": 12,                  one more at each change     |  sealed: see `seal`
      "changed_us": 1740830400000000,                              |
      "writer": "9f8e7d6c5b4a3928",    of this change alone        |
      "current": "2025-03-01",         what is served              |
      "collector": "",                 who deletes now, and the    |
      "collecting_until_us": 0,        end of its lease            |
      "versions": [                    what may be served          |
        {"version": "2025-03-01", "manifest": "<SHA-256>",         |
         "manifest_bytes": 812, "bytes": 135000000, "cardinality": 270000000,
         "published_us": 1740830400000000, "pinned": false}        |
      ]                                                           -+
      ,"sha256": "<64 hex digits>"
    }

The rule: every version in `versions` is complete and kept. The pointer changes only by a conditional write against the
one that was read. So publishing, rolling back, pinning and retiring are one history without branches, and a version
that is being deleted cannot become current.

`writer` is random, so that no two pointers have the same bytes: an entity tag is often their hash, and a pointer that
returned to an earlier state must not look unchanged to a slow publisher.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from capline.model.clock import LATEST_US
from capline.model.errors import SegmentError
from capline.segment.seal import is_sealed

POINTER = "pointer.json"
MANIFESTS = "manifests"
OBJECTS = "objects"

FORMAT = "capline-segments-pointer"
FORMAT_VERSION = 1

MOST_VERSIONS = 256
"""The most versions; a further publication retires the oldest that is not pinned."""

LARGEST_POINTER_BYTES = 1 << 18
"""Over twice what 256 versions with the longest names take."""

LONGEST_VERSION = 128
LARGEST_MANIFEST_BYTES = 1 << 28
LARGEST_SNAPSHOT_BYTES = 1 << 50
MOST_IDS = 1 << 64

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WRITER = re.compile(r"[0-9a-f]{16}", re.ASCII)


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version that can be served; `manifest` is the SHA-256 of its manifest."""

    version: str
    manifest: str
    manifest_bytes: int
    bytes: int
    cardinality: int
    published_us: int
    pinned: bool = False

    @property
    def manifest_path(self) -> str:
        """The manifest's object, below the publication's address."""
        return f"{MANIFESTS}/{self.manifest}.json"


class Pointer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The served version, and all versions in the order of publication."""

    format: str
    format_version: int
    sequence: int
    changed_us: int
    writer: str
    current: str
    collector: str
    collecting_until_us: int
    versions: tuple[Published, ...]

    def find(self, version: str) -> Published | None:
        """Return the version of this name, or None."""
        return next((each for each in self.versions if each.version == version), None)

    @property
    def serving(self) -> Published:
        """The version that is served."""
        return next(each for each in self.versions if each.version == self.current)

    def changed(self, writer: str, now_us: int, **fields: Any) -> Pointer:
        """Make the pointer that comes after this one."""
        return msgspec.structs.replace(self, sequence=self.sequence + 1, writer=writer, changed_us=now_us, **fields)


NOTHING = Pointer(FORMAT, FORMAT_VERSION, 0, 0, "", "", "", 0, ())
"""The pointer before the first publication; never written."""


class _Sealed(Pointer, frozen=True, forbid_unknown_fields=True):
    sha256: str


class _Header(msgspec.Struct, frozen=True):
    format: str
    format_version: int


def decode_pointer(data: bytes, where: str) -> Pointer:
    """Decode a pointer; `SegmentError`, naming `where`, unless it is exactly as it was written."""
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (ValueError, RecursionError):
        raise SegmentError(f"{where}: not a pointer of segments, or a torn one; publish again with --resend") from None
    if header.format == FORMAT and header.format_version != FORMAT_VERSION:
        raise SegmentError(
            f"{where}: format version {header.format_version}, and this capline reads {FORMAT_VERSION}; "
            "use the capline that wrote it"
        )
    if header.format != FORMAT or not is_sealed(data):
        raise SegmentError(f"{where}: does not match its own checksum; it is damaged: publish again with --resend")
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        _check(sealed)
    except ValueError as error:
        raise SegmentError(f"{where}: {error}") from None
    return Pointer(**{field: getattr(sealed, field) for field in Pointer.__struct_fields__})


def is_of_this_version(data: bytes) -> bool:
    """Whether the bytes do not say that they are a pointer of another format version."""
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (ValueError, RecursionError):
        return True
    return header.format != FORMAT or header.format_version == FORMAT_VERSION


def check_version(version: str) -> str:
    """Return the version's name, or raise `SegmentError`: 1 to 128 characters that can be printed on a line."""
    if not (1 <= len(version) <= LONGEST_VERSION and version.isprintable() and version == version.strip()):
        raise SegmentError(f"version {version[:40]!r} is not 1 to {LONGEST_VERSION} printable characters; name another")
    return version


def _check(sealed: _Sealed) -> None:
    """Check the bounds of the values, which the seal does not."""
    if not 1 <= len(sealed.versions) <= MOST_VERSIONS:
        raise SegmentError(f"{len(sealed.versions)} versions, where 1 to {MOST_VERSIONS} can be")
    if len({each.version for each in sealed.versions}) < len(sealed.versions):
        raise SegmentError("two versions have the same name")
    if sealed.find(sealed.current) is None:
        raise SegmentError(f"points to version {sealed.current[:40]!r}, which is not in its own list")
    instants = 0 <= sealed.changed_us <= LATEST_US and 0 <= sealed.collecting_until_us <= LATEST_US
    writers = _WRITER.fullmatch(sealed.writer) and (not sealed.collector or _WRITER.fullmatch(sealed.collector))
    if not (instants and writers and sealed.sequence >= 1):
        raise SegmentError("its sequence, instants or writer are impossible")
    for each in sealed.versions:
        check_version(each.version)
        if not _SHA256.fullmatch(each.manifest):
            raise SegmentError(f"version {each.version!r} has no proper SHA-256")
        sizes = 0 < each.manifest_bytes <= LARGEST_MANIFEST_BYTES and 0 <= each.bytes <= LARGEST_SNAPSHOT_BYTES
        if not (sizes and 0 <= each.cardinality <= MOST_IDS and 0 <= each.published_us <= LATEST_US):
            raise SegmentError(f"version {each.version!r} has an impossible size or instant")
