"""Fetches the objects of a published version, with checks of their size and hash."""

import hashlib
from pathlib import Path

from capline.model.errors import SegmentError
from capline.segment.manifest import LARGEST_MANIFEST_BYTES, Manifest, decode_manifest
from capline.segment.objects.store import ObjectMissingError, ObjectStore
from capline.segment.publish.pointer import OBJECTS, Published


def read_manifest_of(objects: ObjectStore, version: Published) -> tuple[bytes, Manifest]:
    """Read a published version's manifest; `SegmentError` unless it is the one that the pointer names."""
    shown = f"{objects.where}/{version.manifest_path}"
    try:
        got = objects.get(version.manifest_path, min(version.manifest_bytes, LARGEST_MANIFEST_BYTES))
    except ObjectMissingError:
        raise _gone(shown, version) from None
    if got is None or len(got.data) != version.manifest_bytes:
        raise SegmentError(
            f"{shown}: not the {version.manifest_bytes} bytes that were published; "
            "it is torn: publish again with --resend"
        )
    if hashlib.sha256(got.data).hexdigest() != version.manifest:
        raise SegmentError(
            f"{shown}: does not match the SHA-256 in the pointer; it is damaged: publish again with --resend"
        )
    return got.data, decode_manifest(got.data, shown)


def download(objects: ObjectStore, version: Published, sha256: str, size_bytes: int, target: Path) -> None:
    """Download an object of a version to a new file; `SegmentError` unless it is what the manifest says."""
    path = f"{OBJECTS}/{sha256}"
    shown = f"{objects.where}/{path}"
    try:
        found = objects.download(path, target, size_bytes)
    except ObjectMissingError:
        raise _gone(shown, version) from None
    if found != sha256:
        raise SegmentError(f"{shown}: does not match its SHA-256; it is damaged: publish again with --resend")


def _gone(shown: str, version: Published) -> SegmentError:
    return SegmentError(
        f"{shown}: gone, and version {version.version!r} needs it; publish again with --resend, or roll back"
    )
