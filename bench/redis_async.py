"""Many decisions at once on one event loop: 1,000 concurrent `decide`, against awaiting redis-py's SET one by one.

And one alone, which must not wait for company: against one SET alone.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import redis.asyncio
from _harness import Report, arguments, check
from _servers import KINDS, single

from capline import AsyncLimiter, Policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

POLICY = Policy("p", ["1000/minute", "10000/day"])


async def best_of(works: dict[str, Callable[[], Awaitable[None]]], rounds: int) -> dict[str, float]:
    """Seconds of each one's best round; they take turns."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            await work()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


async def measure(report: Report, kind: str, url: str, port: int, concurrent: int, rounds: int) -> None:
    """The figures of one server."""
    client: Any = redis.asyncio.Redis(port=port)
    subjects = [f"user:{number}" for number in range(concurrent)]
    async with AsyncLimiter(f"{url}?deadline=5s", [POLICY]) as limiter:
        decide = limiter.decide

        async def together() -> None:
            many = await asyncio.gather(*(decide("p", subject) for subject in subjects))
            check(all(one.allowed for one in many), f"{kind}: a decision of many at once was refused")

        async def alone() -> None:
            for subject in subjects:
                check((await decide("p", subject)).allowed, f"{kind}: a decision was refused")

        async def plain_set() -> None:
            for subject in subjects:
                check(await client.set(subject, "x" * 16), f"{kind}: SET failed")

        best = await best_of({"together": together, "alone": alone, "SET": plain_set}, rounds)
    await client.aclose()
    report.add(f"{kind}: {concurrent:,} decisions at once", concurrent / best["together"], "decisions/s")
    report.add(f"{kind}: decisions one by one", concurrent / best["alone"], "decisions/s")
    report.add(f"{kind}: redis-py's SET one by one", concurrent / best["SET"], "SET/s")
    report.add(f"{kind}: at once, over SET one by one", best["SET"] / best["together"], "x", at_least=8)
    report.add(f"{kind}: one decision's time over one SET's", best["alone"] / best["SET"], "x")


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, concurrent=1000, rounds=10)
    report = Report("Decisions on one event loop")
    for kind in KINDS:
        with single(kind) as server:
            asyncio.run(measure(report, kind, server.url, server.port, options.concurrent, options.rounds))
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
