"""Opens segments to serve: a publication that is followed, or a snapshot's directory that stays as it is.

    open_segments("s3://bucket/segments")     a started `SegmentWatch`
    open_segments("segments/today")           `FixedSegments`, unless versions are published there

The rule: what is returned has a good snapshot in `current`, and goes on having one; else there is one error, at the
start. Later errors are in `status`, as with any watch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from capline.model.clock import SystemClock
from capline.model.errors import SegmentError
from capline.segment.publish.pointer import POINTER
from capline.segment.publish.watch import SegmentWatch, WatchStatus
from capline.segment.snapshot.load import load_snapshot

if TYPE_CHECKING:
    from capline.segment.snapshot.load import Trust
    from capline.segment.snapshot.snapshot import Id, Snapshot

__all__ = ["DEFAULT_CACHE", "FixedSegments", "fetch_snapshot", "is_publication", "open_segments"]

DEFAULT_CACHE = ".capline/segments"
"""Where fetched snapshots are kept: beside the embedded store, below the working directory."""


class FixedSegments:
    """A snapshot that stays, with the face of a watch."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.current = snapshot

    @property
    def served(self) -> tuple[Snapshot, str]:
        """The snapshot and its version."""
        return self.current, self.current.version

    @property
    def status(self) -> WatchStatus:
        """The figures for a metric; it is never behind, as nothing newer is looked for."""
        age_us = max(0, SystemClock().now_us() - self.current.created_us)
        return WatchStatus(self.current.version, 0, age_us, 0, None, 0, 0)

    def segment_of(self, id: Id) -> str | None:
        """Name the segment that the id is in; see `Snapshot.segment_of`."""
        return self.current.segment_of(id)

    def start(self) -> Self:
        """Nothing to start."""
        return self

    def stop(self) -> None:
        """Nothing to stop."""


def is_publication(address: str | Path) -> bool:
    """Whether this is the address of a publication, and not a snapshot's directory."""
    return "://" in str(address) or (Path(address) / POINTER).exists()


def open_segments(address: str | Path, cache_dir: str | Path = DEFAULT_CACHE) -> SegmentWatch | FixedSegments:
    """Open a snapshot's directory, or follow a publication; `SegmentError` where there is nothing good to serve.

    A publication is fetched before this returns, which may take as long as its bytes take; without it the snapshot that
    the cache served last is served. A directory is read once: to replace what is served, publish. `stop` ends it.
    """
    if not is_publication(address):
        return FixedSegments(load_snapshot(address, trust="stamp"))
    watch = SegmentWatch(address, cache_dir).start()
    try:
        watch.current  # noqa: B018 - raises while there is none
    except SegmentError:
        watch.stop()
        raise watch.error or SegmentError(f"{address}: no good snapshot") from None
    return watch


def fetch_snapshot(
    address: str | Path,
    cache_dir: str | Path = DEFAULT_CACHE,
    *,
    version: str | None = None,
    trust: Trust = "stamp",
) -> tuple[Snapshot, str]:
    """The snapshot in a directory; or the one published at an address: the newest, or this version; and its name.

    `SegmentError` where it cannot be had. A named version that is in the cache is had from there while the address
    cannot be reached; the newest is not, as nobody would know whether it is.
    """
    if not is_publication(address):
        snapshot = load_snapshot(address, trust=trust)
        return snapshot, snapshot.version
    watch = SegmentWatch(address, cache_dir, version=version)
    try:
        served = watch.poll()
        if watch.error is not None and (version is None or not served):
            raise watch.error
        return watch.served
    finally:
        watch.stop()
