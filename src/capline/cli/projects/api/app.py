"""An API that refuses a client's fourth request in ten seconds, and says when the next one fits.

It runs on Python's own server. `capline.web` has the same rules for FastAPI, Flask, Django and any ASGI app.
"""

import sys
from collections.abc import Iterable
from wsgiref.simple_server import make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from capline import Limiter, Policy
from capline.web import Rule, key
from capline.web.wsgi import CaplineMiddleware


def hello(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Your application."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello\n"]


limiter = Limiter(
    "lmdb://store",  # shared by all processes of this machine; redis://… for many hosts
    [
        Policy("ip", ["3/10s", "100/hour"]),  # both must hold
        Policy("user", ["1000/day"]),
    ],
)
rules = [
    Rule("ip", key.ip()),
    Rule("user", key.header("X-User")),  # only for requests that have the header
]
app = CaplineMiddleware(hello, limiter, rules, exempt=["/healthz"])

if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    with make_server("127.0.0.1", port, app) as server:
        print(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        server.serve_forever()
