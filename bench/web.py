"""What a limit costs a web app: the same app bare and under one limit of each package, in one run.

    python bench/web.py            some minutes
    python bench/web.py --short    a look

First behind uvicorn: the processor time that a request takes there, which is what bounds the requests a second of a
worker. Then without a server, all faces: microseconds a request, and what that is of the requests a second behind a
server whose own time is `--server-us` a request. What capline is compared with is in build/guests, which is made first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from _harness import arguments
from tests.kit.guests import guests

if TYPE_CHECKING:
    from argparse import Namespace

COSTS = Path(__file__).resolve().parent / "_web_costs.py"


def options() -> Namespace:
    """How much of it."""
    return arguments(__doc__, requests=10_000, rounds=5, connections=32, server_us=40, short=False)


def main() -> None:
    """Become the interpreter that has what capline is compared with."""
    options()  # here too: `--help` needs no venv
    python = str(guests())  # by its whole path, or it takes itself for another
    os.execv(python, [python, str(COSTS), *sys.argv[1:]])  # noqa: S606 - ours


if __name__ == "__main__":
    main()
