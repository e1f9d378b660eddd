"""Segments at the size of a country: 270,000,000 users in four segments, built, opened and asked.

The rows lie in 27 Parquet files, each with ids from the whole range in random order, as an export by shards gives them.

Every step runs in a process of its own, so that its memory is its own: what it holds after its imports is subtracted
where a figure says "for the segments", and the whole is told beside it. Every answer is checked against NumPy arrays
before its time counts. Times of asking are the best of five; ids are uniform over all users, which is the hardest case
for caches. Needs 1.6 GB of disk (`--directory`, a temporary one unless said, rows that are there are used again) and
3 GB of memory. `--users 20000000` is the size of one campaign.
"""

from __future__ import annotations

import math
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _harness import Report, arguments, best_seconds, check
from _population import NAMES, truth_of

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = 27
SINGLE_IDS = 200_000
BLOOM_ERROR = 1e-7

FIGURES: dict[str, tuple[str, str, float | None]] = {
    "resident_mb": ("memory of the four segments, resident, every page touched", "MB", 140),
    "open_ms": ("opening, verified once before", "ms", 50),
    "one_ns": ("one id -> its segment", "ns", 400),
    "codes_s": ("ids (array, random order) -> codes", "s", 0.5),
    "codes_ordered_s": ("ids (array, ascending) -> codes", "s", 0.5),
    "classify_s": ("audience bitmap -> four bitmaps", "s", 0.15),
    "build_s": ("building from Parquet", "s", 180),
    "build_peak_mb": ("building: peak memory of the process", "MB", 4000),
    "process_mb": ("the whole process after opening", "MB", None),
    "process_touched_mb": ("the whole process, every page touched", "MB", None),
    "published_mb": ("files of the snapshot", "MB", None),
    "bloom_mb": (f"four Bloom filters for all users at an error of {BLOOM_ERROR:g}", "MB", None),
    "verify_s": ("opening for the first time: hashed, checked, stamped", "s", None),
    "page_us": ("a page of 1,000 ids in the middle of a segment", "us", None),
    "expression_s": ("(active | new) - churned, counted", "s", None),
    **{name: (f"users in segment {name}", "users", None) for name in NAMES},
}


def main() -> None:
    """Make rows, build, open, ask; print the table."""
    options = arguments(__doc__, users=270_000_000, audience=10_000_000, directory="")
    check(FILES <= options.audience <= options.users <= 1 << 32, f"{FILES} <= --audience <= --users <= 2^32")
    report = Report(f"Segments: {options.users:,} users, an audience of {options.audience:,}")
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(options.directory or temporary)
        directory.mkdir(parents=True, exist_ok=True)
        for step in STEPS:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as aside:
                found |= aside.submit(step, directory, options.users, options.audience).result()
    for key, (what, unit, most) in FIGURES.items():
        report.add(what, found[key], unit, at_most=most)
    report.show(as_json=options.json)


def make_rows(directory: Path, users: int, _audience: int) -> dict[str, float]:
    """Write the rows, unless they are there."""
    arrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    rows = directory / f"rows-{users}"
    if (rows / "done").exists():
        return {}
    rows.mkdir(exist_ok=True)
    truth = truth_of(users)
    random = np.random.default_rng(7)
    for number in range(FILES):
        ids = random.permutation(np.arange(number, users, FILES, dtype=np.uint32))
        ids = ids[truth[ids] > 0]
        segment = arrow.DictionaryArray.from_arrays(arrow.array(truth[ids] - 1, arrow.int8()), list(NAMES))
        parquet.write_table(arrow.table({"id": ids, "segment": segment}), rows / f"part-{number:02}.parquet")
    (rows / "done").touch()
    return {}


def build(directory: Path, users: int, _audience: int) -> dict[str, float]:
    """Build as the command line does, and write the snapshot."""
    segment: Any = import_module("capline.segment")
    start = time.perf_counter()
    rows = segment.read_rows(str(directory / f"rows-{users}" / "*.parquet"))
    snapshot = segment.Snapshot(segment.build_segments(rows))
    manifest = segment.write_snapshot(snapshot, directory / "snapshot", replace=True)
    build_s = time.perf_counter() - start
    # Before the check, which takes more.
    build_peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counts = np.bincount(truth_of(users), minlength=len(NAMES) + 1)
    sizes = {entry.name: entry.cardinality for entry in manifest.segments}
    check(sizes == dict(zip(NAMES, counts[1:].tolist(), strict=True)), "cardinalities")
    bits = -math.log(BLOOM_ERROR) / math.log(2) ** 2 * users
    return {
        "build_s": build_s,
        "build_peak_mb": build_peak_mb,
        "published_mb": sum(entry.bytes for entry in manifest.files()) / 1e6,
        "bloom_mb": len(NAMES) * bits / 8 / 1e6,
        **sizes,
    }


def verify(directory: Path, _users: int, _audience: int) -> dict[str, float]:
    """Open it for the first time on this machine."""
    load: Any = import_module("capline.segment.snapshot.load")
    start = time.perf_counter()
    load.load_snapshot(directory / "snapshot", trust="stamp")
    return {"verify_s": time.perf_counter() - start}


def open_again(directory: Path, _users: int, _audience: int) -> dict[str, float]:
    """Open it as every process after that does, and touch every page of it."""
    load: Any = import_module("capline.segment.snapshot.load")
    before_mb = resident_mb()
    start = time.perf_counter()
    snapshot = load.load_snapshot(directory / "snapshot", trust="stamp")
    open_s = time.perf_counter() - start
    opened_mb = resident_mb()
    # One id in each container's worth of ids, and every bit of every container.
    for ids in snapshot.sets.values():
        ids.overlap(ids)
    touched_mb = resident_mb()
    return {
        "open_ms": open_s * 1000,
        "resident_mb": touched_mb - before_mb,
        "process_mb": opened_mb,
        "process_touched_mb": touched_mb,
    }


def ask(directory: Path, users: int, audience: int) -> dict[str, float]:
    """Ask it everything, check the answers, and time them."""
    segment: Any = import_module("capline.segment")
    snapshot = segment.load_snapshot(directory / "snapshot", trust="stamp")
    truth = truth_of(users)
    code = np.array([0, *(snapshot.names.index(name) + 1 for name in NAMES)], dtype=np.uint8)
    random = np.random.default_rng(11)
    shuffled = random.permutation(users)[:audience].astype(np.uint32)
    ordered = np.sort(shuffled)

    singles: list[int] = shuffled[:SINGLE_IDS].tolist()
    one_s, answers = timed(lambda: [snapshot.segment_of(one) for one in singles])
    check(answers == [(None, *NAMES)[each] for each in truth[singles]], "segment_of")
    codes_s, codes = timed(lambda: snapshot.codes(shuffled))
    check(np.array_equal(codes, code[truth[shuffled]]), "codes")
    codes_ordered_s, codes = timed(lambda: snapshot.codes(ordered))
    check(np.array_equal(codes, code[truth[ordered]]), "codes in order")
    everyone = segment.IdSet.from_array(ordered)
    classify_s, parts = timed(lambda: snapshot.classify(everyone))
    for number, name in enumerate((None, *NAMES)):
        check(np.array_equal(parts[name].to_array(), ordered[truth[ordered] == number]), f"classify: {name}")
    middle = users // 2
    page_s, page = timed(lambda: snapshot.members("churned", after=middle, limit=1000))
    near = np.flatnonzero(truth[middle + 1 : middle + 100_000] == NAMES.index("churned") + 1)[:1000] + middle + 1
    check(page == near.tolist() or users < 1_000_000, "page")
    expression_s, found = timed(lambda: len(snapshot.evaluate("(active | new) - churned")))
    check(found == int(np.count_nonzero((truth == 1) | (truth == 2))), "expression")
    return {
        "one_ns": one_s / len(singles) * 1e9,
        "codes_s": codes_s,
        "codes_ordered_s": codes_ordered_s,
        "classify_s": classify_s,
        "page_us": page_s * 1e6,
        "expression_s": expression_s,
    }


STEPS: tuple[Callable[[Path, int, int], dict[str, float]], ...] = (make_rows, build, verify, open_again, ask)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The best time in seconds, and the answer."""
    return best_seconds(work), work()


def resident_mb() -> float:
    """What this process has in memory now."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
