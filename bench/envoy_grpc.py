"""ShouldRateLimit on the memory store against an empty grpc.aio method: calls a second, both on uvloop.

One process serves both, as the service does, metrics on; another asks. The empty method takes and returns the same
messages, and decides nothing; its answer is empty, so beside it is one that fills in a whole one. Rounds of all take
turns, with one request; in the last ones no request was seen before. Checked: every decision is OK, and the limit was
counted down by each.

The method by itself, from bytes to bytes without gRPC, is measured in this process: load on the machine shows least
there.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from _harness import Report, arguments, check

from capline import AsyncLimiter
from capline.service.envoy.files import followed_files, load
from capline.service.envoy.messages import OK, SERVICE, part, rls
from capline.service.envoy.metrics import EnvoyMetrics
from capline.service.envoy.ratelimit import RateLimit
from capline.service.envoy.server import envoy_server
from capline.service.envoy.service import Service
from capline.service.metrics.registry import Metrics
from capline.service.settings.values import Address, Grpc

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

QUOTA = 4_000_000_000
FILE = f"domain: edge\ndescriptors: [{{key: path, rate_limit: {{unit: day, requests_per_unit: {QUOTA}}}}}]"
EMPTY = "capline.bench.Empty"
WHY = "the floor is gRPC's own call; the method takes some 10 us of 200: the decision 2, the answer's bytes 4"
FILLED = "an empty method with a whole answer"


def serving(say: Connection) -> None:
    """The process that serves, until a word comes."""
    uvloop.run(serve(say))


async def serve(say: Connection) -> None:
    """Both servers; their ports are said first."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "edge.yaml"
        file.write_text(FILE, encoding="utf-8")
        metrics = Metrics()
        async with AsyncLimiter("memory://", observers=[metrics.observer]) as limiter:
            settings = Grpc(Address("127.0.0.1", 0), (str(file),))
            async with envoy_server(limiter, settings, followed_files(settings), metrics.figures) as envoy:
                empty, port = await empty_server()
                say.send((envoy.port, port))
                while await asyncio.to_thread(say.recv) == "cpu":
                    say.send(time.process_time())
                await empty.stop(None)


async def empty_server() -> tuple[Any, int]:
    """A started server of the empty method, and its port."""
    grpc, aio = part("grpc"), part("grpc.aio")
    response = rls.RateLimitResponse(overall_code=OK)

    async def nothing(_request: Any, _context: Any) -> Any:
        return response

    async def filled(_request: Any, _context: Any) -> Any:
        status = {
            "code": OK,
            "current_limit": {"requests_per_unit": QUOTA, "unit": "DAY"},
            "limit_remaining": QUOTA - 1,
            "duration_until_reset": {"seconds": 86_399, "nanos": 999_000},
        }
        return rls.RateLimitResponse(overall_code=OK, statuses=[status])

    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            method,
            request_deserializer=rls.RateLimitRequest.FromString,
            response_serializer=rls.RateLimitResponse.SerializeToString,
        )
        for name, method in {"Call": nothing, "Fill": filled}.items()
    }
    server = aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(EMPTY, methods)])
    port: int = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


def request_of(value: object) -> Any:
    """The request of one path."""
    entries = [{"key": "path", "value": f"/{value}"}]
    return rls.RateLimitRequest(domain="edge", descriptors=[{"entries": entries}], hits_addend=1)


async def ask(port: int, path: str, requests: list[Any], tasks: int) -> tuple[float, list[Any]]:
    """The seconds that these calls took, from so many tasks on one channel, and their answers."""
    answers: list[Any] = []
    async with part("grpc.aio").insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(
            path,
            request_serializer=rls.RateLimitRequest.SerializeToString,
            response_deserializer=rls.RateLimitResponse.FromString,
        )
        await channel.channel_ready()

        async def some(own: list[Any]) -> None:
            answers.extend([await method(request) for request in own])

        start = time.perf_counter()
        await asyncio.gather(*(some(requests[task::tasks]) for task in range(tasks)))
        return time.perf_counter() - start, answers


async def by_itself(calls: int, rounds: int, *, brought: bool = False) -> float:
    """The processor's microseconds of the method for one call; every answer is another one.

    With `brought` each request brings another limit along, which was never seen before.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "edge.yaml"
        file.write_text(FILE, encoding="utf-8")
        metrics = Metrics()
        async with AsyncLimiter("memory://", observers=[metrics.observer]) as limiter:
            answer = Service(RateLimit(limiter, load(file), EnvoyMetrics(metrics.figures))).answer
            best = float("inf")
            for turn in range(rounds):
                requests = [request_of("a") for _ in range(calls)]
                for number, request in enumerate(requests if brought else ()):
                    limit = request.descriptors[0].limit
                    limit.requests_per_unit, limit.unit = QUOTA - turn * calls - number, 4
                data: list[bytes] = [request.SerializeToString() for request in requests]
                begun = time.process_time()
                answers = [await answer(one) for one in data]
                best = min(best, time.process_time() - begun)
                left = {rls.RateLimitResponse.FromString(one).statuses[0].limit_remaining for one in answers}
                check(len(left) == calls, "each call was counted once")
    return best / calls * 1e6


async def measure(report: Report, here: Connection, calls: int, tasks: int, rounds: int) -> None:
    """Ask in turn, and report the best round of each."""
    ports: tuple[int, int] = here.recv()

    def server_seconds() -> float:
        here.send("cpu")
        return here.recv()

    decided = ports[0], f"/{SERVICE}/ShouldRateLimit"
    paths = {
        "the same request": decided,
        "a new one each": decided,
        "an empty method": (ports[1], f"/{EMPTY}/Call"),
        FILLED: (ports[1], f"/{EMPTY}/Fill"),
    }
    best = dict.fromkeys(paths, float("inf"))
    cpu = dict.fromkeys(paths, float("inf"))
    left: list[int] = []
    turns = [name for name in paths if name != "a new one each"] * rounds + ["a new one each"] * rounds
    for turn, name in enumerate(turns):  # the new ones last: they leave a log each
        port, path = paths[name]
        new = name == "a new one each"
        requests = [request_of(f"{turn}-{i}") for i in range(calls)] if new else [request_of("a")] * calls
        before = server_seconds()
        seconds, answers = await ask(port, path, requests, tasks)
        best[name] = min(best[name], seconds)
        cpu[name] = min(cpu[name], server_seconds() - before)
        check(all(answer.overall_code == OK for answer in answers), "every call is allowed")
        if new:
            check({answer.statuses[0].limit_remaining for answer in answers} == {QUOTA - 1}, "one of each")
        elif port == ports[0]:
            left += [answer.statuses[0].limit_remaining for answer in answers]
    check(len(set(left)) == len(left), "each call was counted once")
    empty = "an empty method"
    for name in paths:
        report.add(name, calls / best[name], "calls/s")
        report.add(f"{name}: the server's processor", cpu[name] / calls * 1e6, "us/call")
    for name in ("the same request", "a new one each", FILLED):
        least = 0.92 if name == "the same request" else None
        report.add(f"{name}: calls/s over the empty method's", best[empty] / best[name], "x", at_least=least, why=WHY)
        report.add(f"{name}: the empty method's processor over its own", cpu[empty] / cpu[name], "x")


def main() -> None:
    """Start the servers, ask, and print the table."""
    options = arguments(__doc__, calls=20_000, tasks=32, rounds=5)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serving, args=(there,))
    process.start()
    try:
        report = Report("Envoy: ShouldRateLimit over gRPC")
        report.add("the method by itself", uvloop.run(by_itself(options.calls, options.rounds)), "us/call")
        new = uvloop.run(by_itself(options.calls // 10, options.rounds, brought=True))
        report.add("the method by itself, a new limit in each request", new, "us/call")
        uvloop.run(measure(report, here, options.calls, options.tasks, options.rounds))
    finally:
        here.send("end")
        process.join()
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
