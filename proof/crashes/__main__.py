"""`python -m proof.crashes [--crashes N]`: kills, losses of power, and the controls; exit 1 where a promise was broken.

Needs a C compiler (`cc`) for the losses of power. About two minutes for 200 of each.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from proof.crashes.rounds import build, kills, losses, openings
from proof.options import Options, count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proof.crashes.rounds import Outcome

CONTROL_CRASHES = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; each in a directory of its own."""
    parser = Options("python -m proof.crashes", "Kill writers of the embedded store, and lose power.", "--crashes 20")
    parser.add_argument("--crashes", type=count, default=200, metavar="N", help="how many of each kind (200)")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns(), metavar="N", help="when to kill whom (another each time)"
    )
    options = parser.parse_args(arguments)
    crashes, seed = options.crashes, options.seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="capline-proof-") as name:
        library = build(Path(name))
        runs: dict[str, tuple[bool, Callable[[Path], Outcome]]] = {
            "kill -9, relaxed": (True, lambda at: kills(at, crashes, "relaxed", seed)),
            "kill -9, full": (True, lambda at: kills(at, crashes, "full", seed)),
            "kill -9 while opening, relaxed": (True, openings),
            "kill -9 while opening, full": (True, lambda at: openings(at, durability="full")),
            "power lost, full": (True, lambda at: losses(at, library, crashes, "full", seed=seed)),
            "control: power lost, relaxed": (
                False,
                lambda at: losses(at, library, CONTROL_CRASHES, "relaxed", seed=seed),
            ),
            "control: power lost, full, a disk that drops the last sync of each commit": (
                False,
                lambda at: losses(at, library, CONTROL_CRASHES, "full", lies=True, seed=seed),
            ),
        }
        wrong = 0
        for number, (what, (shall_hold, work)) in enumerate(runs.items()):
            begun, directory = time.monotonic(), Path(name) / str(number)
            directory.mkdir()
            outcome = work(directory)
            held = bool(outcome)
            wrong += held != shall_hold
            said = (
                "every promise kept"
                if held
                else f"found: {', '.join(sorted(outcome.report.kinds())) or 'no store left'}"
            )
            print(f"{what}: {said}; {time.monotonic() - begun:.0f} s", flush=True)
            if held != shall_hold or shall_hold:
                print(outcome.text(), flush=True)
    print("as promised" if not wrong else f"{wrong} of {len(runs)} are not as promised")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
