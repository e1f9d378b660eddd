"""The manifest of a snapshot: what the directory holds, sealed by a checksum over its own bytes.

    {                                                  -+
      "format": "capline-segments",                     |
      "format_version": 1,                              |
      "version": "20250301T120000.000000Z",             |  the sealed part: every byte counts,
      "created_us": 1740830400000000,                   |  white space included
      "exclusive": true,                                |
      "segments": [                                     |
        {"name": "new", "file": "new.roaring", "cardinality": 3, "bytes": 24, "sha256": "…"}
      ]                                                -+
      ,"sha256": "<64 hex digits: SHA-256 of the sealed part>"
    }

(The real file is indented by two spaces throughout, and the comma ends the line before.) The sealed part is hashed as
bytes, not as values: there is no canonical form to agree on, and a flipped bit in a blank is found like any other. The
seal has a fixed shape at the very end, so it needs no parser to find.

The rule: a manifest that is read back is exactly one that was written. Another format version is told apart from
damage, so that an old capline says "newer", not "broken". Names of files are plain names: a manifest cannot point
outside its directory.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from capline.model.clock import LATEST_US
from capline.model.errors import PolicyError, SegmentError
from capline.model.policy import check_name
from capline.segment import files

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "MANIFEST",
    "MOST_SEGMENTS",
    "Manifest",
    "SegmentEntry",
    "check_names",
    "decode_manifest",
    "encode_manifest",
    "instant_text",
    "read_manifest",
]

FORMAT = "capline-segments"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"

MOST_SEGMENTS = 1024
"""As many as one policy may differ by. A source with more has its columns mixed up."""

LARGEST_MANIFEST_BYTES = 1 << 20
"""Twice what 1,024 segments with the longest names take."""

_SEAL = re.compile(rb',\n  "sha256": "([0-9a-f]{64})"\n}\n')
_SEAL_BYTES = len(',\n  "sha256": ""\n}\n') + 64
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)


class SegmentEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One segment of a snapshot: its file in the directory, and what that file must be."""

    name: str
    file: str
    cardinality: int
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a snapshot's directory holds; `segments` are in the order of their codes, `created_us` is since 1970."""

    format: str
    format_version: int
    version: str
    created_us: int
    exclusive: bool
    segments: tuple[SegmentEntry, ...]


class _Sealed(Manifest, frozen=True, forbid_unknown_fields=True):
    sha256: str


class _Header(msgspec.Struct, frozen=True):
    """What every format version keeps, so that each can name the others."""

    format: str
    format_version: int


def encode_manifest(manifest: Manifest) -> bytes:
    """Write the manifest's file, seal and all."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=2).removesuffix(b"\n}")
    return body + b',\n  "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest's file; `SegmentError`, naming `where`, unless it is exactly one that was written."""
    seal = _SEAL.fullmatch(data[-_SEAL_BYTES:])
    whole = seal is not None and hashlib.sha256(data[:-_SEAL_BYTES]).hexdigest().encode() == seal[1]
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (ValueError, RecursionError):
        raise SegmentError(f"{where}: not a segment manifest, or a damaged one; build the snapshot again") from None
    if header.format == FORMAT and header.format_version != FORMAT_VERSION:
        raise SegmentError(
            f"{where}: format version {header.format_version}, and this capline reads {FORMAT_VERSION}; "
            "build the snapshot again, or use the capline that wrote it",
        )
    if header.format != FORMAT or not whole:
        raise SegmentError(f"{where}: does not match its own checksum; it is damaged or was edited: build it again")
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        _check(sealed)
    except ValueError as error:
        raise SegmentError(f"{where}: {error}") from None
    return Manifest(**{field: getattr(sealed, field) for field in Manifest.__struct_fields__})


def read_manifest(path: str | Path) -> Manifest:
    """Read the manifest of the snapshot in this directory, and nothing else of it: cheap, for lists.

    `SegmentError` where there is none, or it is damaged. The segments' files are verified by `load_snapshot` only.
    """
    where = Path(path) / MANIFEST
    return decode_manifest(files.read(where, LARGEST_MANIFEST_BYTES), str(where))


def check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a set of segments, or raise `SegmentError`: one or more, all well-formed, all different."""
    if not 1 <= len(names) <= MOST_SEGMENTS:
        raise SegmentError(f"{len(names)} segments, where 1 to {MOST_SEGMENTS} can be; is it the right column?")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SegmentError(f"segment {twice!r} is named twice; name each once")
    try:
        return tuple(check_name(name, "segment") for name in names)
    except PolicyError as error:
        raise SegmentError(str(error)) from None


def instant_text(instant_us: int) -> str:
    """Microseconds since 1970 as people write an instant: `2025-03-01T12:00:00Z`."""
    return datetime.fromtimestamp(instant_us // 1_000_000, UTC).isoformat().replace("+00:00", "Z")


def _check(sealed: _Sealed) -> None:
    """Bound what the checksum cannot: it says that the writer was consistent, not that it was right."""
    check_names(tuple(entry.name for entry in sealed.segments))
    if not sealed.exclusive:
        raise SegmentError("its segments may overlap, and this capline serves disjoint ones only")
    if len({entry.file for entry in sealed.segments}) < len(sealed.segments):
        raise SegmentError("two segments share a file")
    for entry in sealed.segments:
        if not _FILE.fullmatch(entry.file) or entry.file == MANIFEST or not _SHA256.fullmatch(entry.sha256):
            raise SegmentError(f"segment {entry.name!r} has no proper file name and SHA-256")
        if not (0 <= entry.cardinality <= 1 << 32 and entry.bytes > 0):
            raise SegmentError(f"segment {entry.name!r} has an impossible size")
    if not 0 <= sealed.created_us <= LATEST_US:
        raise SegmentError("it was made at an impossible instant")
