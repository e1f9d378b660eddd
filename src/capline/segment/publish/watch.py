"""Follows a publication: serves the newest good snapshot to readers that never wait.

    with SegmentWatch("s3://bucket/segments", "/var/cache/capline") as watch:
        limiter.decide("promo", user, segment=watch.current.segment_of(user))

The rule: `current` is a whole, verified snapshot, or it raises. A new version is fetched, verified and opened first,
then one reference is swapped. An error only changes `error`: the last good snapshot stays, and `status` has its age.

One thread for each watch, from `start` to `stop`, reads the pointer every `interval_s`, with jitter; an unchanged
pointer costs one conditional request. A refused version is fetched again with a backoff, from the interval up to a
minute, until the pointer changes.

The processes of a host share the cache: one of them fetches. If the address cannot be reached at the start, the last
served snapshot is taken from the cache. After a fork the child keeps what the parent had, with a thread of its own.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Self

import msgspec

from capline.model.clock import Clock, SystemClock
from capline.model.errors import InvalidValueError, SegmentError
from capline.segment.objects.address import open_objects
from capline.segment.objects.store import ObjectMissingError
from capline.segment.publish.cache import Bounds, Cache
from capline.segment.publish.pointer import LARGEST_POINTER_BYTES, POINTER, Pointer, Published, decode_pointer
from capline.segment.snapshot.snapshot import Id, Snapshot
from capline.support.system import at_fork

INTERVAL_S = 10.0
_JITTER = 0.2
_LONGEST_WAIT_S = 60.0
_STOP_S = 5.0

_all: weakref.WeakSet[SegmentWatch] = weakref.WeakSet()


class _Served(msgspec.Struct, frozen=True):
    """What readers see, replaced in one step."""

    snapshot: Snapshot
    version: str
    manifest: str
    sequence: int


class _Refusal(msgspec.Struct, frozen=True):
    """A version that was refused, at this sequence of the pointer; `not_before` (monotonic) is its next try."""

    manifest: str
    sequence: int
    not_before: float
    waited_s: float


class WatchStatus(msgspec.Struct, frozen=True):
    """What a watch serves now, and its figures.

    `age_us` is the time since the served snapshot was built, `behind_us` the time since it was last confirmed as the
    version to serve; both are None without a snapshot. `error` is None when all is well.
    """

    version: str | None
    sequence: int
    age_us: int | None
    behind_us: int | None
    error: str | None
    swaps: int
    refused: int


class SegmentWatch:
    """Follows the publication at an address (see `open_objects`), through a cache directory on this host.

    Nothing is read before `start`, `poll` or entering it as a context. `start` polls once before it returns, so
    `current` is there afterwards if it can be fetched. `version` follows only that version. `bounds` refuses snapshots
    by size. Threads may share a watch.
    """

    def __init__(
        self,
        url: str | Path,
        cache_dir: str | Path,
        *,
        interval_s: float = INTERVAL_S,
        version: str | None = None,
        bounds: Bounds | None = None,
        options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not 0.01 <= interval_s <= 86_400:  # noqa: PLR2004 - said in the message
            raise InvalidValueError(f"interval_s is 0.01 to 86400 seconds, not {interval_s!r}")
        self._objects = open_objects(url, options)
        self._cache = Cache(cache_dir)
        self._bounds = Bounds() if bounds is None else bounds
        self._interval_s = float(interval_s)
        self._wanted = version
        self._clock = SystemClock() if clock is None else clock
        self._address = self._objects.where if version is None else f"{self._objects.where}\n{version}"
        self._served: _Served | None = None
        self._pointer: Pointer | None = None
        self._tag: str | None = None
        self._error: SegmentError | None = None
        self._confirmed_us: int | None = None
        self._swaps = self._refused = 0
        self._refusal: _Refusal | None = None
        self._lock = Lock()
        self._stop = Event()
        self._thread: Thread | None = None
        _all.add(self)

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Snapshot:
        """The last good snapshot, by one attribute read. `SegmentError` while there is none."""
        return self.served[0]

    @property
    def served(self) -> tuple[Snapshot, str]:
        """`current`, and the published name of its version."""
        served = self._served
        if served is None:
            why = self._error or "nothing was read yet: call start(), or poll()"
            raise SegmentError(f"{self._objects.where}: no good snapshot yet ({why})")
        return served.snapshot, served.version

    def segment_of(self, id: Id) -> str | None:
        """Name the segment that the id is in now; see `Snapshot.segment_of`."""
        return self.current.segment_of(id)

    @property
    def error(self) -> SegmentError | None:
        """Why the served snapshot may not be the newest; None when it is."""
        return self._error

    @property
    def status(self) -> WatchStatus:
        """The figures for metrics."""
        served, now_us = self._served, self._clock.now_us()
        return WatchStatus(
            version=None if served is None else served.version,
            sequence=0 if served is None else served.sequence,
            age_us=None if served is None else max(0, now_us - served.snapshot.created_us),
            behind_us=None if served is None or self._confirmed_us is None else max(0, now_us - self._confirmed_us),
            error=None if self._error is None else str(self._error),
            swaps=self._swaps,
            refused=self._refused,
        )

    # ---- following ---------------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Poll once, and load a new version; True if `current` was replaced. Never raises: see `error`."""
        with self._lock:
            return self._polled()

    def start(self) -> Self:
        """Poll once, then go on in a thread. May be called twice."""
        if self._thread is None:
            self._stop.clear()
            self.poll()
            self._begin()
        return self

    def stop(self) -> None:
        """End the thread and close connections; `current` stays. Waits at most 5 s for a request under way."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_STOP_S)
        self._objects.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _begin(self) -> None:
        self._thread = Thread(
            target=self._follow,
            args=(weakref.ref(self), self._stop, self._interval_s),
            name="capline-segments",
            daemon=True,
        )
        self._thread.start()

    def _polled(self) -> bool:
        try:
            pointer = self._read_pointer()
            target = self._target(pointer)
            if self._served is not None and self._served.manifest == target.manifest:
                self._confirm(pointer)
                return False
            return self._take(pointer, target)
        except Exception as error:  # noqa: BLE001 - the thread must go on
            is_expected = isinstance(error, SegmentError)
            self._error = (
                error if is_expected else SegmentError(f"{self._objects.where}: {type(error).__name__}: {error}")
            )
            return self._served is None and not self._stop.is_set() and self._from_cache()

    def _read_pointer(self) -> Pointer:
        try:
            got = self._objects.get(POINTER, LARGEST_POINTER_BYTES, self._tag)
        except ObjectMissingError:
            raise SegmentError(
                f"{self._objects.where}: nothing is published there; publish first, or fix the address"
            ) from None
        if got is None and self._pointer is not None:
            return self._pointer
        if got is None:
            raise SegmentError(
                f"{self._objects.where}: answered 'not modified' to the first read; look at the proxies in between"
            )
        # The tag is set last, so that an unreadable pointer is read again.
        self._tag = None
        self._pointer = decode_pointer(got.data, f"{self._objects.where}/{POINTER}")
        self._tag = got.tag
        return self._pointer

    def _target(self, pointer: Pointer) -> Published:
        if self._wanted is None:
            return pointer.serving
        found = pointer.find(self._wanted)
        if found is None:
            raise SegmentError(f"{self._objects.where}: no version {self._wanted!r} any more; pin what you need")
        return found

    def _take(self, pointer: Pointer, target: Published) -> bool:
        refusal = self._refusal
        if refusal is not None and (refusal.manifest, refusal.sequence) != (target.manifest, pointer.sequence):
            refusal = None
        if refusal is not None and time.monotonic() < refusal.not_before:
            return False  # `error` stays that of the refusal
        try:
            snapshot = self._cache.open(self._objects, target, self._bounds, self._stop.is_set)
        except Exception:
            if not self._stop.is_set():
                self._refused += 1
                wait_s = self._interval_s if refusal is None else min(refusal.waited_s * 2, _LONGEST_WAIT_S)
                not_before = time.monotonic() + wait_s
                self._refusal = _Refusal(target.manifest, pointer.sequence, not_before, wait_s)
            raise
        if self._stop.is_set():
            return False
        self._refusal = None
        # Readers see the new snapshot from here on. The old one is freed at the end.
        before, self._served = self._served, _Served(snapshot, target.version, target.manifest, pointer.sequence)
        self._swaps += 1
        self._confirm(pointer)
        self._cache.remember(self._address, target, pointer.sequence)
        self._cache.sweep()
        del before
        return True

    def _confirm(self, pointer: Pointer) -> None:
        """Note that the served version is the one that the pointer names."""
        if self._served is not None:
            self._cache.touch(self._served.manifest)
            if self._served.sequence != pointer.sequence:
                self._served = msgspec.structs.replace(
                    self._served, sequence=pointer.sequence, version=self._target(pointer).version
                )
        self._confirmed_us = self._clock.now_us()
        self._error = None

    def _from_cache(self) -> bool:
        """Serve the last snapshot from the cache; `error` tells why."""
        found = self._cache.open_last(self._address, self._bounds)
        if found is None:
            return False
        snapshot, last = found
        self._served = _Served(snapshot, last.version, last.manifest, last.sequence)
        self._swaps += 1
        return True

    @staticmethod
    def after_fork() -> None:
        """Go on in a forked child; called by Python."""
        for watch in list(_all):
            watch._forked()  # noqa: SLF001 - its own kind

    def _forked(self) -> None:
        """New locks, since a thread of the parent may hold the old ones; and a thread if the parent had one."""
        followed = self._thread is not None and not self._stop.is_set()
        self._cache.after_fork()
        self._lock, self._stop, self._thread = Lock(), Event(), None
        if followed:
            self._begin()

    @staticmethod
    def _follow(reference: weakref.ref[SegmentWatch], stop: Event, interval_s: float) -> None:
        """Poll until `stop`, or until nobody references the watch any more."""
        chance = random.Random()  # noqa: S311 - only for jitter
        while not stop.wait(interval_s * chance.uniform(1 - _JITTER, 1 + _JITTER)):
            watch = reference()
            if watch is None:
                return
            watch.poll()
            del watch


at_fork(after_in_child=SegmentWatch.after_fork)
