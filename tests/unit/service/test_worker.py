"""A process of the service and its signals: while it starts, and when it is to end."""

# pyright: reportPrivateUsage=false

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from capline.service.run.server import _on_signals, _Stop
from capline.service.run.workers import AT_ONCE, Job
from capline.service.settings.values import Settings


def test_a_reload_while_it_starts_does_not_end_it(tmp_path: Path) -> None:
    settings = Settings(store="memory://", policies=str(tmp_path / "nowhere.yaml"))
    job = msgspec.json.encode(Job(settings, {})) + b"\n"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # as its parent does
    ended = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup a program inherits that it is ignored
    try:
        worker = subprocess.Popen(
            [sys.executable, "-m", "capline.service.run.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    finally:
        signal.signal(signal.SIGHUP, ended)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with worker:
        worker.send_signal(signal.SIGHUP)
        said, _ = worker.communicate(job, timeout=60)
    assert (worker.returncode, b"nowhere.yaml: cannot be read" in said) == (2, True)


@pytest.mark.parametrize(
    ("drain", "expected"),
    [
        ((), [(True, True, False), (True, True, True), "drained", 9, 0]),
        ((3600,), [(True, False, False), (True, True, True), "drained", 0]),
    ],
    ids=["at once", "drains"],
)
def test_the_first_signal_lets_requests_end_and_the_second_does_not(
    drain: tuple[int, ...], expected: list[Any]
) -> None:
    listener: Any = SimpleNamespace(should_exit=False, force_exit=False)
    told: list[Any] = []

    async def drained() -> None:
        told.append("drained")

    async def end(within_s: float) -> None:
        told.append(within_s)

    async def run() -> None:
        parts: Any = SimpleNamespace(draining=[drained], ending=[end])
        stop = _Stop([listener], parts, 9, draining := asyncio.Event())
        for _ in range(2):
            stop(*drain)
            told.append((draining.is_set(), listener.should_exit, listener.force_exit))
        await stop.ended()

    asyncio.run(run())
    assert told == expected


@pytest.mark.parametrize(("drain_s", "passed_on"), [(3600.0, signal.SIGTERM), (0.0, AT_ONCE)])
def test_a_signal_to_the_group_that_the_parent_passes_on_counts_once(drain_s: float, passed_on: int) -> None:
    listener: Any = SimpleNamespace(should_exit=False, force_exit=False)
    reader, writer = os.pipe()
    ignored = signal.getsignal(signal.SIGINT)

    async def run() -> None:
        parts: Any = SimpleNamespace(draining=[], ending=[])
        stop = _Stop([listener], parts, 9, asyncio.Event())
        _on_signals(stop, drain_s, heard := asyncio.Event(), reader)
        for signum in (signal.SIGTERM, passed_on, signal.SIGHUP):
            os.kill(os.getpid(), signum)
        await heard.wait()
        assert (listener.should_exit, listener.force_exit) == (not drain_s, False)
        os.close(writer)  # the parent is gone
        while not listener.force_exit:  # noqa: ASYNC110 - the loop looks at the pipe between its steps
            await asyncio.sleep(0)

    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGINT, ignored)
        os.close(reader)
