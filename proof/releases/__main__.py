"""`python -m proof.releases [--before DIRECTORY]`: exit 1 where an answer is not the reference's."""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.servers import shared

from capline import Limiter, ManualClock, Policy
from capline.testing import Reference
from proof.options import Options, count
from proof.releases.caller import told

if TYPE_CHECKING:
    from collections.abc import Sequence

THIS = Path(__file__).parents[2] / "src"
START_US = 1_700_000_000_000_000
STORES = ("redis", "valkey", "lmdb")
LIMITS = (["500/600ms"], ["450/450s", "500/10min"], ["2000/2500s"], ["700/125h", "3500/1000h"])
PER_HIT_US = {"ms": 1_100, "min": 1_100_000, "s": 1_100_000, "h": 1_000_000_000}


def question(chance: random.Random, hits: Sequence[int], odd: float) -> tuple[str, list[Any], dict[str, Any]]:
    """Mostly one unit; so often something else."""
    if chance.random() >= odd:
        return "decide", [], {}
    some: list[tuple[str, list[Any], dict[str, Any]]] = [
        ("decide", [2], {}),
        ("peek", [1], {}),
        ("schedule", [], {"max_wait": 1.0}),
        ("charge", [3], {}),
    ]
    if chance.random() < 0.1:
        some.append(("decide", [1, f"id{chance.randrange(9)}"], {}))
    if hits:
        some += [("refund", [chance.choice(hits)], {}), ("settle", [chance.choice(hits), chance.choice((0, 1, 3))], {})]
    return chance.choice(some)


def difference(url: str, forms: str, before: Path, seed: int, steps: int) -> str:
    """What differed first, if anything."""
    chance, clock, namespace = random.Random(seed), ManualClock(START_US), f"n{secrets.token_hex(4)}"
    limits = chance.choice(LIMITS)
    policies, per_hit_us = [Policy("p", limits)], PER_HIT_US[limits[-1].partition("/")[2].strip("0123456789")]
    reference: Any = Reference(policies, clock)
    command = [sys.executable, str(Path(__file__).with_name("caller.py")), url, namespace, *limits]
    other: Any = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(before)}
    )
    hits, share, odd, pace = list[int](), 0.0, 0.0, 1.0
    with other, Limiter(f"{url}&forms={forms}", policies, clock=clock, namespace=namespace) as limiter:
        for step in range(steps):
            if step % 300 == 0:
                share = chance.choice((0, 0, 0.02, 0.3, 0.9)) if step else 0.0
                odd, pace = chance.choice((0, 0, 0, 0.02)), chance.choice((0.3, 1, 1, 1, 1.5, 3))
            clock.advance_us(int(chance.expovariate(1 / (pace * per_hit_us))))
            verb, args, named = question(chance, hits[-300:], odd)
            expected = told(reference, verb, *args, **named)
            if verb in ("decide", "schedule") and not isinstance(expected, str) and expected[1] is not None:
                hits.append(expected[1])
            is_older = chance.random() < share
            if is_older:
                other.stdin.write(json.dumps([clock.now_us(), verb, args, named]) + "\n")
                other.stdin.flush()
                answer = json.loads(other.stdout.readline() or '"it ended"')
            else:
                answer = told(limiter, verb, *args, **named)
            if answer != expected:
                who = "the release before" if is_older else "this release"
                return f"step {step}, {verb} {args} {named}: {who} says {answer}, the reference {expected}"
        mine = [(hit.stamp_us, hit.units) for hit in limiter.explain("p", "subject").hits]
        return "" if mine == reference.hits("p", "subject")[0] else "the hits that are there"


def main(arguments: Sequence[str] | None = None) -> int:
    """Each store in turn."""
    parser = Options("python -m proof.releases", "The release before and this one, on the same logs.", "--steps 5000")
    parser.add_argument(
        "--before", type=Path, default=THIS, metavar="DIRECTORY", help="its package's folder (of this one)"
    )
    parser.add_argument("--steps", type=count, default=3_000, metavar="N", help="of each log (3,000)")
    parser.add_argument("--logs", type=count, default=10, metavar="N", help="on each store (10)")
    parser.add_argument("--store", choices=STORES, action="append", help="may be given several times")
    parser.add_argument("--forms", choices=("present", "next"), default="present", help="which this release begins")
    parser.add_argument(
        "--seed", type=count, default=1 + secrets.randbelow(2**32), metavar="N", help="of the first log"
    )
    options = parser.parse_args(arguments)
    faults = 0
    with tempfile.TemporaryDirectory() as directory:
        for store in options.store or STORES:
            url = (
                f"lmdb://{directory}/store?durability=relaxed"
                if store == "lmdb"
                else f"{shared(store).url}?deadline=20s"
            )
            for seed in range(options.seed, options.seed + options.logs):
                found = difference(url, options.forms, options.before, seed, options.steps)
                faults += bool(found)
                print(f"{store}, seed {seed}: {found or 'no difference'}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
