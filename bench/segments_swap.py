"""A swap under load: what four reader threads at full speed see of it.

A population in four segments, in two versions that differ in a tenth of the chunks of ids. Both are published before
anything is timed: segments are rebuilt elsewhere, and whoever verifies a snapshot in the process that serves holds its
threads up himself. Four threads of one process ask `watch.segment_of` without pause and check every answer against the
version that gave it, while the pointer goes from one version to the other and back. One of the two is taken out of the
cache each time, so that every other swap is a new version, fetched, checked and opened. After each swap they read for
as long as it took: the figures "without a swap" are of these times, so a machine that is busy meanwhile shows in both.

*Nobody answered* is a span in which none of the four had an answer; that is what a swap can cost. *One thread* is the
longest that one of them waited: on one interpreter lock they wait for each other anyway, three turns of the
interpreter's switch interval. That is 0.5 ms here; Python's own is `--switch-us 5000`.
"""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from _harness import Report, arguments, check
from _population import NAMES, truth_of

from capline.segment import IdSet, Publisher, SegmentWatch, Snapshot, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

READERS = 4
ASKED = 100_000
NOTED_S = 0.0005
PART = 1 << 25
SETTLE_S = 0.2
NEW, CACHED, STILL = "a new version", "a version in the cache", "without a swap"

Span = tuple[float, float]


def main() -> None:
    """Publish two versions, serve, swap, print."""
    options = arguments(__doc__, users=270_000_000, swaps=6, switch_us=500)
    report = Report("Segments: a swap under load")
    sys.setswitchinterval(options.switch_us / 1e6)
    ids = np.random.default_rng(7).integers(0, options.users, ASKED)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        truth: dict[str, list[str | None]] = {}
        with Publisher(directory / "published") as publisher:
            for version, number in (("a", 0), ("b", 1)):
                codes = truth_of(options.users, number)
                write_snapshot(population(codes, version), directory / version)
                publisher.publish(directory / version)
                truth[version] = [(None, *NAMES)[code] for code in codes[ids].tolist()]
                del codes
            publisher.rollback("a")
            watch = SegmentWatch(directory / "published", directory / "cache", interval_s=0.1)
            start = time.perf_counter()
            watch.start()
            report.add("the first version: fetched, verified, opened", time.perf_counter() - start, "s")
            gc.collect()
            with Readers(watch, ids.tolist(), truth) as readers:
                spans = swaps(publisher, watch, directory / "cache", options.swaps)
            watch.stop()
    check(not readers.wrong, str(readers.wrong[:1]))
    report.add("swaps", options.swaps, "")
    report.add("answers, all checked", sum(readers.counts), "")
    for kind in (STILL, NEW, CACHED):
        most_ms = None if kind == STILL else 5
        report.add(f"nobody answered, {kind}", readers.nobody_s(spans[kind]) * 1000, "ms", at_most=most_ms)
    for kind in (STILL, NEW, CACHED):
        report.add(f"one thread waited, {kind}", readers.one_s(spans[kind]) * 1000, "ms")
    report.show(as_json=options.json)


def population(codes: np.ndarray[tuple[int], np.dtype[np.uint8]], version: str) -> Snapshot:
    """The segments of a population, made in parts: memory is a part's."""
    sets: dict[str, IdSet] = {}
    for code, name in enumerate(NAMES, start=1):
        parts = (
            IdSet.from_array(np.flatnonzero(codes[first : first + PART] == code) + first)
            for first in range(0, codes.size, PART)
        )
        sets[name] = IdSet.union(tuple(parts))
    return Snapshot(sets, version)


def swaps(publisher: Publisher, watch: SegmentWatch, cache: Path, count: int) -> dict[str, list[Span]]:
    """Go from one version to the other and back; when each kind of swap was, and when there was none."""
    spans: dict[str, list[Span]] = {NEW: [], CACHED: [], STILL: []}
    for number in range(count):
        version = "ba"[number % 2]
        entry = publisher.pointer().find(version)
        if version == "b" and entry is not None:
            shutil.rmtree(cache / entry.manifest, ignore_errors=True)
        start = time.perf_counter()
        publisher.rollback(version)
        while watch.current.version != version:
            check(time.perf_counter() - start < 120, f"version {version} was not picked up: {watch.error}")
            time.sleep(0.05)
        time.sleep(SETTLE_S)  # the old one is let go of
        end = time.perf_counter()
        spans[NEW if version == "b" else CACHED].append((start, end))
        time.sleep(end - start)
        spans[STILL].append((end, time.perf_counter()))
    return spans


class Readers:
    """Four threads that ask, check and note when they had to wait."""

    def __init__(self, watch: SegmentWatch, ids: list[int], truth: dict[str, list[str | None]]) -> None:
        self._watch = watch
        self._ids = ids
        self._truth = truth
        self._stop = False
        self._pauses: list[list[Span]] = [[] for _ in range(READERS)]
        self._threads = [threading.Thread(target=self._read, args=(number,)) for number in range(READERS)]
        self.counts = [0] * READERS
        self.wrong: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        time.sleep(SETTLE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join()

    def one_s(self, spans: Sequence[Span]) -> float:
        """The longest that one thread waited, in these spans."""
        return longest_s([pause for pauses in self._pauses for pause in pauses], spans)

    def nobody_s(self, spans: Sequence[Span]) -> float:
        """The longest that all of them waited at once, in these spans."""
        common = self._pauses[0]
        for other in self._pauses[1:]:
            common = both(common, other)
        return longest_s(common, spans)

    def _read(self, number: int) -> None:
        watch, ids, clock, pauses = self._watch, self._ids, time.perf_counter, self._pauses[number]
        place, last = number * (ASKED // READERS), clock()
        while not self._stop:
            snapshot = watch.current
            answer = snapshot.segment_of(ids[place])
            now = clock()
            if now - last > NOTED_S:
                pauses.append((last, now))
            last = now
            if answer != self._truth[snapshot.version][place]:
                self.wrong.append(f"id {ids[place]} in version {snapshot.version}: {answer}")
            place = place + 1 if place + 1 < ASKED else 0
            self.counts[number] += 1


def both(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """What is in a span of the one and in a span of the other; each of them in order, none overlapping the next."""
    found: list[Span] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def longest_s(pauses: Sequence[Span], spans: Sequence[Span]) -> float:
    """The longest pause that has a part in one of these spans."""
    return max((b - a for a, b in pauses for start, end in spans if a < end and start < b), default=0.0)


if __name__ == "__main__":
    main()
