"""Servers that answer with exactly the bytes that a test says, or break off: what no well-behaved server would do."""

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

__all__ = ["Wire", "http_wire", "read_request", "wire"]


@dataclass
class Wire:
    """What came in, a request an entry; `ended` is set when the test is over, for handlers that wait."""

    port: int = 0
    seen: list[bytes] = field(default_factory=list[bytes])
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/push"


@contextmanager
def wire(serve: Callable[[socket.socket, Wire], object]) -> Generator[Wire]:
    """Call `serve` with each connection, in a thread; the connection is closed when it returns."""
    listener = socket.create_server(("127.0.0.1", 0))
    far = Wire(int(listener.getsockname()[1]))
    connections: list[socket.socket] = []

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serve(connection, far)

    def accept() -> None:
        with suppress(OSError):
            while not far.ended.is_set():
                connection, _ = listener.accept()
                connections.append(connection)
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield far
    finally:
        far.ended.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def read_request(connection: socket.socket) -> bytes:
    """One HTTP request, whole; empty where the client has hung up."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    size = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < size:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def http_wire(answer: Callable[[bytes], bytes]) -> Generator[Wire]:
    """Answer each request with these bytes, and hang up."""

    def serve(connection: socket.socket, far: Wire) -> None:
        request = read_request(connection)
        if request:
            far.seen.append(request)
            connection.sendall(answer(request))

    with wire(serve) as far:
        yield far
