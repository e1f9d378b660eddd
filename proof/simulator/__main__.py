"""`python -m proof.simulator`: the real engine by seeds, then the wrong ones; exit 1 for a broken or missed promise."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from proof.options import Options, count
from proof.simulator.run import run
from proof.simulator.wrong import WRONG, find

if TYPE_CHECKING:
    from collections.abc import Sequence

SEEDS = 320


def main(arguments: Sequence[str] | None = None) -> int:
    """Say what was found."""
    parser = Options("python -m proof.simulator", "Play faults to the server store, by seeds.", "--seed 7")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--seeds", type=count, default=SEEDS, metavar="N", help=f"play so many seeds ({SEEDS})")
    asked.add_argument("--seed", type=int, metavar="N", help="play this one, and print its trace")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="with --seeds: begin with this one (0)")
    options = parser.parse_args(arguments)
    if min(options.first, options.seed or 0) < 0:
        parser.error("seeds are counted from 0")
    if options.seed is not None:
        outcome = run(options.seed)
        print("\n".join((*outcome.trace, outcome.text())))
        return 0 if outcome else 1
    return 1 if _seeds(options.first, options.seeds) + _wrong() else 0


def _seeds(first: int, many: int) -> int:
    """How many seeds broke a promise."""
    begun, broken, sums = time.monotonic(), 0, Counter[str]()
    for seed in range(first, first + many):
        outcome = run(seed)
        told = outcome.told
        sums.update(answers=told.answers, unknown=told.unknown, unavailable=told.unavailable)
        sums.update(faults=outcome.faults + outcome.server_faults)
        if not outcome:
            broken += 1
            print(outcome.text(), flush=True)
    said = "every promise kept" if not broken else f"{broken} broke a promise"
    figures = ", ".join(f"{count} {name}" for name, count in sums.items())
    print(f"{many} seeds from {first}: {figures}: {said}; {time.monotonic() - begun:.0f} s", flush=True)
    return broken


def _wrong() -> int:
    """How many wrong engines were missed."""
    missed = 0
    for wrong in WRONG:
        outcome = find(wrong)
        missed += outcome is None
        said = "MISSED" if outcome is None else f"found by seed {outcome.seed}: {', '.join(sorted(outcome.broken))}"
        print(f"{wrong.__name__}: {said}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
