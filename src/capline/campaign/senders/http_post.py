"""One HTTP POST with a time limit for all of it, and what is known afterwards.

    not accepted   no connection; 408, 425, 429, 503 (try again), any other 3xx and 4xx, 501, 505 (for good)
    accepted       a 2xx with complete headers, whatever became of its body
    not known      everything else: no answer, half of one, not HTTP; 303, which may follow acceptance; 409, the key is
                   in work; 500, the receiver failed midway; 502, 504 and other 5xx, a gateway lost the receiver

The rule: "not accepted" only if the receiver cannot have the whole request, or says itself that it did nothing.

The time limit covers everything from the name look-up to the last byte of the answer. Cookies are not kept, redirects
not followed. An `http://` proxy of the environment is used (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`).

Cost: some 0.1 ms a request, a tenth of what httpx takes.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httptools

from capline.campaign.senders.protocol import DELIVERED, PERMANENT, TRANSIENT, UNKNOWN, Answer
from capline.model.errors import CampaignError
from capline.model.retry_after import retry_after
from capline.support.network import network_fault

_NOT_NOW = frozenset({408, 425, 429, 503})
_IN_DOUBT = frozenset({303, 409})
_REFUSED_5XX = frozenset({501, 505})
_OK, _REDIRECT, _SERVER_ERROR = 200, 300, 500
_LARGEST_HEAD_BYTES = 1 << 16
_CHUNKED = 8
"""A body in chunks of a byte takes six times its size; what an answer has beyond that are extensions or trailers."""
_NEXT_ADDRESS_S = 0.25
_IN_URL = "%/:@!$&'()*+,;=?"


class _Connection(asyncio.Protocol):
    """A connection, and the answer that is awaited: `done` once it has come, or will not."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.is_kept = True
        self.expect(0)

    def expect(self, longest_bytes: int) -> None:
        """An answer with a body of at most so many bytes; -1 for its head alone."""
        self.status, self.headers, self.fault = 0, dict[str, str](), ""
        self.body: bytes | None = None
        self.done = asyncio.get_running_loop().create_future()
        self._longest_bytes, self._size, self._read = longest_bytes, 0, bytearray()
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end("not HTTP")
        if self._size > _LARGEST_HEAD_BYTES + (self._longest_bytes * _CHUNKED if self.status else 0):
            self._end("not HTTP")

    def connection_lost(self, exc: Exception | None) -> None:
        is_cut = exc or self.done.done() or self.headers.keys() & {"content-length", "transfer-encoding"}
        if self.status and not is_cut:
            self.body = bytes(self._read)  # it ends with the connection
        self._end(type(exc or ConnectionResetError()).__name__)

    def on_message_begin(self) -> None:
        if self.done.done():
            raise ValueError("an answer to no request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < _OK:  # others follow
            self.headers.clear()
            return
        self.status = status
        if self._longest_bytes < 0:
            self._end()

    def on_body(self, data: bytes) -> None:
        self._read += data
        if len(self._read) > self._longest_bytes:
            self._end()

    def on_message_complete(self) -> None:
        if self.status and not self.done.done():
            self.body, self.is_kept = bytes(self._read), self._parser.should_keep_alive()
            self.done.set_result(None)

    def _end(self, fault: str = "") -> None:
        """Nothing more is read here."""
        self.is_kept = False
        if not self.done.done():
            self.fault = fault
            self.done.set_result(None)


class Endpoint(NamedTuple):
    """Where a URL leads; `name` is for the `Host` header, `basic` the header with its user and password."""

    scheme: str
    host: str
    port: int
    name: str
    target: str
    basic: str

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """`ValueError`, without the URL, if it names no host, or an invalid port."""
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        port = parts.port if parts.port is not None else 443 if parts.scheme == "https" else 80
        if not host or not port:
            raise ValueError("no host, or port 0")
        shown = f"[{host}]" if ":" in host else host
        name = shown if parts.port is None else f"{shown}:{port}"
        target = quote(parts.path or "/", _IN_URL) + (f"?{quote(parts.query, _IN_URL)}" if parts.query else "")
        user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        basic = f"Authorization: Basic {b64encode(user.encode()).decode()}\r\n" if user != ":" else ""
        return cls(parts.scheme, host, port, name, target, basic)


class Client:
    """Posts to a URL over a connection that is made when it is needed, and kept while both sides want it."""

    def __init__(
        self, there: Endpoint, proxy: Endpoint | None, context: ssl.SSLContext | None, head: bytes, timeout_s: float
    ) -> None:
        self._there, self._proxy, self._context = there, proxy, context
        self._head, self._timeout_s = head, timeout_s
        self._connection: _Connection | None = None

    async def post(self, body: bytes, headers: Mapping[str, str], longest_bytes: int) -> Answer:
        """Post the body; read at most so much of the answer. Faults of the network are answers, never raised."""
        connection, is_given, reason = None, False, ""
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = b"%b%bContent-Length: %d\r\n\r\n" % (self._head, more.encode(), len(body))
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._connected()
                connection.expect(longest_bytes)
                is_given = True
                connection.transport.write(head + body)
                await connection.done
                reason = connection.fault
        except TimeoutError:
            reason = "timeout"
        except (OSError, ValueError) as error:  # ValueError: a name that no host can have
            reason = network_fault(error)
        finally:
            if connection is None or not (connection.done.done() and connection.is_kept):
                self.close()
        if connection is None or not connection.status:
            return Answer(UNKNOWN if is_given else TRANSIENT, f"no answer ({reason})")
        code, wait_s = outcome_of(connection.status), retry_after(connection.headers) or 0.0
        return Answer(code, "" if code == DELIVERED else f"HTTP {connection.status}", wait_s, connection.body)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None

    async def _connected(self) -> _Connection:
        if self._connection is not None and self._connection.is_kept:
            return self._connection
        self.close()
        loop, first = asyncio.get_running_loop(), self._proxy or self._there
        _, made = await loop.create_connection(
            _Connection,
            first.host,
            first.port,
            ssl=None if self._proxy is not None else self._context,
            happy_eyeballs_delay=_NEXT_ADDRESS_S,
        )
        self._connection = made
        if self._proxy is not None and self._context is not None:
            name, to = self._there.host, f"{self._there.host}:{self._there.port}"
            secret = f"Proxy-{self._proxy.basic}" if self._proxy.basic else ""
            made.expect(-1)
            made.transport.write(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{secret}\r\n".encode())
            await made.done
            if outcome_of(made.status) != DELIVERED:
                raise ConnectionRefusedError
            made.is_kept = True
            made.transport = await loop.start_tls(made.transport, made, self._context, server_hostname=name)
        return made


def clients(url: str, count: int, timeout_s: float, headers: Mapping[str, str]) -> list[Client]:
    """Clients of this URL, which share the TLS context: it is expensive.

    Raises `CampaignError` where the environment names a proxy that is not `http://`.
    """
    there, proxies, proxy = Endpoint.of(url), getproxies(), None
    named = proxies.get(there.scheme) or proxies.get("all")
    if named and not proxy_bypass(there.host):
        proxy = Endpoint.of(named if "://" in named else f"http://{named}")
        if proxy.scheme != "http":
            raise CampaignError(f"the environment names a {proxy.scheme}:// proxy for {there.host}; it can be http://")
    context = ssl.create_default_context() if there.scheme == "https" else None
    is_asked = proxy is not None and context is None
    shown = {"User-Agent": "capline", "Accept": "*/*", "Accept-Encoding": "identity"}
    names = {name.lower() for name in headers}
    fields = {name: value for name, value in shown.items() if name.lower() not in names} | dict(headers)
    head = f"POST {f'http://{there.name}' if is_asked else ''}{there.target} HTTP/1.1\r\nHost: {there.name}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    head += "" if "authorization" in names else there.basic
    head += f"Proxy-{proxy.basic}" if proxy is not None and proxy.basic and is_asked else ""
    return [Client(there, proxy, context, head.encode(), timeout_s) for _ in range(count)]


def outcome_of(status: int) -> int:
    """The code of `protocol` for an HTTP status."""
    if _OK <= status < _REDIRECT:
        return DELIVERED
    if status in _NOT_NOW:
        return TRANSIENT
    refused = _REDIRECT <= status < _SERVER_ERROR or status in _REFUSED_5XX
    return PERMANENT if refused and status not in _IN_DOUBT else UNKNOWN
