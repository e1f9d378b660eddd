"""Decisions on one event loop, by 1, 16 and 100 tasks, each algorithm, beside redis.asyncio's SET and limits.aio.

So many tasks ask for 400 subjects in turn, one attempt after the other each, every attempt allowed; the parties take
turns. A figure is the throughput over that of SET by as many tasks, by the processor's time of this process and the
server together. And 1,000 decisions at once against as many SETs one by one, by the clock on the wall.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import limits
import redis.asyncio
from _harness import Report, arguments, check, processor_clock
from _servers import KINDS, single
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from paths import ALGORITHMS, UNITS, policies

from capline import AsyncLimiter, Policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from _servers import Server

    Ask = Callable[[str], Awaitable[Any]]

POLICY = Policy("p", ["1000/minute", "10000/day"])
SUBJECTS = [f"user:{number}" for number in range(400)]
WANTED = {1: 1.0, 16: 2.0, 100: 3.7}
"""By the number of tasks."""
STRATEGIES = {
    "sliding_log": MovingWindowRateLimiter,
    "fixed_window": FixedWindowRateLimiter,
    "sliding_counter": SlidingWindowCounterRateLimiter,
}
WHY = {
    1: "two turns of the event loop and a poll of the socket are half of it, as they are of SET",
    16: "sums and numbers are a script call each: 17 us of the server, of which 3 are the call",
    100: "as with 16 tasks",
}


def asking(tasks: int, name: str, ask: Ask) -> Callable[[], Awaitable[None]]:
    """A round: every subject once, by so many tasks; each row has subjects of its own."""

    async def work() -> None:
        left = iter(SUBJECTS)

        async def one() -> None:
            for subject in left:
                check(bool(await ask(f"{name}:{subject}")), f"{name}: a refusal")

        await asyncio.gather(*(one() for _ in range(tasks)))

    return work


async def best_of(
    works: dict[str, Callable[[], Awaitable[None]]], rounds: int, now_s: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Seconds of each one's best round; they take turns."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = now_s()
            await work()
            best[name] = min(best[name], now_s() - start)
    return best


def parties(limiter: AsyncLimiter, client: Any, address: str) -> dict[str, Ask]:
    """What is asked: SET, each algorithm, and those that limits.aio has."""
    daily = limits.parse(f"{UNITS}/day")
    asks: dict[str, Ask] = {"SET": lambda subject: client.set(subject, "x" * 16)}
    for algorithm in ALGORITHMS:
        asks[algorithm] = lambda subject, algorithm=algorithm: limiter.decide(algorithm, subject)
        if algorithm in STRATEGIES:
            strategy = STRATEGIES[algorithm](
                RedisStorage(f"async+redis://{address}", implementation="redispy", key_prefix=algorithm)
            )
            asks[f"{algorithm}, limits"] = lambda subject, strategy=strategy: strategy.hit(daily, subject)
    return asks


async def by_tasks(report: Report, kind: str, server: Server, rounds: int) -> None:
    """The throughput of each algorithm over SET's."""
    client: Any = redis.asyncio.Redis(port=server.port)
    async with AsyncLimiter(f"{server.url}?deadline=5s", policies(UNITS)) as limiter:
        asks = parties(limiter, client, server.address)
        for tasks, wanted in WANTED.items():
            works = {name: asking(tasks, name, ask) for name, ask in asks.items()}
            best = await best_of(works, rounds, processor_clock(server.pid))
            over = {name: best["SET"] / seconds for name, seconds in best.items()}
            shown = f"{tasks} task{'s' if tasks > 1 else ''}"
            for algorithm in ALGORITHMS:
                beside = over.get(f"{algorithm}, limits")
                peers = {"limits": beside} if beside else None
                name = f"{kind}, {algorithm}: {shown}, over SET"
                report.add(name, over[algorithm], "x", at_least=wanted, peers=peers, why=WHY[tasks])
    await client.aclose()


async def at_once(report: Report, kind: str, server: Server, concurrent: int, rounds: int) -> None:
    """Many decisions at once, and one after the other."""
    client: Any = redis.asyncio.Redis(port=server.port)
    subjects = [f"user:{number}" for number in range(concurrent)]
    async with AsyncLimiter(f"{server.url}?deadline=5s", [POLICY]) as limiter:
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
            asyncio.run(by_tasks(report, kind, server, options.rounds))
            asyncio.run(at_once(report, kind, server, options.concurrent, options.rounds))
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
