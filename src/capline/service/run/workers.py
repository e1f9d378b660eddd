"""Several processes on one port: a parent starts them, restarts those that died, and ends them all.

    parent    listens, decides nothing     worker 1…n    accept from the parent's socket     admin    metrics, probes

The workers share one socket: when one is killed, connections that wait to be accepted go to the others (with a socket
each, SO_REUSEPORT, they would be lost). A child reads its settings from standard input, which stays open: when it
closes, the parent is gone, and the child ends. It answers one line: ready, or why it cannot start.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO, Self, cast

import msgspec

from capline.model.errors import CaplineError
from capline.service.settings.kept import KEPT, make_key
from capline.service.settings.values import Settings
from capline.support.scratch import ScratchFolder

if TYPE_CHECKING:
    import socket

READY = b"ready\n"
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Of the workers of one service: what they count."""
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
_ENDING = {signal.SIGTERM, signal.SIGINT}
AT_ONCE = signal.SIGUSR1
"""Tells a child to end without `drain`. A terminal's SIGINT, which goes to it too, is for the parent alone."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
_LONGEST_WAIT_S = 3600.0
_SETTLED_S = 10.0
"""A child that lived so long restarts after the first pause; else the pause doubles."""


class Job(msgspec.Struct, frozen=True):
    """What a child is told: its settings, and the sockets that it serves, by name."""

    settings: Settings
    sockets: dict[str, int]


class _Signals:
    """The signals of this process, one after the other, whichever of its threads the kernel gives them to.

    Blocking them for `sigtimedwait` would not do: threads that numpy started do not block them, and one would kill us.
    """

    def __enter__(self) -> Self:
        self._heard, self._told = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._told, False)
        self._before = {signum: signal.signal(signum, _leave) for signum in _SIGNALS}
        self._fd_before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        self._waiting: list[int] = []
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        os.close(self._heard)
        os.close(self._told)

    def wait(self, seconds: float, beside: BinaryIO | None = None) -> int | None:
        """The next one; None where none came in time, or `beside` can be read first."""
        if not self._waiting:
            select.select([self._heard, *([beside] if beside else [])], [], [], max(0.0, seconds))
            with suppress(BlockingIOError):
                self._waiting += os.read(self._heard, 4096)
        return self._waiting.pop(0) if self._waiting else None


def _leave(_signum: int, _frame: FrameType | None) -> None:
    """Do nothing: the signal's number is in the pipe by now."""


class _Child:
    """One process, and those that take its place."""

    def __init__(self, job: Job, folder: str) -> None:
        self._job = job
        self._folder = folder
        self._pause_s = _FIRST_PAUSE_S
        self.due: float | None = None
        self.start()

    def start(self) -> None:
        """Start it; it is not ready yet."""
        self.due = None
        self.began = time.monotonic()
        # The child inherits the mask: a terminal's SIGINT is for the parent alone, and SIGTERM waits until the child is
        # ready for it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "capline.service.run.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=tuple(self._job.sockets.values()),
                env={**os.environ, FOLDER: self._folder, KEPT: self._folder},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._told, self._said = cast("BinaryIO", self.process.stdin), cast("BinaryIO", self.process.stdout)
        with suppress(BrokenPipeError):
            self._told.write(msgspec.json.encode(self._job) + b"\n")
            self._told.flush()

    def wait_ready(self, signals: _Signals) -> bool:
        """Return when it serves, or False where a signal to end came first; raise why it does not serve."""
        while not select.select([self._said], [], [], 0)[0]:
            if signals.wait(_LONGEST_WAIT_S, self._said) in _ENDING:
                return False
        said = self._said.readline()
        if said != READY:
            raise CaplineError(said.decode(errors="replace").strip() or "a worker ended before it had started")
        return True

    def ended(self) -> str:
        """How it ended, and why, where it said so."""
        said = self._said.read().removeprefix(READY).decode(errors="replace").strip()
        return f"worker {self.process.pid} ended with status {self.process.returncode}{said and ': ' + said}"

    def died(self) -> bool:
        """Whether it has ended since the last look; if so, its restart is due after a pause."""
        if self.due is not None or self.process.poll() is None:
            return False
        now = time.monotonic()
        if now - self.began > _SETTLED_S:
            self._pause_s = _FIRST_PAUSE_S
        self.due = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True

    def close(self) -> None:
        """Close its pipes: a child that lives ends by this."""
        for pipe in (self._told, self._said):
            with suppress(OSError):
                pipe.close()

    def tell(self, signum: int) -> None:
        """Send it a signal, if it lives."""
        if self.process.poll() is None:
            self.process.send_signal(signum)


def serve_by_workers(
    settings: Settings,
    workers: Mapping[str, socket.socket],
    admin: Mapping[str, socket.socket],
    started: Callable[[], object],
    note: Callable[[str], object],
) -> None:
    """Serve until a signal: `settings.http.workers` processes on the sockets of `workers`, one on those of `admin`.

    Raises `CaplineError` where a first one cannot start; `note` hears of those that died later.
    """
    with _Signals() as signals, ScratchFolder("capline-metrics-") as folder:
        make_key(folder)
        jobs = [_job(settings, workers)] * settings.http.workers + [_job(settings, admin)]
        children: list[_Child] = []
        drain_s = 0.0
        try:
            children.extend(_Child(job, folder) for job in jobs)
            if all(child.wait_ready(signals) for child in children):
                started()
                if _keep(children, signals, note, folder) == signal.SIGTERM:
                    drain_s = settings.drain
        finally:
            for listening in (*workers.values(), *admin.values()):
                listening.close()  # else it would take connections that no child answers any more
            _end(children, signals, settings.bounds.stop_within, drain_s)


def _job(settings: Settings, sockets: Mapping[str, socket.socket]) -> Job:
    for listening in sockets.values():
        listening.set_inheritable(True)
    return Job(settings, {name: listening.fileno() for name, listening in sockets.items()})


def _keep(children: list[_Child], signals: _Signals, note: Callable[[str], object], folder: str) -> int:
    """Restart children that die, until a signal says to end, which is returned."""
    told = None
    while told is None or told not in _ENDING:
        if told == signal.SIGHUP:
            for child in children:
                child.tell(signal.SIGHUP)
        for child in children:
            if child.died():
                _forget(folder, child.process.pid)
                note(f"{child.ended()}; another takes its place")
                child.close()
            elif child.due is not None and child.due <= time.monotonic():
                child.start()
        due = min((child.due for child in children if child.due is not None), default=None)
        told = signals.wait(_LONGEST_WAIT_S if due is None else due - time.monotonic())
    return told


def _forget(folder: str, pid: int) -> None:
    """Remove a dead child's gauges; what it counted stays."""
    for entry in os.scandir(folder):
        if entry.name.startswith("gauge_live") and entry.name.endswith(f"_{pid}.db"):
            with suppress(OSError):
                os.unlink(entry.path)  # noqa: PTH108 - as scandir has it


def _end(children: list[_Child], signals: _Signals, within_s: float, drain_s: float) -> None:
    """End all of them; those that have not ended in time after they drained, or at a second signal, are killed."""
    for child in children:
        child.tell(signal.SIGTERM if drain_s else AT_ONCE)
    deadline = time.monotonic() + drain_s + within_s
    while any(child.process.poll() is None for child in children):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or signals.wait(left_s) in _ENDING:
            for child in children:
                child.tell(signal.SIGKILL)
            break
    for child in children:
        child.process.wait()
        child.close()
