"""Is the window flat? A decision against a log of 100,000 hits, over one against 10 hits, in the steady state.

The clock stands where the oldest hit has just left its window, then each decision moves it one step: every attempt is
allowed, one old hit leaves, one new one comes, and the log keeps its length. Moving the clock is in the time of both.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from _harness import Report, arguments, best_seconds, check

from capline import Limiter, ManualClock, Policy

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_US = 1000


def steady(url: str, quota: int, narrow: int | None, decisions: int) -> tuple[float, float]:
    """Microseconds an allowed and a refused decision against a full log of `quota` hits."""
    limits = [f"{quota}/{quota * STEP_US}us"] + ([f"{narrow}/{narrow * STEP_US}us"] if narrow else [])
    clock = ManualClock(1_700_000_000_000_000)
    with Limiter(url, [Policy("p", limits)], clock=clock) as limiter:
        decide, advance = limiter.decide, clock.advance_us
        for _ in range(quota):
            decide("p", "s")
            advance(STEP_US)

        def allowed() -> None:
            for _ in range(decisions):
                good.append(decide("p", "s").allowed)
                advance(STEP_US)

        def refused() -> None:
            bad.extend(decide("p", "s").allowed for _ in range(decisions))

        good: list[bool] = []
        bad: list[bool] = []
        on = best_seconds(allowed, rounds=5)
        check(all(good), f"{url}: a steady attempt was refused at quota {quota}")
        advance(-1)
        off = best_seconds(refused, rounds=5)
        check(not any(bad), f"{url}: an attempt too early was allowed at quota {quota}")
    return on / decisions * 1e6, off / decisions * 1e6


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, hits=100_000, decisions=5_000)
    report = Report(f"A log of {options.hits:,} hits against one of 10")
    where: list[tuple[str, Callable[[str], str]]] = [
        ("memory", lambda _: "memory://"),
        ("lmdb", lambda folder: f"lmdb://{folder}"),
    ]
    for name, url in where:
        for shape, narrow in (("one limit", False), ("two limits", True)):
            short: tuple[float, ...] = (0.0, 0.0)
            for hits in (10, options.hits):
                with tempfile.TemporaryDirectory() as folder:
                    times = steady(url(folder), hits, hits // 2 if narrow else None, options.decisions)
                for verdict, us, base in zip(("allowed", "refused"), times, short, strict=True):
                    report.add(f"{name}, {shape}, {verdict}, {hits:,} hits", us, "us a decision")
                    if base:
                        report.add(f"{name}, {shape}, {verdict}: long over short", us / base, "x", at_most=1.5)
                short = times
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
