"""Standard input that Ctrl-C always ends, whenever it comes."""

import io
import os
import select
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from capline.support import interruptible as module
from capline.support.interruptible import interruptible


@pytest.fixture
def pipe() -> Iterator[tuple[Any, int]]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as source:
        yield source, writer
    os.close(writer)


def ignore(_signum: int, _frame: object) -> None:
    """A handler, so that Python looks at the signal."""


def test_a_signal_just_before_the_wait_ends_the_wait(pipe: tuple[Any, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler has run by then: what it wrote is all there is to see."""
    source, writer = pipe
    ready: list[int] = []

    def waits(readers: list[int], writers: list[int], faults: list[int]) -> Any:
        if not ready:
            signal.raise_signal(signal.SIGUSR1)
        else:
            os.write(writer, b"a line\n")
        found: Any = select.select(readers, writers, faults, 10)
        ready.append(len(found[0]))
        return found

    monkeypatch.setattr(module, "select", SimpleNamespace(select=waits))
    before = signal.signal(signal.SIGUSR1, ignore)
    try:
        with interruptible(source) as lines:
            assert lines.readline() == b"a line\n"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ready == [1, 1], "neither waited until there was nothing"
    assert signal.set_wakeup_fd(-1) == -1, "as it was before"


def test_lines_and_the_end(pipe: tuple[Any, int]) -> None:
    source, writer = pipe
    os.write(writer, b"a\n" * 3000 + b"b")
    lines: Any
    with interruptible(source) as lines:
        assert [lines.readline() for _ in range(3000)] == [b"a\n"] * 3000
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert lines.peek(1)[:1] == b"b"
    plain = io.BytesIO(b"c")
    with interruptible(plain) as lines:
        assert lines is plain
