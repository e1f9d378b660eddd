"""Segments at the size of a campaign: what one answer costs.

    python bench/segments.py [--users 20000000] [--audience 10000000] [--json]

The population has the shape of a real one: sign-ups get ids in order, so the newest 5 % are one contiguous run; of the
others activity falls off with age (the probability of being active decays towards the oldest ids), who is not active is
churned or at risk, and 3 % are in no segment. The audience is drawn from the whole population, without order for
`codes`.

Every answer is checked before it is timed: parts against counts made with NumPy alone. Times are the best of five, in
one process; rows are built from arrays in memory, so that the build rate is the library's and not the disk's.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from capline.segment import IdSet, Snapshot, build_segments, load_snapshot, write_snapshot
from capline.segment.source import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("new", "active", "at-risk", "churned")
BATCH_ROWS = 1 << 17
ROUNDS = 5
SINGLE_IDS = 200_000
CLASSIFY_TARGET_S = 0.2


def main() -> None:
    """Build, check, time, print."""
    parser = argparse.ArgumentParser(description="Time segments: classify, codes, one id, build.")
    parser.add_argument("--users", type=int, default=20_000_000, help="ids in the population")
    parser.add_argument("--audience", type=int, default=10_000_000, help="ids in the audience")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    arguments = parser.parse_args()
    if not 1 <= arguments.audience <= arguments.users <= 1 << 32:
        parser.error("1 <= --audience <= --users <= 2^32")

    random = np.random.default_rng(20250301)
    truth = population(arguments.users, random)
    rows = random.permutation(np.flatnonzero(truth).astype(np.uint32))
    build_s, sets = timed(lambda: build_segments(batches(rows, truth), first_wins=NAMES), rounds=1)
    with tempfile.TemporaryDirectory() as directory:
        write_s, _ = timed(lambda: write_snapshot(Snapshot(sets), f"{directory}/snapshot"), rounds=1)
        load_s, snapshot = timed(lambda: load_snapshot(f"{directory}/snapshot"))
    shuffled = random.permutation(arguments.users)[: arguments.audience].astype(np.uint32)
    audience = IdSet.from_array(shuffled)

    classify_s, parts = timed(lambda: snapshot.classify(audience))
    for code, name in enumerate((None, *NAMES)):
        wanted = np.sort(shuffled[truth[shuffled] == code])
        check(np.array_equal(parts[name].to_array(), wanted), f"classify: {name}")
    codes_s, codes = timed(lambda: snapshot.codes(shuffled))
    check(np.array_equal(codes, truth[shuffled]), "codes")
    in_order = np.sort(shuffled)
    ordered_s, codes = timed(lambda: snapshot.codes(in_order))
    check(np.array_equal(codes, truth[in_order]), "codes, in order")
    singles: list[int] = shuffled[:SINGLE_IDS].tolist()
    single_s, answers = timed(lambda: [snapshot.segment_of(one) for one in singles])
    check(answers == [(None, *NAMES)[code] for code in truth[singles]], "segment_of")

    figures = {
        "users": arguments.users,
        "audience": arguments.audience,
        "cardinalities": {name: len(ids) for name, ids in sets.items()},
        "serialized_bytes": sum(len(ids.to_bytes()) for ids in sets.values()),
        "build_rows_per_s": round(rows.size / build_s),
        "write_s": round(write_s, 4),
        "load_s": round(load_s, 4),
        "classify_s": round(classify_s, 4),
        "codes_unordered_s": round(codes_s, 4),
        "codes_ordered_s": round(ordered_s, 4),
        "segment_of_ns": round(single_s / len(singles) * 1e9),
        "classify_target_s": CLASSIFY_TARGET_S,
    }
    if arguments.json:
        sys.stdout.write(msgspec.json.encode({"machine": machine(), **figures}).decode() + "\n")
        return
    print(", ".join(f"{key}: {value}" for key, value in machine().items()))
    print(f"{arguments.users:,} users in {len(NAMES)} segments, {figures['serialized_bytes']:,} bytes serialized")
    for name, ids in sets.items():
        print(f"  {name:<8} {len(ids):>13,}")
    print(f"build, rows in random order   {figures['build_rows_per_s']:>13,} rows/s")
    print(f"write, to disk                {write_s:>13.3f} s")
    print(f"load, verified                {load_s:>13.3f} s")
    verdict = "within" if classify_s <= CLASSIFY_TARGET_S else "MISSED:"
    print(f"classify {arguments.audience:,}          {classify_s:>13.3f} s   ({verdict} {CLASSIFY_TARGET_S} s)")
    print(f"codes, ids in random order    {codes_s:>13.3f} s")
    print(f"codes, ids in order           {ordered_s:>13.3f} s")
    print(f"segment_of, one id            {figures['segment_of_ns']:>13,} ns")


def population(users: int, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Code of each id by its place: 0 for no segment, i for NAMES[i - 1]."""
    truth = np.empty(users, dtype=np.uint8)
    newest = users - max(1, users // 20)
    age_ratio = 1 - np.arange(newest, dtype=np.float32) / users
    draw = random.random(newest, dtype=np.float32)
    active = 0.7 * np.exp(-3 * age_ratio)
    truth[:newest] = np.select([draw < 0.03, draw < 0.03 + active, draw < 0.15 + active], [0, 2, 3], 4)
    truth[newest:] = 1
    return truth


def batches(ids: npt.NDArray[np.uint32], truth: npt.NDArray[np.uint8]) -> Iterator[Rows]:
    """Yield the rows as a file would give them."""
    for start in range(0, ids.size, BATCH_ROWS):
        some = ids[start : start + BATCH_ROWS]
        yield Rows(some, truth[some] - 1, NAMES)


def timed(work: Callable[[], Any], rounds: int = ROUNDS) -> tuple[float, Any]:
    """Run the work; the best time in seconds, and the last answer."""
    best_s, answer = float("inf"), None
    for _ in range(rounds):
        start = time.perf_counter()
        answer = work()
        best_s = min(best_s, time.perf_counter() - start)
    return best_s, answer


def check(holds: object, what: str) -> None:
    """Stop where an answer is wrong: its time would mean nothing."""
    if not holds:
        sys.exit(f"wrong answer: {what}")


def machine() -> dict[str, str]:
    """Say what the figures hold for."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"CPU": model, "cores": str(os.cpu_count()), "Python": platform.python_version()}


if __name__ == "__main__":
    main()
