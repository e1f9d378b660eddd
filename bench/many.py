"""`decide_many` on the embedded store: a million subjects, two limits, at each stage of a population's history."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from _harness import Report, arguments, best_seconds, check
from numpy.typing import NDArray

from capline import Limiter, ManualClock, Policy

if TYPE_CHECKING:
    from numpy.typing import NDArray

DAY_US = 86_400_000_000
POLICY = Policy("p", ["2/day", "6/week"], by_segment={"new": ["1/day", "3/week"], "active": ["3/day", "10/week"]})


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, subjects=1_000_000)
    n = options.subjects
    report = Report(f"decide_many on lmdb, {n:,} subjects, two limits")
    rng = np.random.default_rng(7)
    population = np.arange(n, dtype=np.uint32)
    scattered = np.sort(rng.choice(np.arange(4 * n, dtype=np.uint32), n, replace=False))
    codes: NDArray[np.int64] = np.arange(n, dtype=np.int64) * 7 // 5 % 3
    clock = ManualClock(1_700_000_000_000_000)

    def timed(name: str, limiter: Limiter, ids: NDArray[np.uint32], expected: int, *, peek: bool = False) -> None:
        counts: list[int] = []
        verb = limiter.peek_many if peek else limiter.decide_many
        seconds = best_seconds(lambda: counts.append(int(verb("p", ids).allowed.sum())), rounds=1)
        check(counts == [expected], f"{name}: {counts[0]} allowed, not {expected}")
        report.add(name, n / seconds, "decisions/s", at_least=400_000)

    with tempfile.TemporaryDirectory() as folder, Limiter(f"lmdb://{folder}", [POLICY], clock=clock) as limiter:
        timed("first message, dense ids", limiter, population, n)
        clock.advance_us(DAY_US // 2)
        timed("second message", limiter, population, n)
        timed("third, refused by the day", limiter, population, 0)
        for day in range(2):
            clock.advance_us(DAY_US)
            timed(f"day {day + 2}, one sent before today is out", limiter, population, n)
            limiter.decide_many("p", population)
        clock.advance_us(DAY_US)
        timed("refused by the week", limiter, population, 0)
        timed("plan: the same, consuming nothing", limiter, population, 0, peek=True)
        clock.advance_us(5 * DAY_US)
        timed("a week later, old hits trimmed", limiter, population, n)
        report.add("bytes a subject on disk", (Path(folder) / "data.mdb").stat().st_size / n, "bytes")
    with tempfile.TemporaryDirectory() as folder, Limiter(f"lmdb://{folder}", [POLICY], clock=clock) as limiter:
        timed("first message, scattered ids", limiter, scattered, n)
        timed("second message, scattered ids", limiter, scattered, n)
    with tempfile.TemporaryDirectory() as folder, Limiter(f"lmdb://{folder}", [POLICY], clock=clock) as limiter:
        counts: list[int] = []

        def by_segment() -> None:
            many = limiter.decide_many("p", population, segment=[None, "new", "active"], codes=codes)
            counts.append(int(many.allowed.sum()))

        by_segment()
        rate = n / best_seconds(by_segment, rounds=1)
        check(counts == [n, int(np.count_nonzero(codes != 1))], f"three segments: {counts}")
        report.add("second message, three segments", rate, "decisions/s", at_least=400_000)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
