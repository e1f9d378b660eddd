"""One run: four processes ask, faults happen, and in the end the servers say what they hold."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from proof.chaos.callers import KEEP_US, POLICY, WINDOW_US, Place
from proof.chaos.faults import FAULTS, Scene
from proof.chaos.load import HOT, READY, Load
from proof.chaos.named import caller
from proof.chaos.tally import Figures, tally
from proof.checker import check, read
from proof.record import Recorder, wall_us

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.kit.servers import Cluster

    from proof.chaos.callers import Content

__all__ = ["Outcome", "Plan", "run"]

SLOTS = 16_384
START_S = 0.3
"""From when all processes are ready to the first attempt."""
GRACE_S = 90
MORTAL = ("setpriv", "--pdeathsig", "KILL", "--")
"""The kernel kills a load process when this one ends, for whatever reason."""
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Plan:
    """What a run is. `faults`: names of proof.chaos.faults; one is drawn every `every_s`, each before any twice."""

    name: str
    limiter: str
    faults: tuple[str, ...]
    seconds: float
    every_s: float
    seed: str = "capline"
    processes: int = 4
    rate: float = 100
    """Attempts a second of each process."""
    quota: int = 30
    """Units in ten seconds. Hot subjects ask for several times as many."""
    deadline_s: float = 1.0
    """The deadline of each call."""
    lossless: bool = False
    """Whether these faults must lose nothing: then proof.checker checks every promise."""


@dataclass
class Outcome:
    """What came of it."""

    plan: Plan
    figures: Figures
    done: list[str] = field(default_factory=list[str])
    """The faults, in order."""
    promises: str = ""
    """The faults that proof.checker found; empty where it found none, or was not asked."""
    lines: list[str] = field(default_factory=list[str], repr=False)
    """The records."""


def run(plan: Plan, cluster: Cluster, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run it on a cluster that is well, under a name of its own; the cluster is well again afterwards."""
    place = _place(cluster, f"c{secrets.token_hex(5)}", plan)
    kind = caller(plan.limiter)
    with (
        tempfile.TemporaryDirectory(prefix="capline-chaos-") as name,
        _load(plan, place, Path(name)) as (workers, begin_us),
    ):
        hot = tuple({kind.slot(place, f"hot {number}") for number in range(HOT)})
        scene = Scene(cluster, random.Random(plan.seed), tuple(sorted(hot)))
        done = _faults(plan, scene, begin_us, say)
        for worker in workers:
            _, errors = worker.communicate(timeout=max(0.0, (begin_us - wall_us()) / 1e6 + plan.seconds) + GRACE_S)
            if worker.returncode:
                raise RuntimeError(
                    f"{plan.name}: a process of the load ended with {worker.returncode}:\n{errors[-2000:]}"
                )
        lines = [
            line for path in sorted(Path(name).iterdir()) for line in path.read_text(encoding="utf-8").splitlines()
        ]
    cluster.wait()
    say(f"{plan.name}: {len(lines)} records; asking the servers what they hold")
    subjects = sorted({subject for line in lines if (subject := _subject(line))})
    content = kind.content(_place(cluster, place.namespace, plan), subjects)
    figures = tally(
        lines,
        content,
        (plan.quota, WINDOW_US),
        int(plan.deadline_s * 1e6),
        lambda subject: kind.slot(place, subject) * cluster.first_primaries // SLOTS,
        cluster.first_primaries,
    )
    outcome = Outcome(plan, figures, done, lines=lines)
    if plan.lossless and content is not None and plan.limiter.startswith("capline"):
        outcome.promises = _promises(plan, lines, content)
    return outcome


@contextmanager
def _load(plan: Plan, place: Place, directory: Path) -> Generator[tuple[list[subprocess.Popen[str]], int]]:
    workers: list[subprocess.Popen[str]] = []
    try:
        for number in range(plan.processes):
            load = Load(
                plan.limiter,
                place.addresses,
                place.namespace,
                place.quota,
                place.deadline_s,
                plan.seed,
                number,
                plan.rate,
                plan.seconds,
                str(directory / str(number)),
            )
            workers.append(
                subprocess.Popen(
                    [*MORTAL, sys.executable, "-m", "proof.chaos.load", load.words()],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # control-C is for the one who started them
                )
            )
        for worker in workers:
            if worker.stdout is None or worker.stdout.readline().strip() != READY:
                raise RuntimeError(
                    f"{plan.name}: a process of the load did not start:\n{worker.communicate()[1][-2000:]}"
                )
        begin_us = wall_us() + int(START_S * 1e6)
        for worker in workers:
            if worker.stdin is not None:
                worker.stdin.write(f"{begin_us}\n")
                worker.stdin.flush()
        yield workers, begin_us
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _faults(plan: Plan, scene: Scene, begin_us: int, say: Callable[[str], None]) -> list[str]:
    """A fault every `every_s` until the load ends; one that takes longer skips the next ones."""
    done: list[str] = []
    left: list[str] = []
    turn = 1
    while plan.faults and turn * plan.every_s < plan.seconds:
        wait_s = (begin_us - wall_us()) / 1e6 + (turn - 0.5) * plan.every_s
        if wait_s >= 0:
            time.sleep(wait_s)
            if not left:
                left = scene.draw.sample(plan.faults, len(plan.faults))
            name = left.pop()
            begun = time.monotonic()
            FAULTS[name](scene)
            done.append(name)
            say(f"{plan.name}: {turn * plan.every_s:g} of {plan.seconds:g} s; {name}, {time.monotonic() - begun:.1f} s")
        turn += 1
    return done


def _place(cluster: Cluster, namespace: str, plan: Plan) -> Place:
    """The addresses of the servers that are primaries now."""
    return Place(",".join(server.address for server in cluster.primaries), namespace, plan.quota, plan.deadline_s)


def _subject(line: str) -> str:
    """The subject of a record, read without parsing all of it."""
    _, found, rest = line.partition('"subject":"')
    return rest.partition('"')[0] if found else ""


def _promises(plan: Plan, lines: list[str], content: Content) -> str:
    """The faults that proof.checker finds."""
    head = Recorder()
    head.policy(POLICY, [(plan.quota, WINDOW_US)], retention_us=KEEP_US)
    for subject, hits in content.items():
        head.final(POLICY, subject)(hits, None)
    report = check(read([*head.lines, *lines]))
    return "" if report else report.text()
