"""`capline serve` as its own process, on free ports of loopback."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from queue import Empty, Queue
from typing import TYPE_CHECKING, Self

import httpx

if TYPE_CHECKING:
    from pathlib import Path

WITHIN_S = 60
_STARTED = re.compile(r"decisions at (https?://\S+), metrics at (https?://\S+)/metrics")


class Serving:
    """A running service; `url` is where decisions are asked, `admin` where metrics are read."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "capline.cli", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *words],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.url, self.admin = self._started()
            self.client = httpx.Client(base_url=self.url, timeout=WITHIN_S, trust_env=False)
        except BaseException:
            self._end()
            raise

    def ask(self, path: str, **form: object) -> httpx.Response:
        """Send a form."""
        return self.client.post(path, json=form)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Ask it to end; how it did."""
        self.process.send_signal(signum)
        return self.process.wait(WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._end()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.said.append(line)
                self._lines.put(line)
        self._lines.put("")

    def _started(self) -> tuple[str, str]:
        while True:
            try:
                line = self._lines.get(timeout=WITHIN_S)
            except Empty:
                raise AssertionError(f"it did not start: {self.said}") from None
            assert line, f"it ended: {self.said}"
            if found := _STARTED.search(line):
                return found[1], found[2]
