"""One of several processes that charge orders: claim one, call its provider, write down what came of it.

The limiter is in the transport of each provider's HTTP client, and nowhere else: `client.post` waits for its turn among
all processes, and goes. Ends when its standard input does, so with whoever started it: what is under way has two
seconds to finish, then slots and orders are given back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import httpx
from orders import Order, Orders
from providers import Provider

from capline import AsyncLimiter, CaplineError, LimitExceeded, StoreError
from capline.middleware.httpx import AsyncLimitedTransport

if TYPE_CHECKING:
    from collections.abc import Callable

_R = TypeVar("_R")

HANDS = 8
"""Orders of one provider that one process has under way: enough that somebody always waits for the next slot."""

RETRIES = 5
PAUSE_SECONDS = 0.5
LAST_SECONDS = 2
TOO_MANY = 429


class Worker:
    """Charges orders, each within a lease of so many seconds."""

    def __init__(self, orders: Orders, limiter: AsyncLimiter, lease: float) -> None:
        self.ended = asyncio.Event()
        self._orders, self._limiter, self._lease = orders, limiter, lease
        # SQLite waits for other processes: in a thread, so that no call misses its slot by it.
        self._thread = ThreadPoolExecutor(1)
        self._stuck: set[str] = set()

    def client(self, provider: Provider, connections: httpx.AsyncHTTPTransport) -> httpx.AsyncClient:
        """A client whose every request waits for a slot with this provider; half of a lease at most."""
        transport = AsyncLimitedTransport(
            self._limiter, provider.name, subject=provider.name, max_wait=self._lease / 2,
            slack=provider.slack, retries=RETRIES, transport=connections,
        )  # fmt: skip
        return httpx.AsyncClient(base_url=provider.url or "", transport=transport)

    async def work(self, provider: Provider, client: httpx.AsyncClient) -> None:
        """Charge one order of this provider after the other, until `ended` is set."""
        while not self.ended.is_set():
            order = await self._do(self._orders.claim, provider.name, self._lease)
            if order is None:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            try:
                # The order's id is the charge's key: called twice, it is charged once.
                answer = await client.post(
                    "/charge", json={"cents": order.cents}, headers={"Idempotency-Key": f"order-{order.id}"}
                )
            except (httpx.TransportError, LimitExceeded, StoreError) as error:
                await self._do(self._orders.give_back, order)
                if provider.name not in self._stuck:
                    self._stuck.add(provider.name)
                    print(f"{provider.name} waits: {error}", file=sys.stderr)
                await asyncio.sleep(PAUSE_SECONDS)
            except asyncio.CancelledError:
                self._do(self._orders.give_back, order)
                raise
            else:
                self._stuck.discard(provider.name)
                await asyncio.shield(self._write_down(order, answer))

    def close(self) -> None:
        """What was to be written down is, when this returns."""
        self._thread.shutdown()

    async def _write_down(self, order: Order, answer: httpx.Response) -> None:
        if answer.is_success:
            await self._do(self._orders.charged, order)
        elif answer.is_client_error and answer.status_code != TOO_MANY:
            await self._do(self._orders.failed, order, f"{answer.status_code} {answer.text[:200]}")
        else:
            await self._do(self._orders.give_back, order)

    def _do(self, step: Callable[..., _R], *arguments: object) -> asyncio.Future[_R]:
        return asyncio.get_running_loop().run_in_executor(self._thread, partial(step, *arguments))


async def main(store: str, config: str | None, table: Path, providers: list[Provider], lease: float) -> None:
    """Charge until standard input ends; raises what a hand ended by."""
    async with AsyncExitStack() as opened:
        orders = opened.enter_context(Orders(table))
        policies = [one.policy for one in providers]
        made = AsyncLimiter.from_config(config, store) if config else AsyncLimiter(store, policies)
        limiter = await opened.enter_async_context(made)
        worker = Worker(orders, limiter, lease)
        opened.callback(worker.close)
        asyncio.get_running_loop().add_reader(sys.stdin, worker.ended.set)
        hands: list[asyncio.Task[None]] = []
        for provider in providers:
            connections = httpx.AsyncHTTPTransport()
            client = await opened.enter_async_context(worker.client(provider, connections))
            # Connected before the first slot is taken: a call that connects first arrives late for its slot.
            idle = httpx.AsyncClient(base_url=provider.url or "", transport=connections)
            await asyncio.gather(*(idle.head("/") for _ in range(HANDS)), return_exceptions=True)
            hands += [asyncio.create_task(worker.work(provider, client)) for _ in range(HANDS)]
        print("ready", flush=True)
        ended = asyncio.create_task(worker.ended.wait())
        await asyncio.wait([ended, *hands], return_when=asyncio.FIRST_COMPLETED)
        worker.ended.set()
        _, late = await asyncio.wait(hands, timeout=LAST_SECONDS)
        for hand in late:
            hand.cancel()
        for outcome in await asyncio.gather(*hands, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("--config", help="a configuration store that has the providers' policies")
    parser.add_argument("--orders", required=True, type=Path, help="the SQLite file")
    parser.add_argument("--providers", required=True, type=json.loads, help="a list of providers, as JSON")
    parser.add_argument("--lease", type=float, required=True, help="seconds")
    asked = parser.parse_args()
    try:
        asyncio.run(
            main(asked.store, asked.config, asked.orders, [Provider(**one) for one in asked.providers], asked.lease)
        )
    except (CaplineError, sqlite3.Error, OSError) as error:
        sys.exit(f"worker: {error}")
