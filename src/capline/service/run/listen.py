"""One listener: uvicorn's server over connections of our own; its sockets and its TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from capline.model.errors import CaplineError, InvalidValueError
from capline.service.run.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Generator

    from capline.service.http import App
    from capline.service.run.settings import Address, Bounds, Tls

__all__ = ["Listener", "bound", "tls_context"]

_BACKLOG = 2048


def bound(address: Address, option: str) -> socket.socket:
    """A socket that listens there, to be shared by workers; raises a `CaplineError` that names the option."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise CaplineError(f"{option} {address}: {reason}; name another port, or 0 for any that is free") from None


def tls_context(tls: Tls) -> ssl.SSLContext:
    """TLS 1.2 or newer by these files; raises `InvalidValueError` that names the one that is wrong."""

    def no_password() -> str:
        raise InvalidValueError(
            f"{tls.key}: the key is encrypted; store one that is not, readable by the service alone"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (tls.certificate, tls.key, tls.client_ca):
        if path is not None and not os.access(path, os.R_OK):
            raise InvalidValueError(f"{path}: cannot be read; tls names PEM files")
    try:
        context.load_cert_chain(tls.certificate, tls.key, no_password)
    except ssl.SSLError as error:
        raise InvalidValueError(
            f"{tls.certificate} with {tls.key}: no PEM certificate with its key ({error})"
        ) from None
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except ssl.SSLError as error:
            raise InvalidValueError(f"{tls.client_ca}: no PEM certificates ({error})") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Listener(uvicorn.Server):
    """A server among others in one process: signals are not its own.

    `waits` says that handlers wait for a server, rather than answer as they are asked.
    """

    def __init__(self, app: App, bounds: Bounds, context: ssl.SSLContext | None = None, *, waits: bool = False) -> None:
        protocol = type("OwnConnection", (Connection,), {"bounds": bounds, "service": app, "waits": waits})
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=max(1, int(bounds.stop_within) - 1),
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
        """Ten times a second; once a second those that are slow are ended."""
        if counter % 10 == 0:
            connections: set[Any] = self.server_state.connections
            for connection in list(connections):
                connection.end_if_slow(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take none."""
        yield
