"""One decision on each store, and the moving window of `limits` for comparison.

The same subjects in the same order, the same limits, wall clock; the loop that asks is in the time of both. `limits`
answers yes or no; capline also says what remains, when to retry and when the log is empty. So `limits` is timed twice:
yes or no only, and with its window statistics, which is nearest to the same answer. With two limits it is asked for
each in turn, as its users do (and a refusal by the second burns the first, which capline's does not).
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
ONE, TWO = ["100/minute"], ["100/minute", "1000/day"]
FEW = ["10/hour", "50/day"]


def capline_round(limiter: Limiter, subjects: list[str]) -> int:
    """Ask for each; how many were allowed."""
    decide, allowed = limiter.decide, 0
    for subject in subjects:
        if decide("p", subject).allowed:
            allowed += 1
    return allowed


def limits_round(items: list[limits.RateLimitItem], subjects: list[str], *, say_more: bool = False) -> int:
    """Ask `limits` for each, from an empty store; how many were allowed.

    `say_more` also asks for what remains and when it resets, which a decision of capline says anyway.
    """
    strategy = MovingWindowRateLimiter(MemoryStorage())
    hit, stats, item, allowed = strategy.hit, strategy.get_window_stats, items[0], 0
    for subject in subjects:
        if all(hit(one, subject) for one in items) if len(items) > 1 else hit(item, subject):
            allowed += 1
        if say_more:
            stats(item, subject)
    return allowed


def compare(report: Report, name: str, policy: list[str], subjects: list[str]) -> None:
    """Time capline's memory store and `limits` on the same sequence, each from an empty store."""
    items = [limits.parse(text) for text in policy]
    allowed = min(100, len(subjects) // len(SUBJECTS)) * len(SUBJECTS)

    def ours() -> None:
        with Limiter("memory://", [Policy("p", policy)]) as limiter:
            check(capline_round(limiter, subjects) == allowed, f"capline, {name}")

    def theirs(*, say_more: bool) -> None:
        check(limits_round(items, subjects, say_more=say_more) == allowed, f"limits, {name}")

    mine = best_seconds(ours)
    bare = best_seconds(lambda: theirs(say_more=False), rounds=3)
    same = best_seconds(lambda: theirs(say_more=True), rounds=3)
    report.add(f"memory, {name}", mine / len(subjects) * 1e6, "us a decision", at_most=1)
    report.add(f"limits, {name}, yes or no only", bare / len(subjects) * 1e6, "us a decision")
    report.add(f"limits, {name}, and what remains", same / len(subjects) * 1e6, "us a decision")
    report.add(f"limits over capline, {name}, yes or no only", bare / mine, "x")
    report.add(f"limits over capline, {name}, the same answer", same / mine, "x", at_least=4)


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


def off_the_shortest_path(url: str, cost: int, *, with_id: bool) -> float:
    """Microseconds a decision of this cost, or with an id for each; every attempt allowed."""

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder, Limiter(url.format(folder), [Policy("p", TWO)]) as limiter:
            decide = limiter.decide
            asked = [(subject, f"{subject}:{turn}" if with_id else None) for turn in range(10) for subject in SUBJECTS]
            seconds.append(
                best_seconds(lambda: check(all(decide("p", one, cost, id) for one, id in asked), url), rounds=1)
            )

    seconds: list[float] = []
    for _ in range(4):
        work()
    return min(seconds) / len(SUBJECTS) / 10 * 1e6


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
    options = arguments(__doc__, rounds=400)
    report = Report("One decision, 1,000 subjects in turn")
    compare(report, "one limit, all allowed", ONE, SUBJECTS * 100)
    compare(report, "one limit, half refused", ONE, SUBJECTS * 200)
    compare(report, "one limit, mostly refused", ONE, SUBJECTS * options.rounds)
    compare(report, "two limits, all allowed", TWO, SUBJECTS * 100)
    compare(report, "two limits, half refused", TWO, SUBJECTS * 200)
    for name, rounds in {"all allowed": 10, "half refused": 20, "mostly refused": options.rounds // 2}.items():
        us = in_one_process("lmdb://{}", FEW, SUBJECTS * rounds, 10_000)
        report.add(f"lmdb relaxed, two limits, {name}", us, "us a decision", at_most=6)
    for store, url in {"memory": "memory://", "lmdb relaxed": "lmdb://{}"}.items():
        report.add(f"{store}, two limits, cost 2", off_the_shortest_path(url, 2, with_id=False), "us a decision")
        report.add(f"{store}, two limits, with an id", off_the_shortest_path(url, 1, with_id=True), "us a decision")
    full = in_one_process("lmdb://{}?durability=full", FEW, SUBJECTS[:500], 500)
    report.add("lmdb full, two limits, all allowed", full, "us a decision")
    us, allowed = four_processes(20_000)
    check(allowed == 5000, f"four processes were allowed {allowed} of 5000")
    report.add("lmdb relaxed, 4 processes on one subject, exactly 5000 of 80000 allowed", us, "us a decision")
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
