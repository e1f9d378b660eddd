"""Strict payment providers, to try a limiter on: 429 beyond the limit in any window, by their own exact count.

    python provider.py acme-pay=100/1 minipay=30/2       calls / seconds, each provider on a port of its own
    python provider.py acme-pay=100/1@8000 --calls FILE  on this one, and each call a line of a file that is kept

    POST /charge   200, or 402 where there is nothing to charge, or 429 with Retry-After; an answer takes 20 to 80 ms
    GET  /stats    what this one has seen, as JSON; not counted, as nothing else is

An `Idempotency-Key` that comes again is a call like any other and charges nothing more. A call counts when all of it
has arrived, on the provider's own clock; nothing here knows of the limiter. Prints the addresses as one line of JSON,
and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import deque
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

MOST_BODY_BYTES = 65_536
ANSWER_SECONDS = (0.02, 0.08)


class Provider:
    """The sliding count, and what was seen."""

    def __init__(self, quota: int, seconds: float, calls: TextIO | None = None) -> None:
        self.quota, self.window_ns = quota, round(seconds * 1e9)
        self._calls = calls
        self.counted: deque[int] = deque(maxlen=quota)
        """When each of the newest calls that were let in came."""
        self.charges: dict[str, int] = {}
        """What each key was charged, in cents."""
        self.allowed = self.refused = self.first_ns = self.last_ns = 0
        self.tightest_ns: int | None = None
        if self._calls is not None:  # who was killed knows again what it has charged
            self._calls.seek(0)
            rows = [line.split() for line in self._calls]
            self.charges = {key: int(cents) for _, status, key, cents in rows if status == "200"}

    def lets_in(self) -> bool:
        """Whether a call that has come now is within the limit."""
        now_ns = time.monotonic_ns()
        if len(self.counted) == self.quota:
            # From the call that a full window would begin with to this one: below a window, there is no room.
            span_ns = now_ns - self.counted[0]
            self.tightest_ns = span_ns if self.tightest_ns is None else min(self.tightest_ns, span_ns)
            if span_ns < self.window_ns:
                self.refused += 1
                return False
        self.counted.append(now_ns)
        self.allowed += 1
        self.first_ns, self.last_ns = self.first_ns or now_ns, now_ns
        return True

    def charge(self, key: str, cents: int) -> tuple[str, str]:
        """Status and body of the answer to a call that was let in."""
        if cents <= 0:
            return "402 Payment Required", '{"error": "nothing to charge"}'
        return "200 OK", json.dumps({"charged": self.charges.setdefault(key, cents)})

    def stats(self) -> dict[str, float | int | None]:
        """What was seen; `used` is the rate from the first call let in to the last, as a part of the allowed rate."""
        windows = (self.last_ns - self.first_ns) / self.window_ns
        return {
            "calls": self.allowed,
            "refused": self.refused,
            "charged": len(self.charges),
            "cents": sum(self.charges.values()),
            "seconds": round((self.last_ns - self.first_ns) / 1e9, 3),
            "used": round((self.allowed - 1) / (windows * self.quota), 4) if windows else 0.0,
            "window": self.window_ns / 1e9,
            "tightest": None if self.tightest_ns is None else round(self.tightest_ns / 1e9, 4),
        }

    def _note(self, status: str, key: str, cents: int) -> None:
        if self._calls is not None:
            self._calls.write(f"{time.monotonic_ns()} {status[:3]} {key} {cents}\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: requests, one after the other."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                request, *lines = head.split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(min(int(headers.get("content-length", 0)), MOST_BODY_BYTES))
                if not request.startswith("POST /charge "):
                    _answer(writer, "200 OK", "" if request.startswith("HEAD ") else json.dumps(self.stats()))
                    await writer.drain()
                    continue
                key, cents = headers["idempotency-key"], int(json.loads(body)["cents"])
                if self.lets_in():
                    answer = self.charge(key, cents)
                    self._note(answer[0], key, cents)
                    await asyncio.sleep(random.uniform(*ANSWER_SECONDS))  # noqa: S311 - no secret
                    _answer(writer, *answer)
                else:
                    self._note("429", key, cents)
                    _answer(writer, "429 Too Many Requests", '{"error": "rate"}', "Retry-After: 1\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError, KeyError):
            pass
        finally:
            writer.close()


def _answer(writer: asyncio.StreamWriter, status: str, body: str, more: str = "") -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode() + body.encode())


async def main(limits: list[str], calls: TextIO | None) -> None:
    """Serve until standard input ends."""
    addresses: dict[str, str] = {}
    for one in limits:
        name, _, limit = one.rpartition("=")
        limit, _, port = limit.partition("@")
        quota, _, seconds = limit.partition("/")
        provider = Provider(int(quota), float(seconds), calls)
        server = await asyncio.start_server(provider.serve, "127.0.0.1", int(port or 0))
        addresses[name] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(json.dumps(addresses), flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    await ended.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("limits", nargs="+", metavar="NAME=CALLS/SECONDS[@PORT]")
    parser.add_argument("--calls", type=Path, help="each call is a line here; what it says was charged stays charged")
    asked = parser.parse_args()
    with nullcontext() if asked.calls is None else asked.calls.open("a+", buffering=1, encoding="utf-8") as calls:
        asyncio.run(main(asked.limits, calls))
