"""Garbage collection of a publication: old versions leave the list, then their objects are deleted.

The rule: nothing that a listed version needs is deleted. The collector has a lease in the pointer while it deletes, and
publishers wait for its end. The lease is 15 minutes, renewed after 10: so a killed collector blocks publishers only for
a short time, and clocks may differ by 5 minutes.
"""

import secrets
import time
from typing import Any

import msgspec

from capline.model.clock import Clock
from capline.model.errors import SegmentConflictError, SegmentError
from capline.segment.publish.fetch import read_manifest_of
from capline.segment.publish.pointer import MANIFESTS, OBJECTS, Pointer, Published
from capline.segment.publish.versions import Versions

GRACE_US = 24 * 3_600_000_000

KEEP = 10
"""The default number of versions to keep."""

_LEASE_US = 900_000_000
_RENEW_S = 600.0
_BATCH = 500


class Collected(msgspec.Struct, frozen=True):
    """The result of `collect`, or with `dry_run` its forecast: retired and kept versions, deleted objects."""

    retired: tuple[str, ...]
    deleted_objects: int
    deleted_bytes: int
    kept: tuple[str, ...]
    dry_run: bool


def collect(versions: Versions, clock: Clock, *, keep: int, grace_us: int, dry_run: bool) -> Collected:
    """See `Publisher.collect`."""
    if keep < 1 or grace_us < 0:
        raise SegmentError("keep 1 version or more, with a grace of 0 or more; fix --keep or --grace-hours")
    oldest_us = clock.now_us() - grace_us
    name = secrets.token_hex(8)

    def begin(pointer: Pointer) -> dict[str, Any]:
        if pointer.collector and pointer.collecting_until_us > clock.now_us():
            raise SegmentConflictError(f"{versions.objects.where}: another collection is running; try again later")
        until_us = clock.now_us() + _LEASE_US
        staying = _staying(pointer, keep, oldest_us)
        return {"collector": name, "collecting_until_us": until_us, "versions": staying}

    before = versions.needed().pointer
    staying = _staying(before, keep, oldest_us)
    began = time.monotonic()
    if not dry_run:
        after = versions.change(begin)
        staying = after.versions
    try:
        doomed = _doomed(versions, staying, oldest_us)
        if not dry_run:
            _delete(versions, clock, tuple(doomed), name, began)
    finally:
        if not dry_run:
            versions.change(lambda now: {"collector": "", "collecting_until_us": 0} if now.collector == name else {})
    kept = tuple(each.version for each in staying)
    retired = tuple(each.version for each in before.versions if each.version not in kept)
    return Collected(retired, len(doomed), sum(doomed.values()), kept, dry_run)


def _doomed(versions: Versions, staying: tuple[Published, ...], oldest_us: int) -> dict[str, int]:
    """Objects that none of these versions needs, with their sizes; raises if a manifest cannot be read."""
    needed = {each.manifest_path for each in staying}
    for each in staying:
        needed |= {f"{OBJECTS}/{entry.sha256}" for entry in read_manifest_of(versions.objects, each)[1].files()}
    return {
        f"{folder}/{name}": found.bytes
        for folder in (OBJECTS, MANIFESTS)
        for name, found in versions.objects.list(folder).items()
        if f"{folder}/{name}" not in needed and found.changed_us <= oldest_us
    }


def _delete(versions: Versions, clock: Clock, doomed: tuple[str, ...], name: str, began: float) -> None:
    """Delete them under a lease that began no earlier than `began` (monotonic), renewed when due."""
    for start in range(0, len(doomed), _BATCH):
        reading = time.monotonic()
        if reading - began > _RENEW_S:
            versions.change(lambda now: _renewed(versions, clock, now, name))
            began = reading
        versions.objects.delete(doomed[start : start + _BATCH])


def _renewed(versions: Versions, clock: Clock, now: Pointer, name: str) -> dict[str, Any]:
    if now.collector != name:
        raise SegmentConflictError(f"{versions.objects.where}: the lease was lost; collect again later")
    return {"collecting_until_us": clock.now_us() + _LEASE_US}


def _staying(pointer: Pointer, keep: int, oldest_us: int) -> tuple[Published, ...]:
    newest = pointer.versions[-keep:]
    return tuple(
        each
        for each in pointer.versions
        if each.version == pointer.current or each.pinned or each in newest or each.published_us > oldest_us
    )
