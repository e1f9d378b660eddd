"""Threads, tasks and processes that ask at once."""

import asyncio
import multiprocessing
import sys
import threading
from typing import Any

from capline.limiter.aio import AsyncLimiter
from capline.limiter.limiter import Limiter
from capline.model.clock import SystemClock
from capline.model.decision import Decision
from capline.model.policy import Policy
from capline.testing.setting import POPULATION, Awaited, StoreSetting, begins_next


class AtOnceLaw(StoreSetting):
    """The checks."""

    def test_a_hundred_who_ask_at_once_get_exactly_five(self) -> None:
        """A hundred threads; of an asynchronous limiter, a hundred tasks on one loop."""
        limiter = self.limiter(self.policy("p", ["5/min"]))
        decisions = _at_once(limiter, askers=100, times=1)
        assert (len(decisions), sum(decision.allowed for decision in decisions)) == (100, 5)

    def test_askers_that_interleave_finely_get_exactly_the_quota_each_hit_its_own_stamp(self) -> None:
        limiter = self.limiter(self.policy("p", ["3000/h"]), clock=SystemClock())
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            decisions = _at_once(limiter, askers=4, times=1000)
        finally:
            sys.setswitchinterval(before)
        stamps = [decision.hit for decision in decisions if decision.hit is not None]
        assert (len(decisions), len(stamps), len(set(stamps))) == (4000, 3000, 3000)

    def test_four_processes_get_exactly_the_quota(self) -> None:
        """Two of them without `forms=next`, where the store has it, on numbers that it begins."""
        if self.url.startswith("memory:"):
            return  # a memory store is one process's own
        algorithm = "gcra" if begins_next(self.url) else "sliding_log"
        self.one("50/week", algorithm=algorithm)
        context = multiprocessing.get_context("spawn")
        with context.Pool(4) as pool:
            urls = [self.url, self.url.replace("forms=next", "forms=present")] * 2
            options = (algorithm, self.namespace, self.layout, self.asynchronous, 100)
            counts = pool.starmap(_ask_from_another_process, [(url, *options) for url in urls])
        assert sum(counts) == 50


def _at_once(limiter: Any, askers: int, times: int) -> list[Decision]:
    """The answers to so many callers at once, each calling so many times."""
    if isinstance(limiter, Awaited):
        return limiter.run(_tasks_at_once(limiter.inner, askers, times))
    decisions: list[Decision] = []
    gate = threading.Barrier(askers)

    def ask() -> None:
        gate.wait()
        decisions.extend([limiter.decide("p", "s") for _ in range(times)])

    threads = [threading.Thread(target=ask) for _ in range(askers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return decisions


async def _tasks_at_once(limiter: AsyncLimiter, askers: int, times: int) -> list[Decision]:
    async def ask() -> list[Decision]:
        decisions: list[Decision] = []
        for _ in range(times):
            decisions.append(await limiter.decide("p", "s"))
            await asyncio.sleep(0)
        return decisions

    answers = await asyncio.gather(*(ask() for _ in range(askers)))
    return [decision for decisions in answers for decision in decisions]


def _ask_from_another_process(
    url: str, algorithm: str, namespace: str, layout: str, asynchronous: bool, times: int
) -> int:
    policy = Policy("p", ["50/week"], algorithm=algorithm, layout=layout, population=POPULATION)
    limiter: Any = (Awaited if asynchronous else Limiter)(url, policies=[policy], namespace=namespace)
    try:
        return sum(bool(limiter.decide("p", "s")) for _ in range(times))
    finally:
        limiter.close()
