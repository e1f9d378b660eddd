"""One listener: uvicorn's server and its HTTP/1.1 protocol, with bounds that these do not have.

    a head that is larger than `header_bytes`, or does not come within `header_within`     431, or the end
    more connections than `connections`                                                    closed at once

The rule: a client that sends nothing, or little by little, holds a connection for a stated time and no more. Heads are
looked at once a second for all connections, so that a request costs nothing for it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from capline.model.errors import CaplineError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Generator

    from capline.service.http import App
    from capline.service.run.settings import Address, Bounds, Tls

__all__ = ["Listener", "bound", "tls_context"]

_BACKLOG = 2048
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


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


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 that counts the bytes of a head, and knows since when it waits for one."""

    bounds: Bounds
    head_since: float | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A client came."""
        super().connection_made(transport)
        self.head_since = self.loop.time()
        if len(self.connections) > self.bounds.connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self.head_since is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.head_since is not None and self._head_bytes > self.bounds.header_bytes:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        if self.head_since is None:
            self.head_since = self.loop.time()

    def on_headers_complete(self) -> None:
        """A head has ended."""
        self.head_since, self._head_bytes = None, 0
        super().on_headers_complete()

    def end_if_slow(self, before: float) -> None:
        """End the connection where its head began before this instant."""
        if self.head_since is not None and self.head_since < before:
            self.transport.abort()


class Listener(uvicorn.Server):
    """A server among others in one process: signals are not its own."""

    def __init__(self, app: App, bounds: Bounds, context: ssl.SSLContext | None = None) -> None:
        protocol = type("BoundedProtocol", (Protocol,), {"bounds": bounds})
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
            before = asyncio.get_running_loop().time() - self._bounds.header_within
            connections: set[Any] = self.server_state.connections
            for connection in list(connections):
                connection.end_if_slow(before)
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take none."""
        yield
