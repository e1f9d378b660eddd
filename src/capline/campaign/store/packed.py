"""Ids and texts of a batch as bytes, and its deflated bytes.

    ids      u8  4 or 8   numbers: each minus the one before it, u32 or u64
             u8  0        text: as texts
    texts    u32 * rows   lengths in bytes; then the texts, UTF-8, one after the other

Numbers, and texts that all have one length, lie plane by plane: the first byte of each, the second byte of each, … So
the equal ones lie together, and deflate well: dense numbers take less than a byte each, UUIDs 18.

In memory ids are an array: uint32, uint64, or Python texts (its dtype is object). They ascend: numbers by value, texts
by code point, which is also the order of their UTF-8.
"""

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capline.model.errors import CampaignError
from capline.model.subject import Subject

Ids = NDArray[Any]

_TEXT = 0


def subjects(ids: Ids) -> NDArray[np.integer[Any]] | list[Subject]:
    """The ids as a limiter takes them: an array of numbers, or a list of texts."""
    return ids.tolist() if ids.dtype == object else ids


def sort_key(subject: Subject) -> bytes:
    """Bytes that sort as ids do."""
    return subject.encode() if isinstance(subject, str) else int(subject).to_bytes(8)


def span_of(ids: Ids) -> tuple[bytes, bytes]:
    """The first and the last of ascending ids, as keys that sort."""
    return (sort_key(ids[0]), sort_key(ids[-1])) if len(ids) else (b"", b"")


def pack_ids(ids: Ids) -> bytes:
    """The ids as bytes."""
    if ids.dtype == object:
        return bytes([_TEXT]) + pack_texts(ids.tolist())
    width = ids.dtype.itemsize
    deltas = np.diff(ids, prepend=ids.dtype.type(0)).astype(f"<u{width}")
    return bytes([width]) + _turned(deltas.view(np.uint8), len(ids))


def unpack_ids(raw: bytes, rows: int, number: int) -> tuple[Ids, int]:
    """The ids at the head of the bytes of batch `number`, and where they end; `CampaignError` if they are damaged."""
    width = raw[0] if raw else 1
    if width == _TEXT:
        texts, end = unpack_texts(raw, 1, rows, number)
        ids = np.array(texts, object)
        fits = "" not in texts
    elif width in (4, 8) and len(raw) > rows * width:
        end = 1 + rows * width
        planes = np.frombuffer(raw, np.uint8, rows * width, 1)
        deltas = np.frombuffer(_turned(planes, width), f"<u{width}")
        ids = np.cumsum(deltas, dtype=f"u{width}")
        fits = True
    else:
        raise damaged(number)
    if not fits or not np.all(ids[1:] > ids[:-1]):
        raise damaged(number)
    return ids, end


def pack_texts(texts: Sequence[str]) -> bytes:
    """Texts as bytes."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in encoded], "<u4")
    joined = b"".join(encoded)
    return lengths.tobytes() + (_turned(np.frombuffer(joined, np.uint8), len(texts)) if _even(lengths) else joined)


def unpack_texts(raw: bytes, start: int, rows: int, number: int) -> tuple[list[str], int]:
    """So many texts from `start` on, and where they end; `CampaignError` if they are damaged."""
    if len(raw) < start + 4 * rows:
        raise damaged(number)
    lengths = np.frombuffer(raw, "<u4", rows, start)
    ends: list[int] = np.cumsum(lengths, dtype=np.uint64).tolist()
    start += 4 * rows
    end = start + (ends[-1] if ends else 0)
    if end > len(raw):
        raise damaged(number)
    joined = raw[start:end]
    if _even(lengths):
        joined = _turned(np.frombuffer(joined, np.uint8), int(lengths[0]))
    try:
        return [joined[left:right].decode() for left, right in pairwise((0, *ends))], end
    except UnicodeDecodeError:
        raise damaged(number) from None


def _even(lengths: NDArray[np.integer[Any]]) -> bool:
    return bool(lengths.size and lengths[0] and np.all(lengths == lengths[0]))


def _turned(data: NDArray[np.uint8], rows: int) -> bytes:
    """A table of bytes with so many rows, column by column."""
    return data.reshape(rows, -1).T.tobytes() if data.size else b""


def inflate(data: bytes, most_bytes: int, number: int) -> bytes:
    """Inflate the bytes of batch `number`; `CampaignError` where they are damaged, or are more than `most_bytes`."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(data, most_bytes + 1)
    except zlib.error:
        raise damaged(number) from None
    if len(raw) > most_bytes or not inflater.eof or inflater.unused_data:
        raise damaged(number)
    return raw


def damaged(number: int) -> CampaignError:
    """The error for a batch whose bytes are damaged."""
    return CampaignError(f"batch {number} is damaged")
