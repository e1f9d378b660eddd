"""One decision on each store, and the moving window of `limits` for comparison.

The same work for everyone: the same subjects in the same order, the same limit, wall clock. `limits` answers yes or no;
capline also says what remains, when to retry and when the log is empty. With two limits, `limits` is asked for each in
turn, as its users do.
"""

from __future__ import annotations

import multiprocessing
import tempfile

import limits
from _harness import Report, arguments, best_seconds, check
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from capline import Limiter, Policy

SUBJECTS = [f"user:{n}" for n in range(1000)]
ONE, TWO = ["10/hour"], ["10/hour", "50/day"]


def capline_round(limiter: Limiter, subjects: list[str]) -> int:
    """Ask for each; how many were allowed."""
    decide = limiter.decide
    return sum(1 for subject in subjects if decide("p", subject))


def limits_round(windows: list[limits.RateLimitItem], subjects: list[str]) -> int:
    """Ask `limits` for each, from an empty store; how many were allowed."""
    strategy = MovingWindowRateLimiter(MemoryStorage())
    hit = strategy.hit
    if len(windows) == 1:
        item = windows[0]
        return sum(1 for subject in subjects if hit(item, subject))
    return sum(1 for subject in subjects if all(hit(item, subject) for item in windows))


def compare(report: Report, name: str, policy: list[str], subjects: list[str], target: dict[str, float]) -> None:
    """Time capline's memory store and `limits` on the same sequence, in turn, each from an empty store."""
    items = [limits.parse(text) for text in policy]
    allowed = min(10, len(subjects) // len(SUBJECTS)) * len(SUBJECTS)

    def ours() -> None:
        with Limiter("memory://", [Policy("p", policy)]) as limiter:
            check(capline_round(limiter, subjects) == allowed, f"capline, {name}")

    def theirs() -> None:
        check(limits_round(items, subjects) == allowed, f"limits, {name}")

    mine, other = best_seconds(ours), best_seconds(theirs, rounds=3)
    us = mine / len(subjects) * 1e6
    report.add(f"memory, {name}", us, "us a decision", **target)
    report.add(f"limits, {name}", other / len(subjects) * 1e6, "us a decision")
    report.add(f"limits over capline, {name}", other / mine, "x", at_least=4)


def in_one_process(url: str, policy: list[str], subjects: list[str], allowed: int) -> float:
    """Microseconds a decision on an lmdb store, each round on a new file."""

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder, Limiter(url.format(folder), [Policy("p", policy)]) as limiter:
            limiter.decide("p", "warm up")
            seconds.append(best_seconds(lambda: check(capline_round(limiter, subjects) == allowed, url), rounds=1))

    seconds: list[float] = []
    for _ in range(4):
        work()
    return min(seconds) / len(subjects) * 1e6


def hammer(folder: str, times: int) -> int:
    """One process of several on one subject; how many it was allowed."""
    with Limiter(f"lmdb://{folder}", [Policy("p", ["5000/hour", "9000/day"])]) as limiter:
        return capline_round(limiter, ["one"] * times)


def four_processes(times: int) -> tuple[float, int]:
    """Four processes on one subject of one file: microseconds a decision over all, and how many were allowed."""
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.starmap(hammer, [(folder, 0)] * 4)
        counts: list[int] = []
        seconds = best_seconds(lambda: counts.extend(pool.starmap(hammer, [(folder, times)] * 4)), rounds=1)
    return seconds / (4 * times) * 1e6, sum(counts)


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, decisions=200_000)
    report = Report("One decision")
    rounds = max(20, options.decisions // len(SUBJECTS))
    half_refused = SUBJECTS * 20
    mostly_refused = SUBJECTS * rounds
    one: dict[str, float] = {"at_most": 1.0}
    compare(report, "one limit, all allowed", ONE, SUBJECTS * 10, one)
    compare(report, "one limit, half refused", ONE, half_refused, one)
    compare(report, "one limit, mostly refused", ONE, mostly_refused, one)
    compare(report, "two limits, half refused", TWO, half_refused, one)
    loads = {"all allowed": SUBJECTS * 10, "half refused": half_refused, "mostly refused": mostly_refused}
    for name, subjects in loads.items():
        us = in_one_process("lmdb://{}", TWO, subjects, 10_000)
        report.add(f"lmdb relaxed, two limits, {name}", us, "us a decision", at_most=6)
    full = in_one_process("lmdb://{}?durability=full", TWO, SUBJECTS[:500], 500)
    report.add("lmdb full, two limits, all allowed", full, "us a decision")
    us, allowed = four_processes(20_000)
    check(allowed == 5000, f"four processes were allowed {allowed} of 5000")
    report.add("lmdb relaxed, 4 processes on one subject, exactly 5000 of 80000 allowed", us, "us a decision")
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
