"""A fork after connecting, tasks that are cancelled anywhere: nobody reads another's reply, nothing is left open."""

import asyncio
import subprocess
import sys

import pytest
from tests.kit.server import SLOW, Limiters, each_kind, each_layout, soon, units
from tests.kit.servers import Server, shared, single
from tests.profiles import size, sized

from capline import AsyncLimiter, Attempt, Decision, Policy

FORKS = """
import asyncio, os, sys
from capline import AsyncLimiter, Limiter, Policy

kind, url, namespace, layout = sys.argv[1:]
policies = [Policy("p", ["100/day"], layout=layout, population=100)]

if kind == "sync":
    limiter = Limiter(url, policies, namespace=namespace)
    def ask(times):
        return sum(limiter.decide("p", "s").allowed for _ in range(times))
    def done():
        limiter.close()
else:
    limiter = AsyncLimiter(url, policies, namespace=namespace)
    runner = asyncio.Runner()
    async def asked(times):
        return sum([(await limiter.decide("p", "s")).allowed for _ in range(times)])
    def ask(times):
        # A loop does not outlive a fork: the child has one of its own.
        return (runner if os.getpid() == parent else own).run(asked(times))
    def done():
        (runner if os.getpid() == parent else own).run(limiter.close())

parent = os.getpid()
counts = [ask(10)]
reads = []
for _ in range(3):
    read, write = os.pipe()
    if not os.fork():
        if kind == "async":
            own = asyncio.Runner()
        allowed = ask(40)
        os.write(write, b"%d" % allowed)
        input_ = sys.stdin.buffer.raw.read(1)   # its connection stays until it was looked at
        done()
        os._exit(0)
    reads.append(read)
counts.append(ask(40))
counts += [int(os.read(read, 10)) for read in reads]
print(*counts, flush=True)
sys.stdin.buffer.raw.read(1)
for _ in reads:
    os.wait()
print(ask(1), flush=True)
"""


def clients(server: Server) -> set[int]:
    """The connections to it, but for the one that asks."""
    lines = server.command("CLIENT", "LIST").decode().splitlines()
    words = [dict(word.split("=", 1) for word in line.split()) for line in lines]
    return {int(one["id"]) for one in words if not one["cmd"].startswith("client")}


@each_kind
@each_layout
@pytest.mark.parametrize("face", ["sync", "async"])
def test_after_a_fork_parent_and_children_share_the_quota_and_no_connection(
    kind: str, layout: str, face: str, sync_limiters: Limiters
) -> None:
    with single(kind) as server:
        url = f"{server.url}?deadline=3s"
        with subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", FORKS, face, url, sync_limiters.namespace, layout],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as script:
            assert script.stdin is not None
            assert script.stdout is not None
            counts = [int(count) for count in script.stdout.readline().split()]
            assert len(counts) == 5
            assert counts[0] == 10
            assert sum(counts) == 100
            assert len(clients(server)) == 4, "one of each process"
            script.stdin.write(b"....")
            script.stdin.flush()
            assert script.stdout.readline() == b"0\n", "the parent's connection is none of a child's to close"
        assert script.returncode == 0
        policy = Policy("p", ["100/day"], layout=layout, population=100)
        assert units(sync_limiters(server, policy), "s") == 100


QUOTAS = [Policy(f"p{quota}", [f"{quota}/day"]) for quota in range(1000, 1060)]


async def turns(many: int) -> None:
    for _ in range(many):
        await asyncio.sleep(0)


async def cancelled_after(limiter: AsyncLimiter, server: Server, turns_or_seconds: float) -> bool:
    """Cancel one of three that ask at once; whether it was answered before."""
    first, others = 0, (1, 2)
    tasks = [
        asyncio.create_task(limiter.decide(QUOTAS[number].name, f"after {turns_or_seconds}"))
        for number in (first, *others)
    ]
    await (turns(turns_or_seconds) if isinstance(turns_or_seconds, int) else asyncio.sleep(turns_or_seconds))
    tasks[first].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    for number in others:
        answer = answers[number]
        assert isinstance(answer, Decision), (turns_or_seconds, answer)
        assert answer.allowed
        assert answer.remaining == 1000 + number - 1, "another's answer"
    assert isinstance(answers[first], (Decision, asyncio.CancelledError))
    return isinstance(answers[first], Decision)


@each_kind
async def test_one_of_a_turn_is_cancelled_at_any_point_and_the_others_are_answered(kind: str) -> None:
    server = shared(kind)
    async with AsyncLimiter(f"{server.url}?{SLOW}", QUOTAS, namespace=Limiters(asynchronous=True).namespace) as asked:
        await asked.decide("p1000", "warm")
        before = len(clients(server))
        waits: list[float] = [*range(25), *(number * 0.00005 for number in range(1, 40))]
        finished = [await cancelled_after(asked, server, wait) for wait in waits]
        assert not all(finished)
        # Up to behind its end, however slow the machine is.
        for wait in (0.01, 0.1, 1.0, 10.0):
            if not any(finished):
                finished.append(await cancelled_after(asked, server, wait))
        assert any(finished)
        await asyncio.sleep(0.05)
        assert soon(lambda: len(clients(server)) <= before + 2, 2), "one of a turn, one of the cancelled, and one"


VERBS = ["decide", "decide with an id", "peek", "decide_many", "decide_batch", "schedule", "refund", "explain", "erase"]


@sized
@each_kind
@pytest.mark.parametrize("verb", VERBS)
async def test_a_task_cancelled_at_any_point_leaves_no_reply_and_no_connection_behind(kind: str, verb: str) -> None:
    server = shared(kind)
    namespace = Limiters(asynchronous=True).namespace
    async with AsyncLimiter(f"{server.url}?{SLOW}&max_connections=3", QUOTAS, namespace=namespace) as limiter:
        verbs = {
            "decide": lambda: limiter.decide("p1059", "s"),
            "decide with an id": lambda: limiter.decide("p1059", "s", id="x"),
            "peek": lambda: limiter.peek("p1059", "s"),
            "decide_many": lambda: limiter.decide_many("p1059", range(3000)),
            "decide_batch": lambda: limiter.decide_batch([Attempt("p1059", number) for number in range(300)]),
            "schedule": lambda: limiter.schedule("p1059", "s"),
            "refund": lambda: limiter.refund("p1059", "s", 1),
            "explain": lambda: limiter.explain("p1059", "s"),
            "erase": lambda: limiter.erase("s"),
        }
        await limiter.decide("p1000", "warm")
        before = len(clients(server))
        cancelled = 0
        waits = [turns(number) for number in range(size(8, 20))]
        waits += [asyncio.sleep(number * 0.0001) for number in range(1, 25, size(3, 1))]
        for number, wait in enumerate(waits):
            task = asyncio.create_task(verbs[verb]())
            await wait
            task.cancel()
            # Now, while it is on its way out: a reply that it left unread would be this one's.
            answer = await limiter.decide(QUOTAS[number].name, f"next {number}")
            assert answer.remaining == 1000 + number - 1, "another's answer"
            try:
                await task
            except asyncio.CancelledError:
                cancelled += 1
        assert cancelled > 3
        await asyncio.sleep(0.05)
        assert soon(lambda: len(clients(server)) <= before + 2, 2)
        # As many at once as there are connections: each cancelled one gave its place back.
        many = await asyncio.gather(*(limiter.peek("p1001", f"s{number}") for number in range(12)))
        assert all(one.allowed for one in many)


@each_kind
async def test_cancelled_while_it_connects_it_takes_no_place_in_the_pool(kind: str) -> None:
    server = shared(kind)
    namespace = Limiters(asynchronous=True).namespace
    before = len(clients(server))
    for number in range(30):
        url = f"{server.url}?{SLOW}&max_connections=1"
        async with AsyncLimiter(url, QUOTAS, namespace=namespace) as limiter:
            task = asyncio.create_task(limiter.decide("p1000", "s"))
            await turns(number)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            answer = await asyncio.wait_for(limiter.decide(QUOTAS[number].name, f"n {number}"), 5)
            assert answer.remaining == 1000 + number - 1
    await asyncio.sleep(0.05)
    assert soon(lambda: len(clients(server)) <= before, 2), (before, len(clients(server)))
