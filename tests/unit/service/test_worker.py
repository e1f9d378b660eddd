"""A worker while it starts: the signals of its parent."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from capline.service.run.settings import Settings
from capline.service.run.workers import Job

if TYPE_CHECKING:
    from pathlib import Path


def test_a_reload_while_it_starts_does_not_end_it(tmp_path: Path) -> None:
    settings = Settings(store="memory://", policies=str(tmp_path / "nowhere.yaml"))
    job = msgspec.json.encode(Job(settings, {})) + b"\n"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # as its parent does
    try:
        worker = subprocess.Popen(
            [sys.executable, "-m", "capline.service.run.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with worker:
        worker.send_signal(signal.SIGHUP)
        said, _ = worker.communicate(job, timeout=60)
    assert (worker.returncode, b"nowhere.yaml: cannot be read" in said) == (2, True)
