"""Reads and swaps the pointer of a publication. Every change is a conditional write against what was read."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from capline.model.clock import Clock
from capline.model.errors import SegmentConflictError, SegmentError
from capline.segment.objects.store import ObjectData, ObjectMissingError, ObjectStore
from capline.segment.publish.pointer import (
    LARGEST_POINTER_BYTES,
    NOTHING,
    POINTER,
    Pointer,
    Published,
    decode_pointer,
    is_of_this_version,
)
from capline.segment.seal import is_sealed, seal

TRIES = 8
"""How often a change is tried again because others changed the pointer."""

_LARGEST_DAMAGE_BYTES = 1 << 30


class Publication(msgspec.Struct, frozen=True):
    """The pointer, and the tag that `swap` needs."""

    pointer: Pointer
    tag: str


def read_pointer(objects: ObjectStore) -> Publication | None:
    """Read the pointer; None if nothing was published. `SegmentError` if it cannot be read."""
    got = _stored(objects, LARGEST_POINTER_BYTES)
    return None if got is None else Publication(decode_pointer(got.data, f"{objects.where}/{POINTER}"), got.tag)


def _stored(objects: ObjectStore, most_bytes: int) -> ObjectData | None:
    with suppress(ObjectMissingError):
        return objects.get(POINTER, most_bytes)
    return None


class Versions:
    """The versions at one address, by their pointer."""

    def __init__(self, objects: ObjectStore, clock: Clock) -> None:
        self.objects = objects
        self._clock = clock

    def swapped(self, after: Pointer, before: Publication | None) -> bool:
        """Replace the pointer if it is still the one that was read; returns whether it was."""
        data = seal(after)
        if self.objects.swap(POINTER, data, None if before is None else before.tag):
            return True
        # It may be our own: the answer to a write was lost, and the client repeated it.
        try:
            now = read_pointer(self.objects)
        except SegmentError:
            return False
        return now is not None and now.pointer.writer == after.writer and now.pointer.sequence == after.sequence

    def change(self, change: Callable[[Pointer], dict[str, Any]]) -> Pointer:
        """Change fields of the pointer; read it again and repeat if others changed it."""
        for _ in range(TRIES):
            before = self.needed()
            fields = change(before.pointer)
            if all(getattr(before.pointer, name) == value for name, value in fields.items()):
                return before.pointer
            after = before.pointer.changed(secrets.token_hex(8), self._clock.now_us(), **fields)
            if self.swapped(after, before):
                return after
        raise SegmentConflictError(f"{self.objects.where}: others keep changing it; try again later")

    def read(self, *, repair: bool) -> Publication | None:
        """The pointer; with `repair`, a damaged one counts as empty. One of another format version is not damaged."""
        try:
            return read_pointer(self.objects)
        except SegmentError:
            if not repair:
                raise
        # Judged by its bytes, as the error may have been of the network.
        got = _stored(self.objects, _LARGEST_DAMAGE_BYTES)
        if got is None:
            return None
        try:
            return Publication(decode_pointer(got.data, f"{self.objects.where}/{POINTER}"), got.tag)
        except SegmentError:
            if is_sealed(got.data) and not is_of_this_version(got.data):
                raise
            return Publication(NOTHING, got.tag)

    def needed(self) -> Publication:
        """The pointer; `SegmentError` if nothing was published."""
        found = read_pointer(self.objects)
        if found is None:
            raise SegmentError(f"{self.objects.where}: nothing is published there; publish first, or fix the address")
        return found

    def listed(self, pointer: Pointer, version: str) -> Published:
        """The version of this name; `SegmentError` if it is not in the list."""
        found = pointer.find(version)
        if found is None:
            names = ", ".join(each.version for each in pointer.versions[-10:])
            raise SegmentError(f"{self.objects.where}: no version {version!r}; the newest are: {names}")
        return found
