"""The keys of logs in the file: the log's number, then the subject; `store.py` has the table."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from typing import TYPE_CHECKING, Any

from capline.model.errors import StoreDamagedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.subject import Subject
    from capline.store.local.transaction import LogRef
else:
    from capline.model.arrays import np

LOG_KEY = b"log:"
LOG_NUMBER = struct.Struct(">I")
LOG_META = struct.Struct(">IQ")
"""What `meta` has of a log: its number, and the longest window on it (us)."""
_INTEGER_KEY = struct.Struct(">4scQ")
_INTEGER = struct.Struct(">cQ")
LONGEST_PLAIN_BYTES = 400


def subject_key(subject: Subject) -> bytes:
    """A subject as the tail of a key."""
    if isinstance(subject, int):
        return _INTEGER.pack(b"i", subject)
    text = subject.encode()
    return b"t" + text if len(text) <= LONGEST_PLAIN_BYTES else b"h" + hashlib.blake2b(text, digest_size=32).digest()


def subject_of(tail: bytes) -> Subject:
    """The subject that `subject_key` made this of.

    Raises `StoreError` where it kept the hash only, and `StoreDamagedError` where it made no such key.
    """
    kind = tail[:1]
    if kind == b"i" and len(tail) == _INTEGER.size:
        return _INTEGER.unpack(tail)[1]
    if kind == b"t":
        with contextlib.suppress(UnicodeDecodeError):
            return tail[1:].decode()
    if kind == b"h":
        raise StoreError(f"a subject of more than {LONGEST_PLAIN_BYTES} bytes is kept as a hash: it cannot be read")
    raise StoreDamagedError(f"the key {tail.hex()} of a stored log is damaged: it names no subject")


def log_key(ref: LogRef, subject: Subject) -> bytes:
    """The key of a subject's log."""
    return log_prefix(ref) + subject_key(subject)


def log_keys(ref: LogRef, subjects: Sequence[Subject] | NDArray[Any]) -> list[bytes]:
    """Those of many subjects, each as `log_key` makes it; of an array of numbers in a fraction of its time."""
    prefix = log_prefix(ref)
    if not isinstance(subjects, np.ndarray):
        pack = _INTEGER_KEY.pack
        return [
            pack(prefix, b"i", subject) if type(subject) is int else prefix + subject_key(subject)
            for subject in subjects
        ]
    keys = np.empty(len(subjects), [("head", "V5"), ("subject", ">u8")])
    keys["head"], keys["subject"] = np.void(prefix + b"i"), subjects
    return keys.view("V13").tolist()


def log_prefix(ref: LogRef) -> bytes:
    """What the keys of all logs of this name begin with."""
    return ref.handle  # pyright: ignore[reportReturnType] - what `_handle` put there
