"""Stops a campaign between two steps, when a signal asks for it.

After the first Ctrl-C (or SIGTERM) the current step is finished and recorded. The second ends the process at once; the
resumed run then sends again what was under way. A signal also ends a pause between tries.

The signal handler only sets a number and writes one byte to a pipe, so it never waits for a lock or a buffer of the
interrupted code. It calls `first` and `second`, which must not do more.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CampaignStopped(Exception):  # noqa: N818 - not an error: what was asked for
    """The campaign stopped as asked, and can be resumed. `signum` is the signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Stop:
    """A request to stop, which a run checks between its steps. Made once for a run; close it afterwards."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._reader, self._writer = os.pipe()

    def ask(self, signum: int = signal.SIGINT) -> None:
        """Ask the run to stop after the step under way."""
        self.signum = signum
        os.write(self._writer, b"x")

    def check(self) -> None:
        """Raise `CampaignStopped` if a stop was asked for."""
        if self.signum is not None:
            raise CampaignStopped(self.signum)

    def wait(self, seconds: float) -> None:
        """Pause; raises `CampaignStopped` as soon as a stop is asked for."""
        select.select([self._reader], [], [], seconds)
        self.check()

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self._writer)

    @contextmanager
    def on_signals(self, first: Callable[[int], object], second: Callable[[int], object]) -> Generator[None]:
        """In the block, SIGINT or SIGTERM asks for a stop and calls `first`; the next calls `second` and ends."""

        def handle(signum: int, _frame: FrameType | None) -> None:
            if self.signum is not None:
                try:
                    second(signum)
                finally:
                    os._exit(128 + signum)  # the user asked for an immediate end; the ledger is safe at any point
            self.ask(signum)
            first(signum)

        before = {signum: signal.signal(signum, handle) for signum in _SIGNALS}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
