"""Processes on one key: the quota holds by the stamps, by the wall clock, and in the log that is kept."""

import multiprocessing
import subprocess
import sys
import time
from typing import Any

from tests.kit.server import SLOW, Limiters, each_kind
from tests.kit.servers import shared
from tests.profiles import size

from capline import Limiter, Policy

AWAITED_FORK = """
import asyncio, os, sys
from capline import AsyncLimiter, Policy
async def main(limiter, times):
    return sum(map(bool, await asyncio.gather(*(limiter.decide("p", "s") for _ in range(times)))))
limiter = AsyncLimiter(sys.argv[1], [Policy("p", ["500/day"])], namespace=sys.argv[2])
first = asyncio.Runner()
parent = first.run(main(limiter, 10))
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, str(asyncio.Runner().run(main(limiter, 200))).encode())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
parent += first.run(main(limiter, 400))
print(parent, os.read(read, 100).decode())
first.run(limiter.close())
first.close()
"""


QUOTAS = {"1/50ms": (1, 50_000), "10/s": (10, 1_000_000), "1000/5s": (1000, 5_000_000)}
POLICIES = [Policy(f"p{number}", [limit]) for number, limit in enumerate(QUOTAS)]
SECONDS = size(5, 12) / 10
REFUSED = 20
"""Of each process under each policy, however long it takes: then the window was full."""
TELLS = 200
"""Hits from whose asking on the wall clock is looked at; each look goes through all hits."""

Hit = tuple[int, int, int]
"""When it was asked for, its stamp, when it was answered: microseconds of this machine, which is the server's too."""


def hammer(url: str, namespace: str, begin: Any, answers: Any) -> None:
    """Ask as often as can be, for each policy a while."""
    told: list[tuple[int, list[Hit]]] = []
    with Limiter(url, POLICIES, namespace=namespace) as limiter:
        for policy in POLICIES:
            found: list[Hit] = []
            refused = 0
            limiter.peek(policy.name, "s")
            begin.wait()
            end = time.monotonic() + SECONDS
            while (time.monotonic() < end or refused < REFUSED) and time.monotonic() < end + 60:
                before = time.time_ns() // 1000
                decision = limiter.decide(policy.name, "s")
                after = time.time_ns() // 1000
                refused += not decision.allowed
                if decision.hit is not None:
                    found.append((before, decision.hit, after))
            told.append((refused, found))
    answers.put(told)


@each_kind
def test_eight_processes_on_one_key_never_exceed_the_quota(kind: str, sync_limiters: Limiters) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["capline", "capline.store.redis.store", "tests.faults.test_redis_processes"])
    begin, answers = context.Barrier(8), context.Queue()
    url = f"{shared(kind).url}?{SLOW}"
    workers = [
        context.Process(target=hammer, args=(url, sync_limiters.namespace, begin, answers), daemon=True)
        for _ in range(8)
    ]
    for worker in workers:
        worker.start()
    told = [answers.get(timeout=240) for _ in workers]
    for worker in workers:
        worker.join()
    for number, (quota, window_us) in enumerate(QUOTAS.values()):
        assert min(mine[number][0] for mine in told) >= REFUSED
        hits = [hit for mine in told for hit in mine[number][1]]
        no_window_holds_more(hits, quota, window_us)
        assert len(hits) >= quota, "what fits is let through"
    limiter = sync_limiters(shared(kind), *POLICIES)
    kept = [hit.stamp_us for hit in limiter.explain("p2", "s").hits]
    # On a slow machine the oldest have left the window by now, and nothing else is missing.
    gone_us = time.time_ns() // 1000 - QUOTAS["1000/5s"][1]
    granted = sorted(stamp for mine in told for _, stamp, _ in mine[2][1])
    assert kept == granted[len(granted) - len(kept) :]
    assert all(stamp <= gone_us for stamp in granted[: len(granted) - len(kept)])


def no_window_holds_more(hits: list[Hit], quota: int, window_us: int) -> None:
    """By the stamps; and by the wall clock, which knows nothing of stamps."""
    stamps = sorted(stamp for _, stamp, _ in hits)
    assert len(stamps) == len(set(stamps))
    # A window is open at its old end: of any quota + 1 in a row, the last is at least a window later than the first.
    assert all(later - first >= window_us for first, later in zip(stamps, stamps[quota:], strict=False))
    # A stamp runs ahead by a microsecond for each that shares its instant.
    assert all(before - 1000 <= stamp <= after + 1000 for before, stamp, after in hits)
    for begun, _, _ in sorted(hits)[:TELLS]:
        assert sum(begun <= before and after < begun + window_us for before, _, after in hits) <= quota


@each_kind
def test_a_child_that_lets_its_parent_s_connections_go_leaves_them_to_the_parent(
    kind: str, sync_limiters: Limiters
) -> None:
    """Parent and child share the loop's epoll: what the child takes out of it, the parent would wait for for ever."""
    url = f"{shared(kind).url}?deadline=3s"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AWAITED_FORK, url, sync_limiters.namespace],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["300", "200"]
