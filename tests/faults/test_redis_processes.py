"""Processes, forks and cancelled tasks on one server: the quota holds, and nobody uses another's connection."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.server_kit import SLOW, Limiters, each_kind, soon

from capline import AsyncLimiter, Decision, Limiter, Policy
from capline.testing.servers import KINDS, shared, single

if TYPE_CHECKING:
    from collections.abc import Iterator

    from capline.testing.servers import Server

FORKED = """
import os, sys
from capline import Limiter, Policy
with Limiter(sys.argv[1], [Policy("p", ["500/day"])], namespace=sys.argv[2]) as limiter:
    allowed = sum(bool(limiter.decide("p", "s")) for _ in range(10))
    read, write = os.pipe()
    child = os.fork()
    allowed += sum(bool(limiter.decide("p", "s")) for _ in range(300))
    allowed += int(limiter.decide_many("p", ["s"] * 100).allowed.sum())
    if not child:
        os.write(write, str(allowed - 10).encode())
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    print(ended, allowed, int(os.read(read, 100)), limiter.peek("p", "s").remaining)
"""

AWAITED_FORK = """
import asyncio, os, sys
from capline import AsyncLimiter, Policy
async def main(limiter, times):
    return sum(map(bool, await asyncio.gather(*(limiter.decide("p", "s") for _ in range(times)))))
limiter = AsyncLimiter(sys.argv[1], [Policy("p", ["500/day"])], namespace=sys.argv[2])
first = asyncio.Runner()
allowed = first.run(main(limiter, 10))
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, str(asyncio.Runner().run(main(limiter, 400))).encode())
    os._exit(0)
allowed += first.run(main(limiter, 400))
print(os.waitpid(child, 0)[1], allowed, int(os.read(read, 100)), first.run(limiter.peek("p", "s")).remaining)
first.run(limiter.close())
first.close()
"""


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """This module's own, whose connections can be counted."""
    with single(request.param) as made:
        yield made


@pytest.mark.parametrize("script", [FORKED, AWAITED_FORK], ids=["sync", "async"])
def test_a_forked_child_and_its_parent_share_the_quota_and_no_connection(server: Server, script: str) -> None:
    name = f"fork{time.monotonic_ns()}"
    before = int(server.info("stats")["total_connections_received"])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, f"{server.url}?{SLOW}", name],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    ended, parent, child, left = map(int, ran.stdout.split())
    assert ended == 0
    assert parent + child == 500
    assert left == 0
    assert parent > 10
    assert child > 0
    # The parent's, the child's, and our own two looks.
    assert int(server.info("stats")["total_connections_received"]) - before >= 3


def test_the_child_s_end_says_nothing_on_the_parent_s_connection(server: Server, sync_limiters: Limiters) -> None:
    limiter = sync_limiters(server, Policy("p", ["99/day"]))
    assert limiter.decide("p", "s")
    mine = _connections(server)
    for _ in range(3):
        child = os.fork()
        if not child:
            limiter.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert limiter.decide("p", "s").remaining == 97
    assert _connections(server) == mine


def _connections(server: Server) -> set[bytes]:
    """The ports of the clients, but for the one that asks."""
    lines = server.command("CLIENT", "LIST").splitlines()
    return {line.split(b" addr=")[1].split(b" ")[0] for line in lines if b"cmd=client" not in line}


@each_kind
def test_a_task_that_is_cancelled_anywhere_harms_nobody(kind: str) -> None:
    policies = [Policy(f"p{quota}", [f"{quota}/day"]) for quota in (5, 6, 7, 8)]

    async def main(server: Server) -> None:
        async with AsyncLimiter(f"{server.url}?{SLOW}", policies) as limiter:
            assert await limiter.decide("p5", "warm")
            for turns in range(25):
                for alone in (True, False):
                    await one(limiter, turns, alone)
            await asyncio.sleep(0.05)
            assert len(_connections(server)) <= 4, "connections were left behind"
            assert await limiter.decide("p5", "last")

    async def one(limiter: AsyncLimiter, turns: int, alone: bool) -> None:
        """Cancel the first who asks after so many turns of the loop; the others ask at the same time, or after."""
        subject = f"s{turns}{alone}"
        first = asyncio.create_task(limiter.decide("p5", subject))
        others = [] if alone else [asyncio.create_task(limiter.decide(f"p{n}", subject)) for n in (6, 7, 8)]
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        for quota, answer in zip((6, 7, 8), await asyncio.gather(*others), strict=False):
            assert str(answer.limit) == f"{quota}/day"
            assert answer.remaining == quota - 1
        cut = False
        try:
            decision = await first
        except asyncio.CancelledError:
            cut = True
        else:
            assert (str(decision.limit), decision.remaining) == ("5/day", 4)
        again = await limiter.decide("p5", subject)
        assert str(again.limit) == "5/day"
        assert again.remaining in ((3, 4) if cut else (3,))

    with single(kind) as server:
        asyncio.run(main(server), debug=False)


@each_kind
def test_followers_of_a_cancelled_leader_are_answered_and_it_consumes_nothing_itself(kind: str) -> None:
    async def main() -> None:
        async with AsyncLimiter(
            f"{shared(kind).url}?{SLOW}", [Policy("p", ["50/day"])], namespace=f"lead{time.monotonic_ns()}"
        ) as limiter:
            tasks = [asyncio.create_task(limiter.decide("p", "s")) for _ in range(20)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            tasks[7].cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            decided = [answer for answer in answers if isinstance(answer, Decision)]
            assert len(decided) == 18
            assert len({answer.hit for answer in decided}) == 18
            assert (await limiter.peek("p", "s")).remaining >= 50 - 20 - 1

    asyncio.run(main())


QUOTAS = {"1/50ms": (1, 50_000), "10/s": (10, 1_000_000), "1000/5s": (1000, 5_000_000)}
SECONDS = 1.5


def hammer(url: str, namespace: str, limit: str, begin: Any, answers: Any) -> None:
    """Ask as often as can be; tell of every allowed hit when it was asked for, its stamp, and when it was answered."""
    found: list[tuple[int, int, int]] = []
    asked = 0
    with Limiter(url, [Policy("p", [limit])], namespace=namespace) as limiter:
        limiter.peek("p", "s")
        begin.wait()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            before = time.time_ns() // 1000
            decision = limiter.decide("p", "s")
            after = time.time_ns() // 1000
            asked += 1
            if decision.allowed and decision.hit is not None:
                found.append((before, decision.hit, after))
    answers.put((asked, found))


@each_kind
@pytest.mark.parametrize("limit", [*QUOTAS])
def test_eight_processes_on_one_key_never_exceed_the_quota(kind: str, limit: str) -> None:
    quota, window_us = QUOTAS[limit]
    context = multiprocessing.get_context("spawn")
    begin, answers = context.Barrier(8), context.Queue()
    url, name = f"{shared(kind).url}?{SLOW}", f"eight{time.monotonic_ns()}"
    workers = [context.Process(target=hammer, args=(url, name, limit, begin, answers)) for _ in range(8)]
    for worker in workers:
        worker.start()
    told = [answers.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    hits = sorted((stamp, before, after) for _, found in told for before, stamp, after in found)
    stamps = [stamp for stamp, _, _ in hits]
    assert sum(asked for asked, _ in told) > 2 * len(hits)
    assert all(asked > 20 for asked, _ in told)
    assert len(stamps) == len(set(stamps)) >= quota
    # A window is open at its old end: of any quota + 1 in a row, the last is at least a window later than the first.
    assert all(later - first >= window_us for first, later in zip(stamps, stamps[quota:], strict=False))
    # On this machine the server's clock is ours. A stamp runs ahead by a microsecond for each that shares its instant.
    assert all(before - 1000 <= stamp <= after + 1000 for stamp, before, after in hits)
    # By the wall clock alone: more than the quota, all asked for and answered within less than a window.
    for i, (_, begun, _) in enumerate(sorted(hits, key=lambda hit: hit[1])):
        within = [hit for hit in hits if hit[1] >= begun and hit[2] < begun + window_us]
        assert len(within) <= quota
        if i > 200:
            break
    # And it does let through what fits: the window was full again and again.
    if window_us < SECONDS * 1e6:
        assert len(hits) >= quota * int(SECONDS * 1e6 // window_us) * 0.5


@each_kind
def test_the_log_that_is_kept_says_the_same(kind: str, sync_limiters: Limiters) -> None:
    limiter = sync_limiters(shared(kind), Policy("p", ["20/h"]))
    told = [limiter.decide("p", "s").hit for _ in range(30)]
    kept = [hit.stamp_us for hit in limiter.explain("p", "s").hits]
    assert kept == [hit for hit in told if hit is not None]
    assert len(kept) == 20
    assert soon(lambda: limiter.now_us() >= kept[-1])
