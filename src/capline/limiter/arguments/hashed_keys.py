"""Subjects that never reach a store in the clear: each becomes a keyed hash of itself first.

    "h" + first 16 bytes, in hex, of HMAC-SHA256(key, "i" + u64 big-endian for an integer | "t" + UTF-8 for text)

Whoever has the store but not the key can neither read a subject nor try ids one by one. The key is as long-lived as the
logs: under another key every subject begins again. Costs some 2 µs a subject.
"""

from __future__ import annotations

import hmac
import struct
from typing import TYPE_CHECKING

from capline.model.errors import InvalidTypeError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.model.subject import Subject

LEAST_KEY_BYTES = 16
MOST_KEY_BYTES = 1024
HASH_BYTES = 16
_INTEGER = struct.Struct(">cQ")


def keyed_hash(key: bytes) -> Callable[[Subject], Subject]:
    """A function from a checked subject to its keyed hash; raises unless the key is 16 to 1024 bytes."""
    if not isinstance(key, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"subject_key is bytes, not {type(key).__name__}")
    if not LEAST_KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        raise InvalidValueError(
            f"subject_key is {LEAST_KEY_BYTES} to {MOST_KEY_BYTES} bytes, not {len(key)}; make one by "
            f"secrets.token_bytes(32) and keep it"
        )

    # A closure, so that no attribute of any object shows the key.
    def hashed(subject: Subject) -> Subject:
        named = _INTEGER.pack(b"i", subject) if isinstance(subject, int) else b"t" + subject.encode()
        return "h" + hmac.digest(key, named, "sha256")[:HASH_BYTES].hex()

    return hashed
