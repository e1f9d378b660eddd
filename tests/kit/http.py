"""A provider to call, a real HTTP server on loopback that answers as it is told; one way to call it by each client."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import aiohttp
import httpx
import requests

from capline import AsyncLimiter, Limiter, Policy
from capline.middleware.aiohttp import LimitedMiddleware
from capline.middleware.httpx import AsyncLimitedTransport, LimitedTransport
from capline.middleware.requests import LimitedAdapter

CLIENTS = ("httpx", "httpx-async", "requests", "aiohttp")


class Provider:
    """Answers 200, or what `answers` has next: a status and headers.

    `seen` is each request's method, path and body; `meanwhile` is called while one is being served.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.seen: list[tuple[str, str, bytes]] = []
        self.meanwhile: Callable[[], object] = lambda: None
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Transfer-Encoding") == "chunked":
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                provider.seen.append((self.command, self.path, body))
                provider.meanwhile()
                status, headers = provider.answers.pop(0) if provider.answers else (200, {})
                if "Date" in headers:
                    self.send_response_only(status)
                else:
                    self.send_response(status)
                for name, value in {"Content-Length": "2", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"ok")

            do_GET = do_POST = do_PUT = answer  # noqa: N815 - the names are http.server's

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Caller:
    """A limited client of one kind, on a limiter of its own: as if on a host of its own."""

    def __init__(self, kind: str, store: str, policy: Policy, **options: Any) -> None:
        self.runner: asyncio.Runner | None = None
        self.client: Any
        self.limiter: Any
        if kind == "httpx-async":
            self.runner = asyncio.Runner()
            self.limiter = self.runner.run(_made(store, policy))
            transport = AsyncLimitedTransport(self.limiter, policy.name, **options)
            self.client = httpx.AsyncClient(transport=transport)
            return
        if kind == "aiohttp":
            self.runner = asyncio.Runner()
            self.limiter = self.runner.run(_made(store, policy))
            self.client = self.runner.run(_session(LimitedMiddleware(self.limiter, policy.name, **options)))
            return
        self.limiter = Limiter(store, policies=[policy])
        if kind == "httpx":
            self.client = httpx.Client(transport=LimitedTransport(self.limiter, policy.name, **options))
        else:
            self.client = requests.Session()
            self.client.trust_env = False
            self.client.mount("http://", LimitedAdapter(self.limiter, policy.name, **options))

    def __call__(self, method: str, url: str, body: bytes | Iterator[bytes] | None = None, **options: Any) -> int:
        """The status of the answer, the body of which must be whole."""
        named = "data" if isinstance(self.client, requests.Session | aiohttp.ClientSession) else "content"
        if self.runner is not None and body is not None and not isinstance(body, bytes):
            body = _trickle(body)  # pyright: ignore[reportAssignmentType] - what this client takes for a stream
        answer = self.run(self.client.request(method, url, **{named: body}, **options))
        if isinstance(answer, aiohttp.ClientResponse):
            assert self.run(answer.read()) == b"ok"
            return answer.status
        assert answer.content == b"ok"
        return answer.status_code

    def run(self, answer: Any) -> Any:
        return answer if self.runner is None else self.runner.run(answer)

    def close(self) -> None:
        if self.runner is None:
            self.client.close()
            self.limiter.close()
            return
        self.runner.run(self.client.close() if isinstance(self.client, aiohttp.ClientSession) else self.client.aclose())
        self.runner.run(self.limiter.close())
        self.runner.close()


async def _made(store: str, policy: Policy) -> AsyncLimiter:
    return AsyncLimiter(store, policies=[policy])


async def _session(middleware: LimitedMiddleware) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(middlewares=[middleware])


async def _trickle(pieces: Iterator[bytes]) -> Any:
    for piece in pieces:
        yield piece
