"""A receiver that takes each key once: prints the messages of `webhook.yaml` as they come. Ctrl-C ends it."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

taken: set[str] = set()


class Receiver(BaseHTTPRequestHandler):
    """Answers 200 to a message, and says whether it is a new one."""

    def do_POST(self) -> None:
        """Take a message."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        print("again:" if key in taken else "taken:", key, message["segment"])
        taken.add(key)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing but the messages is printed."""


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", 8008), Receiver).serve_forever()
