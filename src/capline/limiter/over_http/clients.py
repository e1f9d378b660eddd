"""Two HTTP clients of one service, one that blocks and one that is awaited: a request out, status and body back.

The rule: `NotSentError` where nothing has left this host, `LostError` where something may have. Both ask directly,
whatever proxy the environment names.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from capline.model.errors import StoreError
from capline.support.network import network_fault

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

MOST_IDLE = 100
"""Connections that are kept; as many are open as threads ask at once."""


class NotSentError(Exception):
    """Nobody was reached."""


class LostError(Exception):
    """No answer came, or only a part of one."""


class BlockingClient:
    """A pool of connections; the one that was used last is used next, unless the service has closed it."""

    def __init__(self, base: str, headers: Mapping[str, str], deadline_s: float) -> None:
        parts = urlsplit(base)
        self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path
        self._headers, self._deadline_s = headers, deadline_s
        self._context = _context(base)
        self._idle: deque[HTTPConnection] = deque()
        self._process, self._closed = os.getpid(), False

    def request(
        self, method: str, path: str, body: bytes | BinaryIO | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """The status and the body of the answer; a file is sent as it is read."""
        connection = self._connected()
        try:
            # Who refuses a body before its end closes its side, but has said why.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._path + path, body, {**self._headers, **headers})
            answer = connection.getresponse()
            content = answer.read()
        except BaseException as fault:
            connection.close()
            if isinstance(fault, (OSError, HTTPException)):
                raise LostError(network_fault(fault)) from None
            raise
        if self._closed or len(self._idle) >= MOST_IDLE:
            connection.close()
        else:
            self._idle.append(connection)
        return answer.status, content

    def _connected(self) -> HTTPConnection:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._close_idle()  # the parent has them still
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if connection.sock is not None and not _is_readable(connection.sock):
                return connection
            connection.close()
        if self._context is None:
            connection = HTTPConnection(self._host, self._port, timeout=self._deadline_s)
        else:
            connection = HTTPSConnection(self._host, self._port, timeout=self._deadline_s, context=self._context)
        try:
            connection.connect()
        except BaseException as fault:
            connection.close()
            if isinstance(fault, (OSError, UnicodeError)):  # a name that no host can have, too
                raise NotSentError(network_fault(fault)) from None
            raise
        return connection

    def close(self) -> None:
        """Close the connections that nobody uses; the others close when they are given back."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()


class AwaitedClient:
    """The pool of httpx."""

    def __init__(self, base: str, headers: Mapping[str, str], deadline_s: float) -> None:
        try:
            import httpx  # noqa: PLC0415 - an extra, which only an awaited limiter over HTTP needs
        except ModuleNotFoundError:
            raise StoreError('an AsyncLimiter over HTTP needs httpx: pip install "capline[http]"') from None
        verify = _context(base) or False  # without TLS there is nothing to verify
        self._base, self._lost = base, httpx.HTTPError
        self._client = httpx.AsyncClient(headers=headers, timeout=deadline_s, verify=verify, trust_env=False)
        self._not_sent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

    async def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        try:
            answer = await self._client.request(method, self._base + path, content=body, headers=headers)
        except self._not_sent as fault:
            raise NotSentError(network_fault(fault)) from None
        except self._lost as fault:
            raise LostError(network_fault(fault)) from None
        return answer.status_code, answer.content

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _context(base: str) -> ssl.SSLContext | None:
    if not base.startswith("https:"):
        return None
    import ssl  # noqa: PLC0415 - slow to load, and of no use without TLS

    return ssl.create_default_context()


def _is_readable(sock: Any) -> bool:
    """Whether something has come on an idle connection, which is its end: nothing was asked."""
    with DefaultSelector() as watch:
        watch.register(sock, EVENT_READ)
        return bool(watch.select(0))
