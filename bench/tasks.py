"""Celery workers that share a strict provider: how often it says 429, and how often a task is delivered again.

The provider allows 20 calls in any second, by its own count of when they come, and takes 50 ms for each. The tasks of
examples/clients/celery_tasks.py are sent all at once to one worker of `--processes`, over Redis. A task that the
provider refuses has failed, and is counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from _harness import Report, arguments, check
from _servers import single

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parents[1]
WITHIN_S = 120
QUOTA = 20
SEND = "import sys, celery_tasks\nfor number in range(int(sys.argv[1])): celery_tasks.pay.delay(number)"


def main() -> None:
    """Print the figures."""
    options = arguments(__doc__, tasks=200, processes=4)
    report = Report(f"Celery: {options.tasks} tasks in {options.processes} processes, {QUOTA} calls a second")
    provider = _Provider()
    with single("redis") as server, _serving(provider) as url, tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'examples' / 'clients'}:{ROOT / 'src'}",
            "PROVIDER_URL": url,
            "BROKER_URL": f"redis://127.0.0.1:{server.port}/1",
            "STORE_URL": f"{server.url}?deadline=10s",
            "NO_PROXY": "*",
        }
        send = [sys.executable, "-c", SEND, str(options.tasks)]
        subprocess.run(send, cwd=folder, env=env, check=True)  # noqa: S603 - ours
        log = Path(folder) / "log"
        with _worker(options.processes, folder, env, log):
            until = time.monotonic() + WITHIN_S
            while True:
                ended = log.read_text(encoding="utf-8").count("] succeeded in ") + _failed(log)
                if ended >= options.tasks or time.monotonic() > until:
                    break
                time.sleep(0.2)
        said = log.read_text(encoding="utf-8")
    check(provider.allowed == said.count("] succeeded in "), "a task was called twice, or not at all")
    check(provider.allowed + provider.refused == options.tasks, f"{provider.allowed} of {options.tasks} tasks ran")
    report.add("answers of 429", provider.refused, f"of {options.tasks}", at_most=0)
    report.add("deliveries beyond the first", said.count("] received") - options.tasks, f"of {options.tasks}")
    used = (provider.allowed - 1) / (provider.last - provider.first) / QUOTA
    report.add("rate used", used * 100, "% of the quota")
    report.show(as_json=options.json)


class _Provider:
    """Strict: a call that comes less than a second after the one 20 before it is refused."""

    def __init__(self) -> None:
        self.came: deque[float] = deque(maxlen=QUOTA)
        self.allowed = self.refused = 0
        self.first = self.last = 0.0
        self._lock = threading.Lock()

    def lets_in(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if len(self.came) == QUOTA and now - self.came[0] < 1:
                self.refused += 1
                return False
            self.came.append(now)
            self.allowed += 1
            self.first, self.last = self.first or now, now
            return True


@contextmanager
def _serving(provider: _Provider) -> Generator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status = 200 if provider.lets_in() else 429
            if status == 200:
                time.sleep(0.05)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def _worker(processes: int, folder: str, env: dict[str, str], log: Path) -> Generator[None]:
    words = ["-m", "celery", "-A", "celery_tasks", "worker", "-c", str(processes), "-l", "INFO", "--without-gossip"]
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *words], cwd=folder, env=env, stdout=file, stderr=file)  # noqa: S603 - ours
        try:
            yield
            process.send_signal(signal.SIGTERM)
            check(process.wait(WITHIN_S) == 0, "the worker did not end well")
        finally:
            process.kill()
            process.wait()


def _failed(log: Path) -> int:
    return log.read_text(encoding="utf-8").count("] raised unexpected")


if __name__ == "__main__":
    main()
