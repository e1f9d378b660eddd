"""One listener: uvicorn's server over connections of our own, and its socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from capline.model.errors import CaplineError
from capline.service.run.connection import Connection

if TYPE_CHECKING:
    import ssl

    from capline.service.http.app import App
    from capline.service.settings.values import Address, Bounds

_BACKLOG = 2048


def bound(address: Address, option: str) -> socket.socket:
    """A socket that listens there, to be shared by workers; raises a `CaplineError` that names the option."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise CaplineError(f"{option} {address}: {reason}; name another port, or 0 for any that is free") from None


def grace_s(bounds: Bounds) -> int:
    """How long requests under way may take once the service stops: it needs the rest to close its parts."""
    return max(1, int(bounds.stop_within) - 1)


class Listener(uvicorn.Server):
    """A server among others in one process: signals are not its own.

    `waits` says that the store is on a server, so that handlers wait for it.
    """

    def __init__(self, app: App, bounds: Bounds, context: ssl.SSLContext | None = None, *, waits: bool = False) -> None:
        fields: dict[str, Any] = {"bounds": bounds, "service": app, "waits": waits, "heads": {}}
        protocol = type("OwnConnection", (Connection,), fields)
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=grace_s(bounds),
        )
        config.load()
        config.ssl = context
        super().__init__(config)
        self.listening = asyncio.Event()
        self._bounds = bounds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.listening.set()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; once a second it ends slow connections."""
        if counter % 10 == 0:
            connections: set[Any] = self.server_state.connections
            for connection in list(connections):
                connection.end_if_slow(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take none."""
        yield
