"""Metrics over HTTP, for a program that serves nothing else. On loopback only, since there is no authentication.

A request's Host must name loopback too: a web page whose own name was made to lead here (DNS rebinding) reads nothing.
"""

from __future__ import annotations

from collections.abc import Container, Generator, Iterable
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from capline.model.errors import CaplineError, InvalidValueError, quoted
from capline.observe.on_demand import needs_prometheus

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry


def new_registry() -> CollectorRegistry:
    """A new registry with this process's memory and processor time."""
    with needs_prometheus():
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415 - an extra, not always there
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


@contextmanager
def served(registry: CollectorRegistry, address: str) -> Generator[str]:
    """Serve the registry at http://HOST:PORT/metrics within the block; yields the URL. Port 0 takes any free port.

    Raises `InvalidValueError` for a bad address or one that is not loopback, `CaplineError` for one that is in use.
    """
    from prometheus_client import start_http_server  # noqa: PLC0415 - as above

    host, port = _address(address)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise CaplineError(f"metrics at {address}: {error.strerror}; choose another address") from None
    server.set_app(_on_loopback(server.get_app()))
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def names_loopback(host: str, others: Container[str] = ()) -> bool:
    """Whether a Host names loopback, or one of the other names, in small letters; with a port or without."""
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = f"{name}{colon}{port}", ""
    if port and not port.isdecimal():
        return False
    name = name.lower()
    if name == "localhost" or name in others:
        return True
    try:
        address = ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return address.is_loopback and (address.version == 6) == name.startswith("[")  # noqa: PLR2004 - IPv6


def _on_loopback(app: WSGIApplication | None) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if app is not None and names_loopback(environ.get("HTTP_HOST", "")):
            return app(environ, start)
        start("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"metrics are read at a loopback address, like 127.0.0.1:9100\n"]

    return answer


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    try:
        found = ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
    except ValueError:
        found, number = None, -1
    if found is None or not colon or not 0 <= number < 1 << 16:
        raise InvalidValueError(f"metrics are read at an address like 127.0.0.1:9100, not {quoted(text)}")
    if not found.is_loopback:
        raise InvalidValueError(f"metrics know no tokens and are read on loopback only, like 127.0.0.1:{number}")
    return str(found), number
