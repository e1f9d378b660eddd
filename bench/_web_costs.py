"""The figures of bench/web.py, in a venv that has the packages which capline is compared with."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

HERE = Path(__file__).resolve().parent

from _harness import Report, best_by_clocks, check
from _load import run_load
from _web_apps import ADDRESSES, ASGI_APPS, WSGI_APPS, address, asgi, wsgi
from web import options as web_options

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

MOST_PERCENT, MOST_US = {"Starlette": 15}, {"FastAPI": 25}
"""By framework: requests fewer behind uvicorn, and microseconds over the bare app."""
WHY = {
    "Starlette": "of 8.7 us: the decision 1.7 and its headers 2.2 are the floor; the request's way in 2.5, out 2.3",
    "FastAPI": "of 23 to 30 us FastAPI's own call of an empty dependency is 8, the decision and its headers 4",
}
"""What takes the time, by process time in one process; between a framework's own work code runs colder."""


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
    for name, taken in us.items():
        report.add(f"uvicorn, {name}", taken, "us of processor a request")
    fewer = _by_framework(us, lambda bare, limited: (1 - bare / limited) * 100)
    for framework, found in fewer.items():
        title = f"{framework} behind uvicorn: fewer requests/s"
        mine, most = found.pop("capline"), MOST_PERCENT.get(framework)
        report.add(title, mine, "%", at_most=most, peers=found, why=WHY.get(framework, "") if most else "")


@contextmanager
def _served(name: str) -> Generator[tuple[int, int]]:
    """The port of this app in a server of its own, and its process."""
    command = [sys.executable, str(HERE / "_web_apps.py"), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        out, into = cast("IO[str]", process.stdout), cast("IO[str]", process.stdin)
        yield int(out.readline()), process.pid
        into.close()
        check(process.wait() == 0, f"{name}: its server did not end well")


def _without_a_server(report: Report, requests: int, rounds: int, server_us: int) -> None:
    loop = asyncio.new_event_loop()
    asks = {name: asgi(made(), loop) for name, made in ASGI_APPS.items()}
    asks |= {name: wsgi(made(), where) for name, (made, where) in WSGI_APPS.items()}
    for name, ask in asks.items():
        # Every client has come before, as most have.
        check(ask(ADDRESSES) == ADDRESSES, f"{name}: not every request was answered 200")
    # Many short rounds, by the processor's time: of a busy machine the least disturbed counts.
    works = {name: _of(ask, ADDRESSES) for name, ask in asks.items()}
    (seconds,) = best_by_clocks(works, max(1, rounds * requests // ADDRESSES), [time.process_time])
    loop.close()
    us = {name: taken / ADDRESSES * 1e6 for name, taken in seconds.items()}
    for name, taken in us.items():
        report.add(name, taken, "us a request")
    for framework, found in _by_framework(us, lambda bare, limited: limited - bare).items():
        title, mine, most = f"{framework}: over the bare app", found.pop("capline"), MOST_US.get(framework)
        report.add(title, mine, "us", at_most=most, peers=found, why=WHY.get(framework, "") if most else "")
    for framework, found in _by_framework(us, lambda bare, limited: (limited - bare) / (limited + server_us)).items():
        for party, share in found.items():
            report.add(f"{framework}, {party}: fewer requests/s behind a server", share * 100, "%")


def _by_framework(us: dict[str, float], of: Callable[[float, float], float]) -> dict[str, dict[str, float]]:
    """For each framework, what each party costs, by the times of its bare app and of the limited one."""
    found: dict[str, dict[str, float]] = {}
    for name, limited in us.items():
        framework, _, party = name.partition(", ")
        if party != "bare":
            found.setdefault(framework, {})[party] = of(us[f"{framework}, bare"], limited)
    return found


def _of(ask: Callable[[int], int], requests: int) -> Callable[[], object]:
    return lambda: ask(requests)


if __name__ == "__main__":
    main()
