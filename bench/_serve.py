"""An ASGI app in a process of its own, for programs that measure from outside."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
import uvloop

__all__ = ["serve"]


def serve(app: Any) -> None:
    """Serve until standard input is closed; the port is the first line of the output."""
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", access_log=False, log_config=None)
    server = uvicorn.Server(config)

    async def until_closed() -> None:
        loop = asyncio.get_running_loop()

        def ended() -> None:
            server.should_exit = True
            loop.remove_reader(0)

        loop.add_reader(0, ended)
        await server.serve([listening])

    uvloop.run(until_closed())
