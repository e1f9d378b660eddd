"""Listens, serves and stops: one process, one event loop, a listener for decisions and one for who watches.

The rule: SIGTERM and SIGINT end it within `STOP_WITHIN_S`. It takes no new connection from then on, finishes what it
has begun, closes the store; a second signal ends it at once.

There are no tokens: whoever reaches it may decide, and erase. So it listens on loopback alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

import uvicorn
import uvloop

from capline.limiter.aio import AsyncLimiter
from capline.model.errors import CaplineError, InvalidValueError, NoStoreError, quoted
from capline.service.api import routes
from capline.service.check import check_route
from capline.service.envoy.files import load
from capline.service.http import App
from capline.service.probes import Metrics, probes
from capline.service.spoe import spoe_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from pathlib import Path

    from capline.service.envoy.settings import EnvoySettings
    from capline.service.http import Route

__all__ = ["STOP_WITHIN_S", "Address", "Settings", "check", "parse_address", "serve"]

STOP_WITHIN_S = 10
_FINISH_WITHIN_S = STOP_WITHIN_S - 1
"""What is under way has so long; the rest is for closing the store."""

_LARGEST_PORT = 65535
_BACKLOG = 2048


class Address(NamedTuple):
    """Where to listen; port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Settings(NamedTuple):
    """What is served, and where."""

    policies: Path
    store: str
    listen: Address
    admin: Address
    on_store_error: str = "raise"
    envoy: EnvoySettings | None = None
    spoe: Address | None = None


def parse_address(text: str, option: str) -> Address:
    """`127.0.0.1:8080`, `[::1]:8080` or `localhost:8080`; raises for any other host than this one."""
    host, colon, port = text.rpartition(":")
    name = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= len(str(_LARGEST_PORT)) else -1
    if not colon or not name or not 0 <= number <= _LARGEST_PORT or (":" in name) != host.startswith("["):
        raise InvalidValueError(f"{option} {quoted(text)}: write host:port, like 127.0.0.1:8080 or [::1]:8080")
    if name == "localhost":
        name = "127.0.0.1"
    try:
        loopback = ip_address(name).is_loopback
    except ValueError:
        raise InvalidValueError(f"{option} {quoted(text)}: name an address, like 127.0.0.1:8080") from None
    if not loopback:
        raise InvalidValueError(
            f"{option} {quoted(text)}: without tokens it listens on loopback only, like 127.0.0.1:{number}; "
            "for other hosts put a proxy that knows its callers before it"
        )
    return Address(name, number)


def check(settings: Settings) -> int:
    """Look whether it could start, and make no store; the number of policies. Raises what is wrong."""
    if settings.envoy is not None:
        load(*settings.envoy.files, merge_domains=settings.envoy.merge_domains)

    async def opened() -> int:
        try:
            limiter = AsyncLimiter.from_file(
                settings.policies, settings.store, on_store_error=settings.on_store_error, create=False
            )
        except NoStoreError:
            limiter = AsyncLimiter.from_file(settings.policies, "memory://", on_store_error=settings.on_store_error)
        try:
            return len(limiter.policies)
        finally:
            await limiter.close()

    return asyncio.run(opened())


def serve(settings: Settings, started: Callable[[Address, Address, int], object]) -> None:
    """Serve until a signal ends it; `started` is told where it listens, once it does: gRPC at which port, or 0.

    Raises `CaplineError` where it cannot start: bad policies, an embedded store that is damaged, an address in use. A
    server that is away is no reason not to start: `/readyz` says so, and decisions are answered once it is back.
    """
    with (
        _listening(settings.listen, "--listen") as public,
        _listening(settings.admin, "--admin") as private,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(settings, public, private, started))


async def _serve(
    settings: Settings,
    public: socket.socket,
    private: socket.socket,
    started: Callable[[Address, Address, int], object],
) -> None:
    metrics = Metrics()
    limiter = AsyncLimiter.from_file(
        settings.policies, settings.store, on_store_error=settings.on_store_error, observers=[metrics.observer]
    )
    try:
        metrics.add(limiter)
        known = probes(limiter)
        async with _envoy(limiter, settings.envoy, metrics) as (grpc_port, json), _haproxy(limiter, settings.spoe):
            public_app = App(routes(limiter) | check_route(limiter) | json | known)
            servers = [_Listener(public_app), _Listener(App(known | metrics.routes()))]
            _end_on_signals(servers)
            async with asyncio.TaskGroup() as group:
                for server, listening in zip(servers, (public, private), strict=True):
                    group.create_task(server.serve([listening]))
                for server in servers:
                    await server.listening.wait()
                at = [Address(*listening.getsockname()[:2]) for listening in (public, private)]
                started(at[0], at[1], grpc_port)
    finally:
        await limiter.close()


@asynccontextmanager
async def _envoy(
    limiter: AsyncLimiter, settings: EnvoySettings | None, metrics: Metrics
) -> AsyncGenerator[tuple[int, dict[str, Route]]]:
    """Where Envoy is answered too: the gRPC port, and the path that takes the same as JSON."""
    if settings is None:
        yield 0, {}
        return
    from capline.service.envoy.json import json_route  # noqa: PLC0415 - an extra of its own
    from capline.service.envoy.server import envoy_server  # noqa: PLC0415 - as above

    async with envoy_server(limiter, settings, metrics.registry) as envoy:
        yield envoy.port, json_route(envoy.ratelimit)


@asynccontextmanager
async def _haproxy(limiter: AsyncLimiter, address: Address | None) -> AsyncGenerator[None]:
    if address is None:
        yield
        return
    async with spoe_server(limiter, *address):
        yield


class _Listener(uvicorn.Server):
    """A server among others in one process: signals are not its own."""

    def __init__(self, app: App) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_FINISH_WITHIN_S,
            )
        )

        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take none."""
        yield


def _end_on_signals(servers: list[_Listener]) -> None:
    def stop() -> None:
        for server in servers:
            server.force_exit = server.should_exit
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop)


@contextmanager
def _listening(address: Address, option: str) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listening = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise CaplineError(f"{option} {address}: {reason}; name another port, or 0 for any that is free") from None
    with listening:
        yield listening
