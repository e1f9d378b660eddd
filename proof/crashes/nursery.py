"""Forks writers, which saves each the start of an interpreter. Commands on standard input, answers on standard output.

start NUMBER LIFE STOP_AT   fork a writer; answers with its pid
reap PID                    wait for its end; answers with its status
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from proof.crashes.writer import write


def main() -> None:
    """Do what is asked until nobody asks."""
    url, directory, pause_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb == "start":
            number, life, stop_at = map(int, numbers)
            pid = os.fork()
            if not pid:
                os.environ["CAPLINE_STOP_AT"] = str(stop_at)
                try:
                    write(url, directory, number, life, pause_s)
                except BaseException:  # noqa: BLE001 - told by the exit code
                    (directory / f"error-{number}-{life}").write_text(traceback.format_exc(), encoding="utf-8")
                    os._exit(1)
                os._exit(0)
            print(pid, flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(int(numbers[0]), 0)[1]), flush=True)


if __name__ == "__main__":
    main()
