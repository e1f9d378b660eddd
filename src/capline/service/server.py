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
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn
import uvloop

from capline.limiter.aio import AsyncLimiter
from capline.model.errors import CaplineError, InvalidValueError, NoStoreError, quoted
from capline.service.api import routes
from capline.service.http import App
from capline.service.probes import Metrics, probes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

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

    policies: Path | None
    store: str
    listen: Address
    admin: Address
    on_store_error: str = "raise"
    config_store: str | None = None
    """A configuration store: its policies where `policies` is None, and its overrides."""


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

    async def opened() -> int:
        try:
            limiter = _limiter(settings, settings.store, create=False)
        except NoStoreError:
            limiter = _limiter(settings, "memory://")
        try:
            return len(limiter.policies)
        finally:
            await limiter.close()

    return asyncio.run(opened())


def serve(settings: Settings, started: Callable[[Address, Address], object]) -> None:
    """Serve until a signal ends it; `started` is told where it listens, once it does.

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
    settings: Settings, public: socket.socket, private: socket.socket, started: Callable[[Address, Address], object]
) -> None:
    metrics = Metrics()
    limiter = _limiter(settings, settings.store, observers=[metrics.observer])
    try:
        metrics.add(limiter)
        known = probes(limiter)
        servers = [_Listener(App(routes(limiter) | known)), _Listener(App(known | metrics.routes()))]
        _end_on_signals(servers)
        async with asyncio.TaskGroup() as group:
            for server, listening in zip(servers, (public, private), strict=True):
                group.create_task(server.serve([listening]))
            for server in servers:
                await server.listening.wait()
            started(*(Address(*listening.getsockname()[:2]) for listening in (public, private)))
    finally:
        await limiter.close()


def _limiter(settings: Settings, store: str, **options: Any) -> AsyncLimiter:
    """The limiter of the policy file, or of the configuration store."""
    options["on_store_error"] = settings.on_store_error
    if settings.policies is None and settings.config_store is not None:
        return AsyncLimiter.from_config(settings.config_store, store, **options)
    return AsyncLimiter.from_file(
        settings.policies or Path("policies.yaml"), store, config=settings.config_store, **options
    )


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
