"""A part of `capline up`: takes the campaign's messages and shows them.

    python -m capline.up.receiver PORT

POST /message takes a message: one with a known Idempotency-Key gets the same answer and is not counted again. GET /
says how many arrived, and shows the last of them, as JSON. Each message is a line on standard error.
"""

import sys
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import msgspec

from capline.up.ports import HOST

LARGEST_BYTES = 64 << 10
DISCARDED_BYTES = 1 << 20
MOST_KEYS = 100_000
SHOWN = 20


class Received:
    """What arrived: the newest keys, and how many there were."""

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}
        self._last = deque[Any](maxlen=SHOWN)
        self._count = 0
        self._lock = threading.Lock()

    def take(self, key: str | None, message: object) -> bool:
        """Whether it is new, as one without a key always is. O(1); the oldest key goes where there are too many."""
        with self._lock:
            if key in self._keys:
                return False
            if key is not None:
                self._keys[key] = None
            if len(self._keys) > MOST_KEYS:
                del self._keys[next(iter(self._keys))]
            self._count += 1
            self._last.append(message)
            return True

    def answer(self) -> bytes:
        """How many, and the last."""
        with self._lock:
            return msgspec.json.encode({"received": self._count, "last": list(self._last)})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    @property
    def _received(self) -> Received:
        return cast("Server", self.server).received

    def do_GET(self) -> None:
        self._answer(200, self._received.answer())

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            length = -1
        if not 0 <= length <= LARGEST_BYTES:
            self.close_connection = True
            self._answer(413 if length > LARGEST_BYTES else 411, b"")
            # Whoever closes with bytes unread resets the connection, and the answer may be lost with it.
            self.rfile.read(min(max(length, 0), DISCARDED_BYTES))
            return
        try:
            message = msgspec.json.decode(self.rfile.read(length))
        except (msgspec.DecodeError, RecursionError):
            self._answer(400, b"")
            return
        if self._received.take(self.headers.get("Idempotency-Key"), message):
            sys.stderr.write(f"{msgspec.json.encode(message).decode()}\n")
        self._answer(200, b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Messages are shown, requests are not."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """The receiver on this port of loopback."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__((HOST, port), _Handler)
        self.received = Received()


def main() -> None:
    """Receive until it is ended."""
    Server(int(sys.argv[1])).serve_forever()


if __name__ == "__main__":
    main()
