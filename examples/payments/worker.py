"""One of several processes that pay what a Redis Stream says: read an entry, call the provider, acknowledge.

The limiter is in the transport of the HTTP client, and nowhere else: `client.post` waits for its turn among all
processes on all hosts, and goes. Ends on SIGTERM, when what it has begun is done.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import Any

import httpx
from redis.asyncio import Redis

from capline import AsyncLimiter, Policy
from capline.middleware.httpx import AsyncLimitedTransport

GROUP = "payers"
HANDS = 8
"""Payments that one process has under way: enough that somebody always waits for the next slot."""

SLACK = 0.008
"""Seconds that a call may leave late for its slot: less than the 20 ms that the limit allows for the whole way."""

LOST_MS = 60_000
"""An entry that was read so long ago and is not acknowledged was in the hands of a worker that is gone."""


async def pay_all(redis: Redis, client: httpx.AsyncClient, stream: str, name: str, ended: asyncio.Event) -> None:
    """Pay one entry after the other."""
    while not ended.is_set():
        for entry, fields in await _next(redis, stream, name):
            # The entry's id is the payment's key: delivered twice, it is paid once.
            answer = await client.post("/pay", json=fields, headers={"Idempotency-Key": entry})
            answer.raise_for_status()
            await redis.xack(stream, GROUP, entry)


async def _next(redis: Redis, stream: str, name: str) -> list[tuple[str, dict[str, str]]]:
    """The next entry; where there is no new one, one that a lost worker has left."""
    new: Any = await redis.xreadgroup(GROUP, name, {stream: ">"}, count=1, block=500)
    if new:
        return new[0][1]
    left: Any = await redis.xautoclaim(stream, GROUP, name, LOST_MS, count=1)
    return left[1]


async def main(url: str, provider: str, stream: str, name: str, limits: list[str]) -> None:
    """Pay until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    connections = httpx.AsyncHTTPTransport()
    async with (
        AsyncLimiter(url, policies=[Policy("provider", limits)]) as limiter,
        httpx.AsyncClient(
            base_url=provider,
            transport=AsyncLimitedTransport(
                limiter, "provider", subject="acme-pay", max_wait=60, slack=SLACK, retries=5, transport=connections
            ),
        ) as client,
        Redis.from_url(url, decode_responses=True) as redis,  # pyright: ignore[reportUnknownMemberType] - redis-py's own
        asyncio.TaskGroup() as hands,
    ):
        # Connected before the first slot is taken: a call that connects first arrives late for its slot.
        idle = httpx.AsyncClient(base_url=provider, transport=connections)
        await asyncio.gather(*(idle.get("/stats") for _ in range(HANDS)))
        print("ready", flush=True)
        for _ in range(HANDS):
            hands.create_task(pay_all(redis, client, stream, name, ended))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("redis", "provider", "stream", "name"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--limits", nargs="+", required=True)
    asked = parser.parse_args()
    asyncio.run(main(asked.redis, asked.provider, asked.stream, asked.name, asked.limits))
