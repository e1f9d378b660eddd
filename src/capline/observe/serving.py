"""Metrics over HTTP, for a program that serves nothing else. Who reaches the address may read them: loopback only."""

from __future__ import annotations

from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from capline.model.errors import CaplineError, InvalidValueError, quoted

if TYPE_CHECKING:
    from collections.abc import Generator

    from prometheus_client import CollectorRegistry

__all__ = ["new_registry", "served"]


def new_registry() -> CollectorRegistry:
    """A registry that has this process's memory and processor time."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415 - an extra, not always there
    except ImportError:
        raise CaplineError('metrics need prometheus-client: pip install "capline[prometheus]"') from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


@contextmanager
def served(registry: CollectorRegistry, address: str) -> Generator[str]:
    """The registry at http://HOST:PORT/metrics within the block; gives the URL. Port 0 is any that is free.

    Raises for an address that is none, is not of loopback, or is in use.
    """
    from prometheus_client import start_http_server  # noqa: PLC0415 - as above

    host, port = _address(address)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise CaplineError(f"metrics at {address}: {error.strerror}; choose another address") from None
    try:
        yield f"http://{_shown(host)}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
