"""Bitmaps mapped into memory without a copy: roaring's frozen format.

    portable file ── verified, read, copied ──> BitMap            always possible; a hundred megabytes, tens of ms
    frozen file   ── mapped ──> BitMap over the mapping           1 ms, and a page takes memory when it is first read

CRoaring can use its frozen format in place. pyroaring contains CRoaring but does not offer this; it only exports the
address of a bitmap's C struct (`raw_pointer`) and CRoaring's symbols. So CRoaring makes a frozen view over the mapping,
and its head, a `roaring_bitmap_t`, is copied over the head of an empty `BitMap`. CRoaring frees only the head of a
frozen bitmap; the memory belongs to a `Keeper`, which lives as long as the bitmap.

The rule: this is an optimisation and never needed. It is used with the CRoaring versions named here, after a trial on a
small bitmap, and only for files that this machine wrote after it verified the snapshot (`verified`). Anything else is
read and copied. The format depends on the machine and on CRoaring, so such files are never published.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyroaring
from pyroaring import BitMap

_KNOWN_MAJOR = "v5."
"""The known version of CRoaring, whose head is five fields: 40 bytes on 64-bit machines."""

_HEAD_BYTES = 40
_ALIGNMENT_BYTES = 32


class _View(BitMap):
    """A bitmap over the memory of its keeper; `IdSet` never changes a bitmap."""

    __slots__ = ("keeper",)

    keeper: Keeper


class Keeper:
    """Owns the memory of one frozen bitmap, and CRoaring's view of it."""

    __slots__ = ("_lib", "_view", "memory")

    def __init__(self, lib: Any, memory: npt.NDArray[np.uint8], view: int) -> None:
        self._lib = lib
        self.memory = memory
        self._view = view

    def __del__(self) -> None:
        self._lib.roaring_bitmap_free(self._view)


def identity() -> str | None:
    """What a frozen file depends on: byte order and CRoaring's version; None if frozen files cannot be used."""
    return None if library() is None else f"{sys.byteorder} {pyroaring.__croaring_version__}"


@cache
def library() -> Any:
    """CRoaring in pyroaring, after one trial; None if it is not as this module knows it."""
    version = str(getattr(pyroaring, "__croaring_version__", ""))
    if not version.startswith(_KNOWN_MAJOR) or sys.maxsize <= 1 << 32 or not hasattr(BitMap, "raw_pointer"):
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    try:
        # With the interpreter's lock held: releasing it would cost more than each of these calls.
        lib = ctypes.PyDLL(pyroaring.__file__)
        for name, result, takes in (
            ("roaring_bitmap_frozen_size_in_bytes", size, [pointer]),
            ("roaring_bitmap_frozen_serialize", None, [pointer, pointer]),
            ("roaring_bitmap_frozen_view", pointer, [pointer, size]),
            ("roaring_bitmap_free", None, [pointer]),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, takes
    except (OSError, AttributeError):
        return None
    return lib if _works(lib) else None


def serialize(bits: BitMap) -> memoryview:
    """The frozen bytes of a bitmap, in new memory."""
    lib = library()
    target = mmap.mmap(-1, lib.roaring_bitmap_frozen_size_in_bytes(_address(bits)))
    lib.roaring_bitmap_frozen_serialize(_address(bits), np.frombuffer(target, dtype=np.uint8).ctypes.data)
    return memoryview(target)


def adopt(memory: npt.NDArray[np.uint8]) -> BitMap | None:
    """A bitmap over these bytes, without a copy; None if they are not framed like a frozen bitmap.

    The content is not checked, so use it only for bytes that this machine wrote.
    """
    return _adopt(library(), memory)


def _adopt(lib: Any, memory: npt.NDArray[np.uint8]) -> BitMap | None:
    address = memory.ctypes.data
    if address % _ALIGNMENT_BYTES:
        return None
    view = lib.roaring_bitmap_frozen_view(address, memory.size)
    if not view:
        return None
    keeper = Keeper(lib, memory, view)
    bits = _View()
    ctypes.memmove(_address(bits), view, _HEAD_BYTES)
    bits.keeper = keeper
    return bits


def _address(bits: BitMap) -> int:
    # A property, though the package's stub calls it a method.
    address: Any = bits.raw_pointer
    return int(address)


def _works(lib: Any) -> bool:
    """Try it on a bitmap with a run, an array and a bitset, and compare the answers with its own."""
    whole = BitMap(range(70_000)) | BitMap(range(1 << 17, 1 << 18, 2)) | BitMap([1 << 20, (1 << 32) - 1])
    whole.run_optimize()
    target = mmap.mmap(-1, lib.roaring_bitmap_frozen_size_in_bytes(_address(whole)))
    memory = np.frombuffer(target, dtype=np.uint8)
    lib.roaring_bitmap_frozen_serialize(_address(whole), memory.ctypes.data)
    bits = _adopt(lib, memory)
    return bits is not None and bits == whole and (bits & whole) == whole and len(bits) == len(whole)
