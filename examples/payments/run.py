"""Orders charged through several strict providers: worker processes that share their limits, and hear no 429.

    python examples/payments/run.py                                     all on this machine, no server needed
    python examples/payments/run.py --store redis://localhost --workers 4
    python examples/payments/run.py --providers my.yaml --orders shop.sqlite

Fills the table of orders with what the providers allow in `--seconds`, starts the workers, shows how far they are, and
ends when every order is charged. Ctrl-C ends it cleanly, and the same `--orders` goes on where it ended. A worker that
dies is replaced. Exits 1 where a provider answered 429.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from orders import Orders
from providers import Provider, ProvidersError, load

from capline import CaplineError, Limiter, StoreError

HERE = Path(__file__).parent
STOP_SECONDS = 10
LEAST_SECONDS, MOST_WORKERS = 0.1, 64


class Workers:
    """Processes that charge. They end when their standard input does, so also where this process is killed."""

    def __init__(self, number: int, options: list[str], running: ExitStack) -> None:
        self._options = options
        self._processes = [self._start() for _ in range(number)]
        running.callback(self.stop)
        for process in self._processes:
            _ready(process)

    def pids(self) -> list[int]:
        """Those that run now."""
        return [process.pid for process in self._processes]

    def replace_dead(self) -> int:
        """Start another for each that has died; how many those were."""
        dead = [number for number, process in enumerate(self._processes) if process.poll() is not None]
        for number in dead:
            self._processes[number] = self._start()
            _ready(self._processes[number])
        return len(dead)

    def stop(self) -> None:
        """Let them finish what they hold."""
        for process in self._processes:
            if process.stdin:
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        return _start("worker.py", *self._options)


def run(asked: argparse.Namespace, running: ExitStack) -> dict[str, Any]:
    """What the providers saw, and what became of the orders."""
    given: list[Provider] = load(asked.providers)
    addresses = _play([one for one in given if one.url is None], running)
    providers = [replace(one, url=one.url or addresses[one.name]) for one in given]
    directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="capline-payments-")))
    store = asked.store or f"lmdb://{directory}/store"
    table: Path = asked.orders or directory / "orders.sqlite"
    limiter = running.enter_context(Limiter(store, [one.policy for one in providers]))
    orders = running.enter_context(Orders(table))
    if not _open(orders.states(), providers):
        orders.add((one.name, 999) for one in providers for _ in range(_worth(one, asked.seconds)))
    described = json.dumps([asdict(one) for one in providers])
    options = ["--store", store, "--orders", str(table), "--providers", described, "--lease", str(asked.lease)]
    workers = Workers(asked.workers, options, running)
    interrupted = _watch(orders, limiter, workers, asked, providers)
    workers.stop()
    seen = {one.name: _stats(one) for one in providers if one.name in addresses}
    return {"interrupted": interrupted, "orders": orders.states(), "providers": seen}


def _watch(
    orders: Orders, limiter: Limiter, workers: Workers, asked: argparse.Namespace, providers: list[Provider]
) -> bool:
    """Show how far it is, until all is done; True where that was not awaited."""
    began = time.monotonic()
    try:
        while True:
            states = orders.states()
            if not _open(states, providers):
                return False
            if died := workers.replace_dead():
                _tell(asked, f"{died} of the workers died; replaced")
            told = "".join(f"  {one.name} {_done(states, one)}" for one in providers)
            _tell(asked, f"{time.monotonic() - began:5.1f} s{told}{_outage(limiter, providers[0])}")
            time.sleep(asked.every)
    except KeyboardInterrupt:
        _tell(asked, "stopping: what is under way is finished")
        return True


def _done(states: dict[str, dict[str, int]], provider: Provider) -> str:
    of_one = states.get(provider.name, {})
    return f"{of_one.get('charged', 0)}/{sum(of_one.values())}"


def _open(states: dict[str, dict[str, int]], providers: list[Provider]) -> int:
    """How many orders of these providers are not charged yet."""
    mine = [states.get(one.name, {}) for one in providers]
    return sum(of_one.get("new", 0) + of_one.get("charging", 0) for of_one in mine)


def _outage(limiter: Limiter, provider: Provider) -> str:
    try:
        limiter.peek(provider.name, provider.name)
    except StoreError:
        return "  the store does not answer: nobody calls until it does"
    return ""


def _worth(provider: Provider, seconds: float) -> int:
    """How many orders this provider can charge in so many seconds."""
    return max(1, int(provider.strict.quota * seconds * 1e6 / provider.strict.window_us))


def _play(providers: list[Provider], running: ExitStack) -> dict[str, str]:
    """Start these on this machine; their addresses."""
    if not providers:
        return {}
    limits = [f"{one.name}={one.strict.quota}/{one.strict.window_us / 1e6}" for one in providers]
    process = _start("provider.py", *limits)
    running.callback(process.wait)
    running.callback(lambda: process.stdin and process.stdin.close())
    return json.loads(_line(process))


def _start(program: str, *options: str) -> subprocess.Popen[bytes]:
    """Start one of the programs beside this one, in a session of its own: Ctrl-C is for this one alone."""
    command = [sys.executable, str(HERE / program), *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own


def _line(process: subprocess.Popen[bytes]) -> str:
    """The next line that it prints; empty where it ended."""
    return process.stdout.readline().decode().strip() if process.stdout else ""


def _ready(process: subprocess.Popen[bytes]) -> None:
    """Wait until it charges. Who is killed before that is replaced as any other; who gives up has said why."""
    if _line(process) != "ready" and process.wait() >= 0:
        sys.exit("a worker ended before its first order")


def _stats(provider: Provider) -> dict[str, Any]:
    with build_opener(ProxyHandler({})).open(f"{provider.url}/stats", timeout=10) as answer:
        return json.load(answer)


def _tell(asked: argparse.Namespace, line: str) -> None:
    if not asked.json:
        print(line, flush=True)


def main(words: list[str] | None = None) -> int:
    """Run it; see the module's text."""
    parser = argparse.ArgumentParser(
        "run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--providers", type=Path, default=HERE / "providers.yaml", help="what each allows")
    parser.add_argument("--store", help="lmdb:///path, redis://…, redis+cluster://…; default: lmdb, for this run")
    parser.add_argument("--orders", type=Path, help="an SQLite file that stays; default: one for this run")
    parser.add_argument("--seconds", type=float, default=10, help="how many orders: what is allowed in so long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lease", type=float, default=60, help="seconds that an order is one worker's at most")
    parser.add_argument("--every", type=float, default=1, help="seconds between two lines of progress")
    parser.add_argument("--json", action="store_true", help="the result as JSON, and no progress")
    asked = parser.parse_args(words)
    if not asked.seconds >= LEAST_SECONDS or not asked.lease > 0 or not asked.every > 0:
        parser.error(f"--seconds is at least {LEAST_SECONDS}, --lease and --every more than 0")
    if not 1 <= asked.workers <= MOST_WORKERS:
        parser.error(f"--workers is 1 to {MOST_WORKERS}")
    try:
        with ExitStack() as running:
            seen = run(asked, running)
    except (ProvidersError, CaplineError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if asked.json:
        print(json.dumps(seen))
    else:
        _print(seen)
    return 1 if any(one["refused"] for one in seen["providers"].values()) else 0


def _print(seen: dict[str, Any]) -> None:
    print(f"\n{'provider':<12}{'charged':>12}{'failed':>8}{'of 429':>8}{'of its rate':>13}   tightest window")
    for name, states in seen["orders"].items():
        told = f"{name:<12}{states.get('charged', 0):>5} of {sum(states.values()):<4}{states.get('failed', 0):>7}"
        if one := seen["providers"].get(name):
            tightest = "not full yet" if one["tightest"] is None else f"{one['tightest']} s, of {one['window']} s"
            told += f"{one['refused']:>8}{one['used']:>13.1%}   {tightest}"
        print(told)


if __name__ == "__main__":
    sys.exit(main())
