"""Replaces itself by a program that is killed when `capline up` ends, in whatever way.

    python with_parent.py PARENT PROGRAM WORDS…

The kernel is asked to kill this process when its parent ends. If the parent ended before that, it is no longer our
parent, and nothing is started. Linux only: elsewhere the program is started all the same.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the program; exit with 1 if the parent is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the plan's own words # nosec B606


if __name__ == "__main__":
    main()
