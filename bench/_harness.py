"""What every benchmark program shares: the machine in the header, the best of several rounds, one table, `--json`.

A figure is the best round: noise on a shared machine only ever adds. Ratios are between figures of one run. Every
program checks the answers of what it times, and exits 1 where one is wrong; a figure past its target is named, and is
no error.

A program's `Report` is its figures; `--json` prints it as one document, which bench/page.py reads. A figure with a
target or with peers is a row of docs/reference/benchmarks.md, the others are printed by the program alone:

    report.add("memory, gcra: one unit", 2.1, "us", at_most=2.5, peers={"limits": 4.3, "throttled-py": 3.7},
               why="judging 1.2, the floor 0.8 (lock, clock, log, Decision)")

`peers` did the same work in the same run, and their figures have the same unit. `why` says by a profile what takes the
time, and which part of it is the floor; the page shows it where the target is missed.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parents[1]))

from proof.options import Options, count

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Report", "best_by_clocks", "best_interleaved", "best_seconds", "check", "processor_clock", "shown"]


# The servers of benchmarks keep nothing on disk; that is no news at each opening of a store.
logging.getLogger("capline").setLevel(logging.ERROR)


def machine_text() -> str:
    """One line on the machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    memory_kb = int(Path("/proc/meminfo").read_text(encoding="utf-8").split(maxsplit=2)[1])
    return (
        f"{models[0] if models else platform.machine()}, {len(models)} cores, {memory_kb / 1e6:.0f} GB; "
        f"Linux {platform.release()}; {platform.python_implementation()} {platform.python_version()}"
    )


PACKAGES = {
    "capline": "capline",
    "limits": "limits",
    "throttled": "throttled-py",
    "pyrate_limiter": "pyrate-limiter",
    "redis": "redis",
    "lmdb": "lmdb",
    "slowapi": "slowapi",
    "fastapi_limiter": "fastapi-limiter",
    "flask_limiter": "Flask-Limiter",
    "django_ratelimit": "django-ratelimit",
    "starlette": "starlette",
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "grpc": "grpcio",
}
"""Modules whose package's version a report tells, where the program has them."""


@dataclass
class Figure:
    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    peers: dict[str, float] = field(default_factory=dict[str, float])
    why: str = ""


@dataclass
class Report:
    """The figures of one program."""

    title: str
    figures: list[Figure] = field(default_factory=list[Figure])
    machine: str = field(default_factory=machine_text)
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """What the machine had to do already when the program began: an idle one has about 0."""
    versions: dict[str, str] = field(default_factory=dict[str, str])

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        at_most: float | None = None,
        at_least: float | None = None,
        peers: Mapping[str, float] | None = None,
        why: str = "",
    ) -> float:
        """Keep one figure, with its target and its peers if it has them."""
        met = None
        target = ""
        if at_most is not None:
            target, met = f"at most {at_most:,g}", value <= at_most
        if at_least is not None:
            target, met = f"at least {at_least:,g}", value >= at_least
        self.figures.append(Figure(name, value, unit, target, met, dict(peers or {}), why))
        return value

    def show(self, *, as_json: bool) -> None:
        """Print the figures."""
        self.versions = {name: metadata.version(name) for module, name in PACKAGES.items() if module in sys.modules}
        if as_json:
            print(json.dumps(asdict(self)))
            return
        print(f"{self.title}\n{self.machine}\n")
        width = max(len(figure.name) for figure in self.figures)
        for figure in self.figures:
            verdict = "" if figure.met is None else "  ok" if figure.met else "  FALLS SHORT"
            beside = "; ".join(f"{name} {shown(value)}" for name, value in figure.peers.items())
            line = f"  {figure.name:<{width}}  {shown(figure.value):>12} {figure.unit:<14} {figure.target}{verdict}"
            print(f"{line}  ({beside})" if beside else line.rstrip())
            if figure.why and figure.met is False:
                print(f"  {'':<{width}}  {figure.why}")
        print()


def shown(value: float) -> str:
    """A figure as people read it."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def arguments(about: str | None, **defaults: int | str) -> Namespace:
    """The program's sizes, names and switches (False) as options, and `--json`."""
    example = [f"--{name.replace('_', '-')} {default}" for name, default in defaults.items() if default][:1]
    parser = Options(f"python bench/{Path(sys.argv[0]).name}", about or "", " ".join([*example, "--json"]))
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        else:
            parser.add_argument(
                option, type=count if isinstance(default, int) else str, default=default, help="default: %(default)s"
            )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    return parser.parse_args()


def best_seconds(work: Callable[[], object], rounds: int = 5, now_s: Callable[[], float] = time.perf_counter) -> float:
    """The shortest of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = now_s()
        work()
        best = min(best, now_s() - start)
    return best


def best_interleaved(works: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """`best_seconds` of each, taking turns: what slows the machine for a while slows all of them."""
    return best_by_clocks(works, rounds, [time.perf_counter])[0]


def best_by_clocks(
    works: Mapping[str, Callable[[], object]], rounds: int, clocks: Sequence[Callable[[], float]]
) -> list[dict[str, float]]:
    """The same by each of these clocks."""
    best = [dict.fromkeys(works, float("inf")) for _ in clocks]
    for _ in range(rounds):
        for name, work in works.items():
            began = [now_s() for now_s in clocks]
            work()
            for own, now_s, start in zip(best, clocks, began, strict=True):
                own[name] = min(own[name], now_s() - start)
    return best


def processor_clock(*pids: int, own: bool = True) -> Callable[[], float]:
    """The processor's time of these processes, and of this one, by Linux: what it counts is no other program's."""
    clocks = [(~pid << 3) | 2 for pid in pids] + [time.CLOCK_PROCESS_CPUTIME_ID] * own
    return lambda: sum(map(time.clock_gettime, clocks))


def check(truth: bool, what: str) -> None:
    """End the program where an answer is wrong: a fast wrong answer is no figure."""
    if not truth:
        print(f"WRONG ANSWER: {what}", file=sys.stderr)
        sys.exit(1)
