"""The pointer's bytes: read back exactly as written, or refused."""

from typing import Any

import msgspec
import pytest
from tests.kit.segments import resealed

from capline.model.errors import SegmentError
from capline.segment.publish.pointer import (
    FORMAT,
    LARGEST_POINTER_BYTES,
    MOST_VERSIONS,
    Pointer,
    Published,
    decode_pointer,
)
from capline.segment.seal import seal

HASH = "0f" * 32
ONE = Published("2025-03-01", HASH, 812, 135_000_000, 270_000_000, 1_740_830_400_000_000)
POINTER = Pointer(FORMAT, 1, 12, 1_740_830_400_000_000, "9f8e7d6c5b4a3928", "2025-03-01", "", 0, (ONE,))


def test_read_back() -> None:
    assert decode_pointer(seal(POINTER), "p") == POINTER


def test_the_bytes() -> None:
    """What other readers of the format rely on."""
    sealed = (
        b'{\n  "format": "capline-segments-pointer",\n  "format_version": 1,\n  "sequence": 12,\n'
        b'  "changed_us": 1740830400000000,\n  "writer": "9f8e7d6c5b4a3928",\n  "current": "2025-03-01",\n'
        b'  "collector": "",\n  "collecting_until_us": 0,\n  "versions": [\n    {\n'
        b'      "version": "2025-03-01",\n      "manifest": "' + HASH.encode() + b'",\n      "manifest_bytes": 812,\n'
        b'      "bytes": 135000000,\n      "cardinality": 270000000,\n      "published_us": 1740830400000000,\n'
        b'      "pinned": false\n    }\n  ]'
    )
    data = seal(POINTER)
    assert data.startswith(sealed)
    assert data[len(sealed) :].startswith(b',\n  "sha256": "')


def test_the_largest_fits() -> None:
    versions = tuple(
        msgspec.structs.replace(
            ONE,
            version=f"\U0001f4e6{'v' * 120}{number:07}",
            manifest_bytes=1 << 28,
            bytes=1 << 50,
            cardinality=1 << 64,
            published_us=1 << 52,
        )
        for number in range(MOST_VERSIONS)
    )
    data = seal(msgspec.structs.replace(POINTER, versions=versions, current=versions[0].version))
    assert len(data) < LARGEST_POINTER_BYTES / 2
    assert len(decode_pointer(data, "p").versions) == MOST_VERSIONS


def test_cut_short_at_every_length() -> None:
    data = seal(POINTER)
    for length in range(len(data)):
        with pytest.raises(SegmentError, match=r"^p: "):
            decode_pointer(data[:length], "p")


def test_every_flipped_bit() -> None:
    data = seal(POINTER)
    for place in range(len(data)):
        for bit in range(8):
            with pytest.raises(SegmentError, match=r"^p: "):
                decode_pointer(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :], "p")


ENTRY: dict[str, Any] = msgspec.structs.asdict(ONE)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format_version": 2}, "format version 2, and this capline reads 1; use the capline that wrote it"),
        ({"format": "other"}, "does not match its own checksum; it is damaged: publish again with --resend"),
        ({"current": "gone"}, "points to version 'gone', which is not in its own list"),
        ({"versions": []}, "0 versions, where 1 to 256"),
        ({"versions": [ENTRY] * 257}, "257 versions"),
        ({"versions": [ENTRY] * 2}, "two versions have the same name"),
        ({"versions": [{**ENTRY, "manifest": "../../etc/passwd"}]}, "no proper SHA-256"),
        ({"versions": [{**ENTRY, "manifest_bytes": 1 << 40}]}, "impossible size"),
        ({"versions": [{**ENTRY, "bytes": -1}]}, "impossible size"),
        ({"versions": [{**ENTRY, "cardinality": 1 << 65}]}, "impossible size|out of range"),
        ({"versions": [ENTRY, {**ENTRY, "version": "a\nb"}]}, "printable characters"),
        ({"versions": [{**ENTRY, "more": 1}]}, "unknown field"),
        ({"sequence": 0}, "impossible"),
        ({"sequence": "1"}, "Expected `int`"),
        ({"writer": "x"}, "impossible"),
        ({"collector": "x"}, "impossible"),
        ({"collecting_until_us": -1}, "impossible"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_sealed_and_impossible(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(SegmentError, match=why):
        decode_pointer(resealed(seal(POINTER), **changes), "p")


@pytest.mark.parametrize("data", [b"", b"null", b"[" * 100_000, b"{}", b"\xff" * 50, b"<html>"])
def test_something_else(data: bytes) -> None:
    with pytest.raises(
        SegmentError, match=r"^p: not a pointer of segments, or a torn one; publish again with --resend"
    ):
        decode_pointer(data, "p")
