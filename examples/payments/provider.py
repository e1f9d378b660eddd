"""A strict payment provider, to try a limiter on: 429 beyond `--quota` calls in any second, by its own exact count.

    POST /pay      200, or 429 with Retry-After; the answer takes 20 to 80 ms, as answers do
    GET  /stats    what it has seen, as JSON; not counted

It counts a call when the whole request has arrived, on its own clock, and knows nothing of the limiter. It prints its
port when it listens, and ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import time
from collections import deque

MOST_BODY_BYTES = 65_536
SECOND_NS = 1_000_000_000


class Provider:
    """The sliding count, and what was seen."""

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self.counted: deque[int] = deque(maxlen=quota)
        """When each of the newest calls that were allowed came."""
        self.keys: set[str] = set()
        self.allowed = self.refused = 0
        self.first_ns = self.last_ns = 0
        self.tightest_ns: int | None = None

    def call(self, key: str) -> bool:
        """Whether a call that has come now is within the quota."""
        now_ns = time.monotonic_ns()
        if len(self.counted) == self.quota:
            # From the call that a full window would begin with to this one: below a second, there is no room.
            span_ns = now_ns - self.counted[0]
            self.tightest_ns = span_ns if self.tightest_ns is None else min(self.tightest_ns, span_ns)
            if span_ns < SECOND_NS:
                self.refused += 1
                return False
        self.counted.append(now_ns)
        self.allowed += 1
        self.keys.add(key)
        self.first_ns, self.last_ns = self.first_ns or now_ns, now_ns
        return True

    def stats(self) -> dict[str, float | int | None]:
        """What was seen; `used` is the rate from the first allowed call to the last, as a part of the allowed rate."""
        seconds = (self.last_ns - self.first_ns) / SECOND_NS
        return {
            "allowed": self.allowed,
            "refused": self.refused,
            "paid": len(self.keys),
            "seconds": round(seconds, 3),
            "used": round((self.allowed - 1) / (seconds * self.quota), 4) if seconds else 0.0,
            "tightest": None if self.tightest_ns is None else round(self.tightest_ns / SECOND_NS, 4),
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: requests, one after the other."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                request, *lines = head.split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                await reader.readexactly(min(int(headers.get("content-length", 0)), MOST_BODY_BYTES))
                if request.startswith("GET /stats "):
                    _answer(writer, "200 OK", json.dumps(self.stats()))
                elif self.call(headers.get("idempotency-key", "")):
                    await asyncio.sleep(random.uniform(0.02, 0.08))  # noqa: S311 - no secret
                    _answer(writer, "200 OK", '{"status": "paid"}')
                else:
                    _answer(writer, "429 Too Many Requests", '{"error": "rate"}', "Retry-After: 1\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()


def _answer(writer: asyncio.StreamWriter, status: str, body: str, more: str = "") -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    writer.write(head.encode() + body.encode())


async def main(quota: int) -> None:
    """Serve until SIGTERM."""
    server = await asyncio.start_server(Provider(quota).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quota", type=int, default=100, help="calls in any second")
    asyncio.run(main(parser.parse_args().quota))
