"""Payments through a strict provider: several worker processes, one limit, no 429.

    python examples/payments/run.py --start-redis --seconds 10 --workers 4
    python examples/payments/run.py --redis redis://localhost --seconds 10 --workers 4

Puts payments into a Redis Stream, starts the provider and the workers, lets them run, and prints what the provider saw.
Exits 1 where it answered 429.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from redis import Redis

HERE = Path(__file__).parent
QUOTA = 100
LIMITS = ["100/1020ms", "1/9ms"]
"""The provider's 100 a second, with 20 ms for the network, and evenly: see the README."""

GROUP = "payers"
STOP_SECONDS = 30


def main() -> int:
    """Run it; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--redis", help="the URL of a server that runs already")
    where.add_argument("--start-redis", action="store_true", help="start one for this run (a checkout's dev extra)")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--limits", nargs="+", default=LIMITS, help=f"default: {' '.join(LIMITS)}")
    parser.add_argument("--json", action="store_true", help="what the provider saw, as JSON")
    asked = parser.parse_args()
    with ExitStack() as running:
        url: str = asked.redis
        if asked.start_redis:
            sys.path.append(str(Path(__file__).parents[2]))
            from tests.kit.servers import single  # noqa: PLC0415 - only a checkout has it

            url = running.enter_context(single("redis", "appendonly yes")).url
        seen = run(url, asked.seconds, asked.workers, asked.limits, running)
    if asked.json:
        print(json.dumps(seen))
    else:
        print(f"paid                         {seen['paid']} in {seen['seconds']} s")
        print(f"answers of 429               {seen['refused']}")
        print(f"used of the allowed rate     {seen['used']:.1%}")
        print(f"tightest {QUOTA + 1} calls           {seen['tightest']} s (below 1 s is a 429)")
    return 1 if seen["refused"] else 0


def run(url: str, seconds: float, workers: int, limits: list[str], running: ExitStack) -> dict[str, Any]:
    """What the provider saw in so many seconds."""
    redis: Any = running.enter_context(Redis.from_url(url))  # pyright: ignore[reportUnknownMemberType] - redis-py's own
    stream = f"payments:{secrets.token_hex(6)}"
    redis.xgroup_create(stream, GROUP, mkstream=True)
    running.callback(redis.delete, stream)
    provider = _start(running, "provider.py", "--quota", str(QUOTA))
    address = f"http://127.0.0.1:{_line(provider)}"
    payers = [
        _start(
            running, "worker.py", "--redis", url, "--provider", address, "--stream", stream,
            "--name", f"worker-{number}", "--limits", *limits,
        )
        for number in range(workers)
    ]  # fmt: skip
    for payer in payers:
        if _line(payer) != "ready":
            raise SystemExit("a worker ended before its first payment")
    with redis.pipeline(transaction=False) as pipe:
        for number in range(int((seconds + 5) * QUOTA * 1.2)):
            pipe.xadd(stream, {"order": number, "amount": "9.99"})
        pipe.execute()
    time.sleep(seconds)
    # As it is while all of them work: at the end each hand finishes what it holds, and the queue runs dry.
    seen = _stats(address)
    for payer in payers:
        payer.send_signal(signal.SIGTERM)
    if any(payer.wait(STOP_SECONDS) for payer in payers):
        raise SystemExit("a worker failed")
    return seen | {"refused": _stats(address)["refused"]}


def _start(running: ExitStack, program: str, *options: str) -> subprocess.Popen[bytes]:
    """Start one of the programs beside this one; it is stopped when the run ends, however that is."""
    command = [sys.executable, str(HERE / program), *options]
    process = running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))  # noqa: S603 - our own
    running.callback(process.terminate)
    return process


def _line(process: subprocess.Popen[bytes]) -> str:
    """The next line that it prints; empty where it ended."""
    return process.stdout.readline().decode().strip() if process.stdout else ""


def _stats(address: str) -> dict[str, Any]:
    """What the provider has seen so far."""
    with build_opener(ProxyHandler({})).open(f"{address}/stats", timeout=10) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())
