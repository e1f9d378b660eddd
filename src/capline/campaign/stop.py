"""Stopping a campaign in good order: asked for by a signal, heeded between two steps.

The first Ctrl-C (or SIGTERM) lets the step under way come to its end and be written down; the second ends the process
at once, which costs nothing but handing over again what was under way. A pause between tries ends with the signal.

The signal handler only sets a number and writes one byte to a pipe: nothing in it can wait for a lock, or enter a
buffer, that the interrupted code holds. `first` and `second` are called in it, and must do no more.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

__all__ = ["CampaignStopped", "Stop"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CampaignStopped(Exception):  # noqa: N818 - not an error: what was asked for
    """The campaign was asked to stop, and did; it can be resumed. `signum` is the signal that asked."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Stop:
    """A wish to stop, which a run looks for between its steps. Made once for a run; close it afterwards."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._reader, self._writer = os.pipe()

    def ask(self, signum: int = signal.SIGINT) -> None:
        """Ask the run to stop after the step under way."""
        self.signum = signum
        os.write(self._writer, b"x")

    def check(self) -> None:
        """Raise `CampaignStopped` if that was asked."""
        if self.signum is not None:
            raise CampaignStopped(self.signum)

    def wait(self, seconds: float) -> None:
        """Pause; raise `CampaignStopped` as soon as that is asked."""
        select.select([self._reader], [], [], seconds)
        self.check()

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._reader)
        os.close(self._writer)

    @contextmanager
    def on_signals(self, first: Callable[[int], object], second: Callable[[int], object]) -> Generator[None]:
        """Inside, SIGINT and SIGTERM ask, and `first` is called; at another one `second` is, and the process ends."""

        def handle(signum: int, _frame: FrameType | None) -> None:
            if self.signum is not None:
                try:
                    second(signum)
                finally:
                    os._exit(128 + signum)  # at once is what was asked for; the ledger is made for it
            self.ask(signum)
            first(signum)

        before = {signum: signal.signal(signum, handle) for signum in _SIGNALS}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
