"""ShouldRateLimit on the memory store against an empty grpc.aio method: calls a second, both on uvloop.

One process serves both, another asks. The empty method takes and returns the same messages, and decides nothing.
Checked: every answer of the first is OK, and the limit was counted down by each.
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
from prometheus_client import CollectorRegistry

from capline import AsyncLimiter
from capline.service.envoy.messages import OK, SERVICE, part, rls
from capline.service.envoy.server import envoy_server
from capline.service.envoy.settings import EnvoySettings

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

QUOTA = 4_000_000_000
FILE = f"domain: edge\ndescriptors: [{{key: path, rate_limit: {{unit: day, requests_per_unit: {QUOTA}}}}}]"
EMPTY = "capline.bench.Empty"


def serving(say: Connection) -> None:
    """The process that serves, until a word comes."""
    uvloop.run(serve(say))


async def serve(say: Connection) -> None:
    """Both servers; their ports are said first."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "edge.yaml"
        file.write_text(FILE, encoding="utf-8")
        async with AsyncLimiter("memory://") as limiter:
            settings = EnvoySettings("127.0.0.1:0", (file,))
            async with envoy_server(limiter, settings, CollectorRegistry()) as envoy:
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

    method = grpc.unary_unary_rpc_method_handler(
        nothing,
        request_deserializer=rls.RateLimitRequest.FromString,
        response_serializer=rls.RateLimitResponse.SerializeToString,
    )
    server = aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(EMPTY, {"Call": method})])
    port: int = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def ask(port: int, path: str, calls: int, tasks: int) -> tuple[float, list[Any]]:
    """The seconds that so many calls took, from so many tasks on one channel, and their answers."""
    request = rls.RateLimitRequest(
        domain="edge", descriptors=[{"entries": [{"key": "path", "value": "/a"}]}], hits_addend=1
    )
    answers: list[Any] = []
    async with part("grpc.aio").insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(
            path,
            request_serializer=rls.RateLimitRequest.SerializeToString,
            response_deserializer=rls.RateLimitResponse.FromString,
        )
        await method(request, wait_for_ready=True)

        async def some() -> None:
            answers.extend([await method(request) for _ in range(calls // tasks)])

        start = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(tasks)))
        return time.perf_counter() - start, answers


async def measure(report: Report, here: Connection, calls: int, tasks: int, rounds: int) -> None:
    """Ask both in turn, and report the best round of each."""
    ports: tuple[int, int] = here.recv()

    def server_seconds() -> float:
        here.send("cpu")
        return here.recv()

    paths = {"decided": (ports[0], f"/{SERVICE}/ShouldRateLimit"), "empty": (ports[1], f"/{EMPTY}/Call")}
    best = dict.fromkeys(paths, float("inf"))
    cpu = dict.fromkeys(paths, float("inf"))
    left: list[int] = []
    for _ in range(rounds):
        for name, (port, path) in paths.items():
            before = server_seconds()
            seconds, answers = await ask(port, path, calls, tasks)
            best[name] = min(best[name], seconds)
            cpu[name] = min(cpu[name], server_seconds() - before)
            check(all(answer.overall_code == OK for answer in answers), "every call is allowed")
            if name == "decided":
                left += [answer.statuses[0].limit_remaining for answer in answers]
    check(len(set(left)) == len(left), "each call was counted once")
    done = calls // tasks * tasks
    report.add("ShouldRateLimit, memory store", done / best["decided"], "calls/s")
    report.add("an empty method", done / best["empty"], "calls/s")
    report.add("the first over the second", best["empty"] / best["decided"], "x", at_least=0.8)
    report.add("the server's processor, ShouldRateLimit", cpu["decided"] / done * 1e6, "us/call")
    report.add("the server's processor, an empty method", cpu["empty"] / done * 1e6, "us/call")
    report.add("the second over the first", cpu["empty"] / cpu["decided"], "x")


def main() -> None:
    """Start the servers, ask, and print the table."""
    options = arguments(__doc__, calls=20_000, tasks=32, rounds=5)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serving, args=(there,))
    process.start()
    try:
        report = Report("Envoy: ShouldRateLimit over gRPC")
        uvloop.run(measure(report, here, options.calls, options.tasks, options.rounds))
    finally:
        here.send("end")
        process.join()
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
