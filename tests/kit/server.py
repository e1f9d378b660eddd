"""Tools for tests on real servers: limiters of either kind, a proxy that loses replies, looks at what is recorded."""

# pyright: reportArgumentType=false

import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

import pytest
from tests.kit.servers import HOST, KINDS, Cluster, SentinelGroup, Server

from capline import Limiter, StoreError
from capline.model.policy import Policy
from capline.testing.conformance import Awaited

SLOW = "deadline=10s&bulk_deadline=30s"
"""For tests of what is answered, not of when: the machine does other things too."""


each_kind = pytest.mark.parametrize("kind", KINDS)
each_layout = pytest.mark.parametrize("layout", ["subject", "bucket"])
each_pair = pytest.mark.parametrize(
    ("limiters", "layout"), [(False, "subject"), (True, "bucket")], indirect=["limiters"], ids=["sync", "async"]
)
"""Both faces and both layouts, for tests that take long and where the two have little to do with each other."""


class Limiters:
    """Makes limiters, sync or async, that are closed when the test ends; each test has a namespace of its own."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.namespace = f"t{secrets.token_hex(6)}"
        self._made: list[Any] = []

    def __call__(
        self, place: Server | Cluster | SentinelGroup | str, *policies: Policy, options: str = SLOW, **more: Any
    ) -> Any:
        url = place if isinstance(place, str) else f"{place.url}?{options}"
        kind = Awaited if self.asynchronous else Limiter
        limiter = kind(url, policies, **{"namespace": self.namespace} | more)
        self._made.append(limiter)
        return limiter

    def close(self) -> None:
        for limiter in self._made:
            limiter.close()
            if self.asynchronous:
                limiter.runner.close()


class Proxy:
    """Stands between a client and a server on loopback, and does to each piece of a reply what `fate` says.

    `fate(piece)`: "pass"; "hang", it and all behind it on this connection never come; "reset", the connection ends in
    its place; "cut", half of it comes, then the end. The request has been executed by then in any case.
    """

    def __init__(self, server: Server) -> None:
        self.fate: Callable[[bytes], str] = lambda _: "pass"
        self.bytes_per_second = 0
        """How fast requests are passed on; 0: as they come."""
        self.before: Callable[[bytes], None] = lambda _: None
        """Called with each piece of a request before it is passed on."""
        self.refuses = False
        self.server = server
        self._listener = socket.create_server((HOST, 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    @property
    def address(self) -> str:
        return f"{HOST}:{self._listener.getsockname()[1]}"

    def url(self, options: str = SLOW) -> str:
        return f"{self.server.kind}://{self.address}/0?{options}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._listener)
        self.end_connections()
        for thread in self._threads:
            thread.join(5)
        for one in self._sockets:
            one.close()

    def end_connections(self) -> None:
        """Cut every connection."""
        for one in self._sockets[1:]:
            _end(one)

    def _begin(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                _reset(client)
                continue
            upstream = socket.create_connection((HOST, self.server.port))
            self._sockets += [client, upstream]
            self._begin(self._forward, client, upstream)
            self._begin(self._back, upstream, client)

    def _forward(self, client: socket.socket, upstream: socket.socket) -> None:
        with suppress(OSError):
            while piece := client.recv(65_536 if not self.bytes_per_second else 4096):
                self.before(piece)
                upstream.sendall(piece)
                if self.bytes_per_second:
                    time.sleep(len(piece) / self.bytes_per_second)
        _end(upstream)

    def _back(self, upstream: socket.socket, client: socket.socket) -> None:
        hung = False
        with suppress(OSError):
            while piece := upstream.recv(1 << 20):
                fate = "hang" if hung else self.fate(piece)
                if fate == "hang":
                    hung = True
                elif fate == "pass":
                    client.sendall(piece)
                else:
                    if fate == "cut":
                        client.sendall(piece[: len(piece) // 2])
                    else:
                        _reset(client)
                    break
        _end(client)


def _end(connection: socket.socket) -> None:
    """Shut it down, which wakes whoever waits on it; closing it would not."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)
    connection.close()


def units(limiter: Any, subject: str | int, policy: str = "p", **names: Any) -> int:
    """Units in the subject's log, by the store."""
    return sum(hit.units for hit in limiter.explain(policy, subject, **names).hits)


def stamps(limiter: Any, subject: str | int, policy: str = "p") -> list[int]:
    """The stamps in the subject's log, by the store."""
    return [hit.stamp_us for hit in limiter.explain(policy, subject).hits if hit.units]


def executed(server: Server) -> int:
    """Scripts that ran on the server, since it started."""
    found = server.info("commandstats").get("cmdstat_evalsha", "calls=0,rejected_calls=0,failed_calls=0")
    stats = dict(part.split("=") for part in found.split(","))
    return int(stats["calls"]) - int(stats["failed_calls"])


def warm(limiter: Any, policy: str = "p") -> None:
    """Connect and load the scripts, however long that takes here: a short deadline is for what comes after it."""

    def answered() -> bool:
        try:
            limiter.decide(policy, "warm")
        except StoreError:
            return False
        return True

    assert soon(answered)


def tries(seconds: float = 60) -> Iterator[None]:
    """Once more and once more, for this long: however many a busy machine needs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield


def soon(truth: Callable[[], bool], seconds: float = 60, every_s: float = 0.02) -> bool:
    """Whether it comes to be true; what costs much to find out is asked seldom."""
    deadline = time.monotonic() + seconds
    while not truth():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
