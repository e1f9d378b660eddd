"""Opens segments to serve: a publication, which is followed, or one snapshot's directory.

    open_segments("s3://bucket/segments")     a started `SegmentWatch`
    open_segments("segments/today")           `FixedSegments`, unless it is the address of a publication

The rule: `current` of what is returned is always a good snapshot; without one, opening raises. Later errors are
in `status`.
"""

from pathlib import Path
from typing import Self

from capline.model.clock import SystemClock
from capline.model.errors import SegmentError
from capline.segment.publish.pointer import POINTER
from capline.segment.publish.watch import SegmentWatch, WatchStatus
from capline.segment.snapshot.load import Trust, load_snapshot
from capline.segment.snapshot.snapshot import Id, Snapshot
from capline.support.scratch import ScratchFolder

DEFAULT_CACHE = ".capline/segments"
"""The default cache of fetched snapshots, beside the default store."""


class FixedSegments:
    """A snapshot that never changes, with the interface of `SegmentWatch`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.current = snapshot

    @property
    def served(self) -> tuple[Snapshot, str]:
        """The snapshot and its version."""
        return self.current, self.current.version

    @property
    def status(self) -> WatchStatus:
        """The figures for metrics; never behind, since nothing newer is expected."""
        age_us = max(0, SystemClock().now_us() - self.current.created_us)
        return WatchStatus(self.current.version, 0, age_us, 0, None, 0, 0)

    def segment_of(self, id: Id) -> str | None:
        """Name the segment that the id is in; see `Snapshot.segment_of`."""
        return self.current.segment_of(id)

    def start(self) -> Self:
        """Do nothing."""
        return self

    def stop(self) -> None:
        """Do nothing."""


def is_publication(address: str | Path) -> bool:
    """Whether this is the address of a publication, rather than a snapshot's directory."""
    return "://" in str(address) or (Path(address) / POINTER).exists()


def open_segments(address: str | Path, cache_dir: str | Path = DEFAULT_CACHE) -> SegmentWatch | FixedSegments:
    """Open a snapshot's directory, or follow a publication; `SegmentError` where there is no good snapshot.

    Returns after the publication was fetched. If it cannot be reached, the last snapshot in the cache is served. A
    directory is read once; to replace what is served, publish. `stop` ends it.
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
    address: str | Path, cache_dir: str | Path | None = None, *, version: str | None = None, trust: Trust = "stamp"
) -> tuple[Snapshot, str]:
    """Open one snapshot and name its version: the one in a directory, or the newest (or this version) at an address.

    `SegmentError` where it cannot be fetched. While the address cannot be reached, a named `version` is taken from the
    cache; the newest is not, since it may be outdated. Without `cache_dir` nothing is kept.
    """
    if cache_dir is None:
        with ScratchFolder("capline-segments-") as fetched:
            # Its files are mapped, so they last as long as the snapshot.
            return fetch_snapshot(address, fetched, version=version, trust=trust)
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
