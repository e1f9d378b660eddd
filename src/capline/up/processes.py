"""Starts the parts, waits until each answers, restarts those that died, and ends them all.

Each part has a session of its own: Ctrl-C in a terminal is for us alone, and at the end all that a part started goes
with it. The kernel ends a part when we are killed (`with_parent`), and its standard input ends. A part's output is in
NAME.log, which is truncated at a restart if it has grown too long.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from capline.up import with_parent
from capline.up.ports import HOST

if TYPE_CHECKING:
    from capline.up.plan import Part

READY_WITHIN_S = 60.0
ONCE_AGAIN_S = 2.0
LOOK_EVERY_S = 0.1
STOP_WITHIN_S = 15.0
PROBE_WITHIN_S = 5.0
_LONGEST_PAUSE_S, _SETTLED_S = 30.0, 30.0
_LARGEST_LOG_BYTES = 10 << 20


class _Child:
    """A part's process, and those that take its place."""

    def __init__(self, part: Part, folder: Path, stdin: BinaryIO) -> None:
        self.part = part
        self.due: float | None = None
        self.starts = 0
        self._folder, self._stdin = folder, stdin
        self._pause_s = part.pause_s
        self.start()

    def start(self) -> None:
        self.due = None
        self.starts += 1
        self._began = time.monotonic()
        log = self._folder / f"{self.part.name}.log"
        mode = "wb" if log.exists() and log.stat().st_size > _LARGEST_LOG_BYTES else "ab"
        with log.open(mode) as said:
            self.process = subprocess.Popen(  # noqa: S603 - the plan's own words
                [sys.executable, "-I", "-S", with_parent.__file__, str(os.getpid()), *self.part.words],
                cwd=self._folder,
                env=_environment(self.part),
                stdin=self._stdin,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def plan_restart(self) -> float:
        """When it is started again; the pause doubles while it does not stay up."""
        settled = time.monotonic() - self._began > _SETTLED_S
        pause_s = self.part.pause_s if settled else self._pause_s
        self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self.due = time.monotonic() + pause_s
        return pause_s

    def tell(self, signum: int) -> None:
        """To it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signum)


class Processes:
    """The parts that were started. `say` reports which died; `stopped` returns whether all are to end.

    `parts.json` says at any time which process each part is.
    """

    def __init__(self, folder: Path, say: Callable[[str], object], stopped: Callable[[], bool]) -> None:
        self._folder, self._say, self._stopped = folder, say, stopped
        self._children: list[_Child] = []
        begin, end = os.pipe()
        self._stdin, self._lifeline = os.fdopen(begin, "rb"), os.fdopen(end, "wb")

    def pids(self) -> dict[str, int]:
        """The process of each part that is to run."""
        return {child.part.name: child.process.pid for child in self._children}

    def start(self, *parts: Part) -> list[Part]:
        """Start them, wait until each answers, or with `once` has ended well; those that did, in that order."""
        children = [_Child(part, self._folder, self._stdin) for part in parts]
        self._children += children
        deadline = time.monotonic() + READY_WITHIN_S
        waiting, ready = children, list[_Child]()
        while waiting and time.monotonic() < deadline and not self._stopped():
            ready += [child for child in waiting if self._is_ready(child)]
            waiting = [child for child in waiting if child not in ready]
            self.look()
            time.sleep(LOOK_EVERY_S if waiting else 0)
        for child in () if self._stopped() else waiting:
            if child.part.once:
                child.tell(signal.SIGKILL)
                child.process.wait()
            log = self._folder / f"{child.part.name}.log"
            self._say(f"{child.part.name} did not get ready in {READY_WITHIN_S:.0f} s; see {log}")
        self._children = [child for child in self._children if not child.part.once]
        self._tell()
        return [child.part for child in children if child in ready]

    def _is_ready(self, child: _Child) -> bool:
        ended = child.process.poll()
        if not child.part.once:
            return ended is None and _answers(child.part.ready, self._folder)
        if ended:
            time.sleep(ONCE_AGAIN_S)
            child.start()
        return ended == 0

    def _tell(self) -> None:
        rows = [
            {"name": child.part.name, "where": child.part.where, "starts": child.starts, "pid": child.process.pid}
            for child in self._children
        ]
        written = self._folder / "parts.new"
        written.write_bytes(msgspec.json.encode(rows))
        written.rename(self._folder / "parts.json")

    def look(self) -> None:
        """Report the parts that died, and restart those whose pause is over."""
        for child in self._children:
            status = child.process.poll()
            if child.part.once or status is None:
                continue
            if child.due is None:
                child.tell(signal.SIGKILL)  # what it had started, too
                pause_s = child.plan_restart()
                how = f"ended with {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
                self._say(f"{child.part.name} {how}; the rest goes on, it starts again in {pause_s:g} s")
            elif time.monotonic() >= child.due:
                child.start()
                self._tell()
                self._say(f"{child.part.name} started again, pid {child.process.pid}")

    def stop(self) -> None:
        """End all of them, callers before those that they call; what has not ended in time is killed."""
        self._lifeline.close()
        self._stdin.close()
        for child in reversed(self._children):
            child.tell(signal.SIGTERM)
        deadline = time.monotonic() + STOP_WITHIN_S
        for child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
        for child in self._children:
            child.tell(signal.SIGKILL)
            child.process.wait()


def _environment(part: Part) -> dict[str, str]:
    """Ours without settings of capline's own, and the part's; an empty value removes a variable."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CAPLINE_")}
    return {name: value for name, value in (inherited | part.environment).items() if value}


def _answers(ready: str, folder: Path) -> bool:
    kind, _, rest = ready.partition(":")
    if kind == "tcp":
        with suppress(OSError), socket.create_connection((HOST, int(rest)), PROBE_WITHIN_S):
            return True
        return False
    if kind == "http":
        # No proxy of the environment stands before loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError), opener.open(ready, timeout=PROBE_WITHIN_S):
            return True
        return False
    return (folder / ready).exists()
