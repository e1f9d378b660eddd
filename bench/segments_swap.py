"""A swap under load: what four reader threads at full speed see of it.

    python bench/segments_swap.py [--users 270000000] [--swaps 6] [--json]

A population of the shape of a real one (the newest contiguous, activity skewed to recent ids) in four segments is
published in a local directory in two versions that differ in a tenth of the ids. Four threads of one process ask
`watch.segment_of` without pause and check every answer against the version that gave it, while the watch goes from one
version to the other and back: first each version's first time (fetched, proven, opened), then from the cache.

Two kinds of pause are told. *Nobody answered*: a span in which none of the four had an answer; that is what a swap can
cost. *One thread*: the longest that one of them waited. On one interpreter lock they wait for each other anyway, and a
busy machine adds its own pauses, so each is told beside the same figure without any swap. The interpreter's switch
interval is 0.5 ms instead of 5, in both.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from _harness import Report, arguments, check

from capline.segment import IdSet, Publisher, SegmentWatch, Snapshot, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

NAMES = ("new", "active", "at-risk", "churned")
CHUNK = 4 << 20
READERS = 4
ASKED = 100_000
SWITCH_S = 0.0005
NOTED_S = 0.001


def main() -> None:
    """Build two versions, serve, swap, print."""
    options = arguments(__doc__, users=270_000_000, swaps=6)
    report = Report("segments: a swap under load")
    sys.setswitchinterval(SWITCH_S)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for version, seed in (("a", 1), ("b", 2)):
            write_snapshot(population(options.users, seed, version), directory / version)
        url = directory / "published"
        with Publisher(url) as publisher:
            publisher.publish(directory / "a")
            watch = SegmentWatch(url, directory / "cache", interval_s=0.1)
            start = time.perf_counter()
            watch.start()
            report.add("the first version: fetched, proven, opened", time.perf_counter() - start, "s")
            still = Readers(watch, options.users, directory)
            still.run(lambda: time.sleep(3))
            moving = Readers(watch, options.users, directory)
            moving.run(lambda: swaps(publisher, watch, directory, options.swaps))
            watch.stop()
    report.add("swaps", options.swaps, "")
    report.add("answers, all checked", len(moving) + len(still), "")
    report.add("nobody answered, without swaps", still.nobody_s() * 1000, "ms")
    report.add("nobody answered, with swaps", moving.nobody_s() * 1000, "ms", at_most=5)
    report.add("one thread, without swaps", still.one_s() * 1000, "ms")
    report.add("one thread, with swaps", moving.one_s() * 1000, "ms")
    report.show(as_json=options.json)


def draw(first: int, count: int, users: int, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Codes of the ids from `first` on: 0 for none, else the place in NAMES and 1."""
    ids = np.arange(first, first + count)
    recency = (ids + 1) / users
    chance = random.random(count)
    codes = np.where(chance < 0.03, 0, np.where(chance < 0.03 + 0.6 * recency**3, 2, np.where(chance < 0.7, 4, 3)))
    codes[ids >= users * 0.95] = 1
    return codes.astype(np.uint8)


def population(users: int, seed: int, version: str) -> Snapshot:
    """Four segments; two versions differ in every tenth chunk."""
    parts: dict[str, list[IdSet]] = {name: [] for name in NAMES}
    for number, first in enumerate(range(0, users, CHUNK)):
        random = np.random.default_rng((number, seed if number % 10 == 0 else 0))
        codes = draw(first, min(CHUNK, users - first), users, random)
        for code, name in enumerate(NAMES, start=1):
            parts[name].append(IdSet.from_array(np.flatnonzero(codes == code).astype(np.uint32) + np.uint32(first)))
    return Snapshot({name: IdSet.union(each) for name, each in parts.items()}, version)


def swaps(publisher: Publisher, watch: SegmentWatch, directory: Path, count: int) -> None:
    """Go from one version to the other and back, each as soon as the one before is served."""
    for number in range(count):
        version = "ba"[number % 2]
        if number == 0:
            publisher.publish(directory / "b")
        else:
            publisher.rollback(version)
        deadline = time.monotonic() + 120
        while watch.current.version != version:
            check(time.monotonic() < deadline, f"version {version} was not picked up: {watch.error}")
            time.sleep(0.05)


class Readers:
    """Four threads that ask, check and note when they had to wait."""

    def __init__(self, watch: SegmentWatch, users: int, directory: Path) -> None:
        self._watch = watch
        self._ids: list[int] = np.random.default_rng(7).integers(0, users, ASKED).tolist()
        self._truth = {version: snapshot_answers(directory / version, self._ids) for version in ("a", "b")}
        self._stop = False
        self._counts = [0] * READERS
        self._pauses: list[list[tuple[float, float]]] = [[] for _ in range(READERS)]

    def run(self, work: Callable[[], object]) -> None:
        """Read while this is done."""
        threads = [threading.Thread(target=self._read, args=(number,)) for number in range(READERS)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        for pauses in self._pauses:  # threads that start hold each other up
            pauses.clear()
        work()
        self._stop = True
        for thread in threads:
            thread.join()

    def __len__(self) -> int:
        return sum(self._counts)

    def one_s(self) -> float:
        """The longest that one thread waited."""
        return max((end - start for pauses in self._pauses for start, end in pauses), default=0.0)

    def nobody_s(self) -> float:
        """The longest span in which all of them waited at once."""
        common = self._pauses[0]
        for other in self._pauses[1:]:
            common = [
                (max(a, c), min(b, d)) for a, b in common for c, d in other if c < b and a < d and max(a, c) < min(b, d)
            ]
        return max((end - start for start, end in common), default=0.0)

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
                check(False, f"id {ids[place]} in version {snapshot.version}: {answer}")
            place = place + 1 if place + 1 < ASKED else 0
            self._counts[number] += 1


def snapshot_answers(directory: Path, ids: list[int]) -> list[str | None]:
    """What each id's segment is, asked of the snapshot that was written, loaded for this alone."""
    from capline.segment import load_snapshot  # noqa: PLC0415 - it is let go of at once

    snapshot = load_snapshot(directory)
    names = (None, *snapshot.names)
    return [names[code] for code in snapshot.codes(np.array(ids, dtype=np.int64)).tolist()]


if __name__ == "__main__":
    main()
