"""A small load generator: so many connections, each with one request under way; every answer is checked.

It parses what it must, so that one core can keep a server busy: the status, the length, the body.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvloop
from _harness import check

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Load", "post", "processor_seconds", "run_load"]

_HZ = 100  # of /proc/…/stat, whatever the kernel's own


@dataclass
class Load:
    """What became of it: requests, seconds, seconds of the server's processor, and each one's latency in seconds."""

    requests: int
    seconds: float
    processor_seconds: float
    latencies: list[float] = field(default_factory=list[float])

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds

    @property
    def processor_us(self) -> float:
        """Microseconds of the server's processor for one request."""
        return self.processor_seconds / self.requests * 1e6

    def quantile(self, share: float) -> float:
        """The latency that this share does not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def post(path: str, body: bytes) -> bytes:
    """A request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Client(asyncio.Protocol):
    def __init__(self, next_request: Callable[[], bytes | None], good: Callable[[bytes], bool], load: Load) -> None:
        self._next, self._good, self._load = next_request, good, load
        self._got = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is of another class
        self._send()

    def _send(self) -> None:
        request = self._next()
        if request is None:
            self._transport.close()
            self.done.set_result(None)
            return
        self._began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        head_end = self._got.find(b"\r\n\r\n")
        if head_end < 0:
            return
        at = max(self._got.find(b"content-length: "), self._got.find(b"Content-Length: ")) + 16
        size = int(self._got[at : self._got.index(b"\r\n", at)])
        if len(self._got) < head_end + 4 + size:
            return
        self._load.latencies.append(time.perf_counter() - self._began)
        check(self._got.startswith(b"HTTP/1.1 200 "), self._got[:300].decode())
        check(self._good(self._got[head_end + 4 :]), self._got[:600].decode())
        self._got = b""
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        check(self.done.done(), f"a connection was lost: {exc}")


def run_load(port: int, pid: int, connections: int, requests: list[bytes], good: Callable[[bytes], bool]) -> Load:
    """Send all of these, one after the other on each connection."""

    async def run() -> Load:
        load = Load(len(requests), 0, 0)
        left = iter(requests)
        clients: list[_Client] = []

        def made() -> _Client:
            clients.append(_Client(lambda: next(left, None), good, load))
            return clients[-1]

        before, began = processor_seconds(pid), time.perf_counter()
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            await loop.create_connection(made, "127.0.0.1", port)
        await asyncio.gather(*(client.done for client in clients))
        load.seconds = time.perf_counter() - began
        load.processor_seconds = processor_seconds(pid) - before
        return load

    return uvloop.run(run())


def processor_seconds(pid: int) -> float:
    """What a process has spent, in steps of a hundredth."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HZ
