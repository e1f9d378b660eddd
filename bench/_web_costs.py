"""The figures of bench/web.py, in a venv that has the packages which capline is compared with."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent

from _harness import Report, best_interleaved, check
from _load import run_load
from _web_apps import ADDRESSES, ASGI_APPS, WSGI_APPS, address, asgi, wsgi
from web import options as web_options

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

MOST_PERCENT = 15


def main() -> None:
    """Print both tables."""
    options = web_options()
    if options.short:
        options.requests, options.rounds = 1000, 1
    report = Report("One limit on every request")
    _behind_a_server(report, options.requests, options.rounds, options.connections)
    _without_a_server(report, options.requests, options.rounds, options.server_us)
    report.show(as_json=options.json)


def _behind_a_server(report: Report, requests: int, rounds: int, connections: int) -> None:
    head = "GET / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: "
    asked = [f"{head}{address(number)}\r\n\r\n".encode() for number in range(requests)]
    us: dict[str, float] = dict.fromkeys(ASGI_APPS, float("inf"))
    with ExitStack() as stack:
        served = {name: stack.enter_context(_served(name)) for name in ASGI_APPS}
        for port, pid in served.values():
            run_load(port, pid, connections, asked[:ADDRESSES], lambda body: b"home" in body)
        for _ in range(rounds):
            for name, (port, pid) in served.items():
                load = run_load(port, pid, connections, asked, lambda body: b"home" in body)
                us[name] = min(us[name], load.processor_us)
    bare = 0.0
    for name, taken in us.items():
        report.add(f"uvicorn, {name}", taken, "us of processor a request")
        if name.endswith("bare"):
            bare = taken
        else:
            _share(report, f"uvicorn, {name}", bare, taken, MOST_PERCENT if name == "Starlette, capline" else None)


@contextmanager
def _served(name: str) -> Generator[tuple[int, int]]:
    """The port of this app in a server of its own, and its process."""
    command = [sys.executable, str(HERE / "_web_apps.py"), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        assert process.stdout is not None
        assert process.stdin is not None
        yield int(process.stdout.readline()), process.pid
        process.stdin.close()
        check(process.wait() == 0, f"{name}: its server did not end well")


def _without_a_server(report: Report, requests: int, rounds: int, server_us: int) -> None:
    loop = asyncio.new_event_loop()
    asks = {name: asgi(made(), loop) for name, made in ASGI_APPS.items()}
    asks |= {name: wsgi(made(), where) for name, (made, where) in WSGI_APPS.items()}
    for name, ask in asks.items():
        # Every client has come before, as most have.
        check(ask(ADDRESSES) == ADDRESSES, f"{name}: not every request was answered 200")
    seconds = best_interleaved({name: _of(ask, requests) for name, ask in asks.items()}, rounds)
    loop.close()
    bare = 0.0
    for name, taken in seconds.items():
        us = taken / requests * 1e6
        report.add(name, us, "us a request")
        if name.endswith("bare"):
            bare = us
        else:
            report.add(f"{name}: over bare", us - bare, "us a request")
            _share(report, name, bare + server_us, us + server_us, None)


def _share(report: Report, name: str, bare: float, limited: float, at_most: float | None) -> None:
    report.add(f"{name}: fewer requests/s", (1 - bare / limited) * 100, "%", at_most=at_most)


def _of(ask: Callable[[int], int], requests: int) -> Callable[[], object]:
    return lambda: ask(requests)


if __name__ == "__main__":
    main()
