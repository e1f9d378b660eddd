"""What one `/v1/decide` costs the processor, in this process and without sockets: steady where other programs run.

The connection is fed the bytes of a request, on the memory store, and beside it a bare application that parses the same
body and answers a constant. The time that sockets take comes on top of both: a server adds some 8 us to each. Recording
decisions takes at most a twentieth of such a whole one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from _bare_app import app as bare_app
from _harness import Report, arguments, check
from _load import post
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from capline import AsyncLimiter, Policy
from capline.service.http.app import App
from capline.service.metrics.registry import Metrics
from capline.service.record.kept import Record
from capline.service.record.limiter import RecordingLimiter
from capline.service.run.listen import Listener
from capline.service.settings.values import Bounds
from capline.service.settings.values import Record as Settings
from capline.service.verbs.routes import routes

if TYPE_CHECKING:
    from collections.abc import Callable

    Connected = Callable[[], Any]

SOCKETS_US = 8
ROUND = 500
"""Requests that are timed together: the least of many short rounds is one that nothing disturbed."""


class Wire(asyncio.Transport):
    """Keeps count of what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Two addresses."""
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)}.get(name, default)

    def write(self, data: Any) -> None:
        """Look at an answer, or a part of it."""
        self.allowed += b'"allowed":true' in data

    def is_closing(self) -> bool:
        """Never."""
        return False


def connected(kind: Any, config: uvicorn.Config) -> Any:
    """A connection of this kind, of a server as it runs."""
    if not config.loaded:
        config.load()
    state = ServerState()
    state.default_headers = [(b"date", b"Mon, 23 Nov 2026 06:10:54 GMT")]
    connection = kind(config=config, server_state=state, app_state={})
    connection.connection_made(Wire())
    return connection


def bare() -> Any:
    """The bare application's, on uvicorn's own protocol."""
    config = uvicorn.Config(bare_app, http="httptools", ws="none", lifespan="off", access_log=False, log_config=None)
    return connected(HttpToolsProtocol, config)


def served(limiter: AsyncLimiter, metrics: Metrics, *, directly: bool) -> Any:
    """The service's; by ASGI where it may not answer directly. Three decisions of four are allowed."""
    app = App(routes(limiter), count=metrics.answered)
    if not directly:
        app.direct = frozenset()
    config = Listener(app, Bounds()).config
    return connected(config.http_protocol_class, config)


async def least_us(connection: Any, rounds: int, tag: str) -> float:
    """Microseconds of the processor for a request, in the best round."""
    least = float("inf")
    for number in range(rounds):
        requests = [
            post("/v1/decide", b'{"policy":"promo","subject":"%s:%d:%d"}' % (tag.encode(), number, i // 4))
            for i in range(ROUND)
        ]
        began = time.process_time()
        for request in requests:
            connection.data_received(request)
            while connection.cycle is not None and not connection.cycle.response_complete:  # noqa: ASYNC110 - one turn
                await asyncio.sleep(0)
        least = min(least, time.process_time() - began)
    return least / ROUND * 1e6


async def figures(rounds: int) -> dict[str, float]:
    """Each in turn, so that what slows the machine for a while slows all."""
    metrics = Metrics()
    limiter = AsyncLimiter("memory://", [Policy("promo", ["3/day"])], observers=[metrics.observer])
    recording = RecordingLimiter("memory://", [Policy("promo", ["3/day"])], observers=[metrics.observer])
    recording.record = Record(Settings())
    connections = {
        "bare": bare(),
        "by ASGI": served(limiter, metrics, directly=False),
        "directly": served(limiter, metrics, directly=True),
        "directly, recorded": served(recording, metrics, directly=True),
    }
    least = dict.fromkeys(connections, float("inf"))
    turns = 10
    for turn in range(turns):
        for name, connection in connections.items():
            least[name] = min(least[name], await least_us(connection, rounds // turns, f"{name}{turn}"))
    asked = rounds // turns * turns * ROUND
    for name, connection in connections.items():
        expected = asked if name == "bare" else asked // 4 * 3
        check(connection.transport.allowed == expected, f"{name}: {connection.transport.allowed} of {asked} allowed")
    recording.record.flush()
    check(len(recording.record.rows("promo")[1]) == asked, "the record lost decisions")
    recording.record.close()
    return least


def main() -> None:
    """Print the figures."""
    asked = arguments(__doc__, rounds=100)
    report = Report("One /v1/decide without sockets, memory store, metrics on")
    least = uvloop.run(figures(asked.rounds))
    for name, us in least.items():
        report.add(name, us, "us/request")
    report.add("directly, over bare", least["bare"] / least["directly"], "x", at_least=0.7)
    not_recorded, recorded = (least[name] + SOCKETS_US for name in ("directly", "directly, recorded"))
    report.add("with sockets, over recorded", not_recorded / recorded, "x", at_least=0.95)
    report.show(as_json=asked.json)


if __name__ == "__main__":
    main()
