"""Waiting at rate: `acquire` under 64 tasks of one process, and under 4 processes of 16 tasks each.

Everyone waits for the same provider. A run is over once so many slots are used; a rate of 1 is all that the limit
allows. Checked by stamps: no window holds more than the quota, and whoever was answered before another asked has the
earlier slot. How late a start is after its slot is the event loop's and the machine's.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import tempfile
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from _harness import Report, arguments, check
from _servers import KINDS, single

from capline import AsyncLimiter, Policy

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

QUOTA, WINDOW_US = 100, 500_000
EACH_US, LEAVE = 200_000, 0.9
"""The limit of the row with cancelled waiters, and how many try to leave: about a third does before its turn."""
POLICY = Policy("psp", [f"{QUOTA}/{WINDOW_US}us"])


class Used(NamedTuple):
    """One slot: when it was asked for and answered, its stamp, and when the work in it began; microseconds."""

    asked_us: int
    answered_us: int
    stamp_us: int
    began_us: int


def now_us() -> int:
    """This machine's clock, the same in every process."""
    return time.time_ns() // 1000


async def waiters(url: str, tasks: int, each: int) -> list[Used]:
    """So many tasks, each of which takes so many slots in turn."""
    used: list[Used] = []
    async with AsyncLimiter(url, [POLICY]) as limiter:
        await limiter.peek("psp", "adyen")

        async def wait() -> None:
            for _ in range(each):
                asked_us = now_us()
                slot = await limiter.schedule("psp", "adyen")
                answered_us = now_us()
                await asyncio.sleep(slot.wait - (now_us() - answered_us) / 1e6)
                used.append(Used(asked_us, answered_us, slot.hit or 0, now_us()))

        await asyncio.gather(*(wait() for _ in range(tasks)))
    return used


async def acquirers(url: str, tasks: int, each: int) -> list[int]:
    """The same through `acquire`: when each began."""
    began: list[int] = []
    async with AsyncLimiter(url, [POLICY]) as limiter:
        await limiter.peek("psp", "adyen")

        async def wait() -> None:
            for _ in range(each):
                async with limiter.acquire("psp", "adyen"):
                    began.append(now_us())

        await asyncio.gather(*(wait() for _ in range(tasks)))
    return began


async def leavers(url: str, calls: int) -> tuple[list[int], float]:
    """Callers of whom some are cancelled as they wait for 1/200ms: when each began, and the share that left."""
    began: list[int] = []
    waited = left = 0
    draw = random.Random(1)  # noqa: S311 - who leaves
    async with AsyncLimiter(url, [Policy("one", [f"1/{EACH_US}us"])]) as limiter:

        async def wait() -> None:
            async with limiter.acquire("one", "adyen"):
                began.append(now_us())

        async def caller() -> None:
            nonlocal waited, left
            while len(began) < calls:
                waited += 1
                waits_s = (await limiter.peek("one", "adyen")).retry_after or 0.0
                waiter = asyncio.create_task(wait())
                if draw.random() < LEAVE:
                    await asyncio.wait([waiter], timeout=draw.random() * waits_s)
                    left += waiter.cancel()
                await asyncio.wait([waiter])

        await asyncio.gather(*(caller() for _ in range(20)))
    return began[:calls], left / waited


def judge_leavers(report: Report, name: str, began: list[int], left: float) -> None:
    """The share of the quota that those who stay use."""
    used = (len(began) - 1) * EACH_US / (began[-1] - began[0])
    check(left >= 0.25, f"only {left:.0%} were cancelled")
    report.add(f"{name}, 20 tasks, {left:.0%} cancelled: quota used", used, "x", at_least=0.98)


def in_process(url: str, tasks: int, each: int, gate: Barrier) -> tuple[list[Used], list[int]]:
    """One process of several: `schedule` first, then, all together again, `acquire`."""
    gate.wait()
    used = asyncio.run(waiters(url, tasks, each))
    gate.wait()
    return used, asyncio.run(acquirers(url, tasks, each))


def judge(report: Report, name: str, used: list[Used], began: list[int]) -> None:
    """Check and report one run."""
    stamps = sorted(one.stamp_us for one in used)
    check(all(late - early >= WINDOW_US for early, late in zip(stamps, stamps[QUOTA:], strict=False)), "over the quota")
    by_stamp = sorted(used, key=lambda one: one.stamp_us)
    latest_asked, overtaken = 0, 0
    for one in by_stamp:
        overtaken += one.answered_us < latest_asked
        latest_asked = max(latest_asked, one.asked_us)
    check(overtaken == 0, f"{overtaken} slots are later than that of someone who asked afterwards")
    allowed = QUOTA / WINDOW_US
    report.add(f"{name}: schedule, rate of the limit", rate(stamps) / allowed, "x", at_least=0.99)
    starts = sorted(began)
    report.add(f"{name}: acquire, rate of the limit", rate(starts) / allowed, "x", at_least=0.99)
    over = max(bisect_right(stamps, at + WINDOW_US - 1) - place for place, at in enumerate(stamps)) - QUOTA
    report.add(f"{name}: slots in one window above the quota", max(0, over), "slots", at_most=0)
    late = sorted(one.began_us - one.stamp_us for one in used)
    report.add(f"{name}: start after its slot, 99th percentile", late[len(late) * 99 // 100] / 1000, "ms")


def rate(instants: list[int]) -> float:
    """Slots a microsecond, from the first to the first of the last whole burst."""
    slots = (len(instants) - 1) // QUOTA * QUOTA
    return slots / (instants[slots] - instants[0])


def run(report: Report, name: str, url: str, slots: int) -> None:
    """64 tasks, then 4 processes of 16."""
    used = asyncio.run(waiters(url, 64, slots // 64))
    began = asyncio.run(acquirers(url, 64, slots // 64))
    judge(report, f"{name}, 64 tasks", used, began)
    judge_leavers(report, name, *asyncio.run(leavers(url, 100)))
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        gate = manager.Barrier(4)
        with context.Pool(4) as pool:
            parts = pool.starmap(in_process, [(url, 16, slots // 64, gate)] * 4)
    judge(
        report, f"{name}, 4 x 16", [one for part, _ in parts for one in part], [at for _, part in parts for at in part]
    )


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, slots=1280)
    report = Report(f"Waiting for {QUOTA}/{WINDOW_US // 1000}ms, loopback")
    with tempfile.TemporaryDirectory() as directory:
        run(report, "lmdb", f"lmdb://{directory}/store", options.slots)
    for kind in KINDS:
        with single(kind) as server:
            run(report, kind, f"{server.url}?deadline=10s", options.slots)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
