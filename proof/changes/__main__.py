"""`python -m proof.changes [--steps N] [--store NAME]`: exit 1 where a store and the reference differ."""

from __future__ import annotations

import itertools
import logging
import secrets
import subprocess
import sys
import time
import unittest
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tests.kit.servers import shared

from capline.testing import state_machine
from capline.testing.conformance import url_of
from proof.options import Options, count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

A_PART = 10_000
"""Steps with one seed; the next part has the next. What was drawn is kept in memory, which would grow."""

PATIENT = "?deadline=20s&bulk_deadline=60s"


def _url(kind: str, shape: Literal["single", "cluster"] = "single") -> str:
    return shared(kind, shape).url + PATIENT


def _begun_next(url: Callable[[], str]) -> str:
    return url() + "&forms=next"


STORES: dict[str, tuple[str | Callable[[], str], str]] = {
    "memory": ("memory://?forms=present", "subject"),
    "lmdb": ("lmdb://{tmp}/store?durability=full", "subject"),
    "redis": (partial(_url, "redis"), "subject"),
    "redis-bucket": (partial(_url, "redis"), "bucket"),
    "valkey": (partial(_url, "valkey"), "subject"),
    "valkey-cluster": (partial(_url, "valkey", "cluster"), "subject"),
    "valkey-cluster-bucket": (partial(_url, "valkey", "cluster"), "bucket"),
}
"""In the present forms; with `--forms next` in the next, where they have them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Drive the store; several have a process each, as most wait for servers."""
    parser = Options("python -m proof.changes", "Change policies between random steps, on every store.", "--steps 2000")
    parser.add_argument("--steps", type=count, default=200_000, metavar="N", help="on each store (200,000)")
    parser.add_argument(
        "--store",
        choices=STORES,
        action="append",
        metavar="NAME",
        help=f"of {', '.join(STORES)}; may be given several times",
    )
    parser.add_argument("--forms", choices=("present", "next"), default="present", help="which a log begins in")
    parser.add_argument("--seed", type=count, metavar="N", help="take the steps of an earlier run (others each time)")
    options = parser.parse_args(arguments)
    stores = options.store or [*STORES]
    if len(stores) > 1:
        again = ["--steps", f"{options.steps}", "--forms", options.forms]
        again += ["--seed", f"{options.seed}"] if options.seed else []
        command = [sys.executable, "-m", "proof.changes", *again, "--store"]
        return max([process.wait() for process in [subprocess.Popen([*command, store]) for store in stores]])
    logging.getLogger("capline").setLevel(logging.ERROR)  # the servers here persist nothing
    [store] = stores
    url, layout = STORES[store]
    if options.forms == "next":
        url = partial(_begun_next, url_of(url))
    begun, outcome, taken, faults = time.monotonic(), unittest.TestResult(), 0, list[str]()
    for seed in itertools.count(options.seed or 1 + secrets.randbelow(2**32)):
        steps = min(A_PART, options.steps - taken)
        if faults or steps <= 0:
            break
        case: Any = state_machine(url, steps=steps, layout=layout, changing=True, seed=seed)
        case.least = 1  # they are counted here
        case("runTest").run(outcome)
        taken += case.machine.taken
        faults = [text for _, text in (*outcome.failures, *outcome.errors)]
        said = f"a difference with --steps {steps}" if faults else "no difference"
        print(f"{store}: {taken:,} steps, {said}; seed {seed}, {time.monotonic() - begun:.0f} s", flush=True)
    print(*faults, sep="\n", end="", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
