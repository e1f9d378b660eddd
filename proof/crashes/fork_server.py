"""Forks writers, which saves each the start of an interpreter. Commands on standard input, answers on standard output.

start NUMBER LIFE STOP_AT   fork a writer; answers with its pid
open LINE                   fork a process that opens the store and is killed at that line; answers with its pid
reap PID                    wait for its end; answers with its status
"""

from __future__ import annotations

import os
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from proof.crashes.opener import open_until
from proof.crashes.writer import write

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Do what is asked until nobody asks."""
    url, directory, pause_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb == "start":
            number, life, stop_at = map(int, numbers)
            os.environ["CAPLINE_STOP_AT"] = str(stop_at)
            pid = _fork(directory / f"error-{number}-{life}", partial(write, url, directory, number, life, pause_s))
            print(pid, flush=True)
        elif verb == "open":
            work = partial(open_until, url, int(numbers[0]), directory / "lines")
            print(_fork(directory / f"error-open-{numbers[0]}", work), flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(int(numbers[0]), 0)[1]), flush=True)


def _fork(error: Path, work: Callable[[], object]) -> int:
    """A child that does this and ends; what it raises is in the file."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:  # noqa: BLE001 - told by the exit code
            error.write_text(traceback.format_exc(), encoding="utf-8")
            os._exit(1)
        os._exit(0)
    return pid


if __name__ == "__main__":
    main()
