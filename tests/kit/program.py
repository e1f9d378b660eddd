"""A program as a process of its own; what it says is read as it comes."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.kit.forked import Command, start

__all__ = ["WITHIN_S", "Program", "answer_in_json", "ended", "lives", "refusal_of", "worker_did"]

WITHIN_S = 60


class Program:
    """A Python program that runs in this folder; `said` are the lines so far."""

    def __init__(
        self, folder: Path, *words: str, env: Mapping[str, str] | None = None, python: str = sys.executable
    ) -> None:
        if (python, *words[:2]) == (sys.executable, "-m", "capline.cli"):
            self.process = start(*words[2:], cwd=folder, env=env, together=True)
        else:
            self.process = subprocess.Popen(
                [python, *words], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        self.said: list[str] = []
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def says(self, form: re.Pattern[str]) -> re.Match[str]:
        """The first line from here on with this in it; without one the program is ended."""
        try:
            while line := self._lines.get(timeout=WITHIN_S):
                if found := form.search(line):
                    return found
        except Empty:
            pass
        self.end(signal.SIGKILL)
        raise AssertionError(f"it did not start: {self.said}")

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Ask it to end; how it did."""
        self.process.send_signal(signum)
        return self.process.wait(WITHIN_S)

    def end(self, signum: int = signal.SIGTERM) -> None:
        """End it, and read what it still said."""
        ended(self.process, signum)
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.said.append(line)
                self._lines.put(line)
        self._lines.put("")


def ended(process: Command | subprocess.Popen[str] | subprocess.Popen[bytes], signum: int = signal.SIGTERM) -> None:
    """End the process; kill it if it does not end in time."""
    process.send_signal(signum)
    try:
        process.wait(WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def lives(pid: int) -> bool:
    """Whether the process runs; one that has ended, and was not waited for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def worker_did(truth: Callable[[], bool], worker: subprocess.Popen[bytes], log: Path, within_s: float = 60) -> None:
    """Wait until it is true; fail with the end of the worker's log where that has ended, or the time is over."""
    until = time.monotonic() + within_s
    while not truth():
        assert worker.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.05)


def answer_in_json(done: subprocess.CompletedProcess[str]) -> Any:
    """What a command answered with `--json`, in one line and with nothing beside it."""
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def refusal_of(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """The one line with which a command refused."""
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1
    return done.stderr.strip()
