"""`python -m proof.chaos`: exit 0 where every run kept what is promised of it, 1 where not, 130 after control-C."""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.kit.servers import KINDS, cluster

from proof.chaos.load import COLD, HOT
from proof.chaos.run import Outcome, run
from proof.chaos.table import broken, plans, row, short_plans, table
from proof.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

INTERRUPTED = 130


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; the table on standard output, or JSON."""
    parser = Options("python -m proof.chaos", "Measure what a cluster loses to faults.", "--short --kind valkey")
    parser.add_argument("--seconds", type=float, default=300, help="how long each run with faults takes (300)")
    parser.add_argument("--every", type=float, default=20, help="seconds from one fault to the next (20)")
    parser.add_argument("--seed", default="capline", help="what is drawn: attempts, faults, servers")
    parser.add_argument("--kind", choices=KINDS, default="redis", help="the servers")
    parser.add_argument("--only", default="", help="the runs whose name holds this text")
    parser.add_argument("--short", action="store_true", help="the runs of the tests: sixty seconds of load in all")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.every <= 0:
        parser.error("--seconds and --every are above 0")
    made = short_plans(options.seed) if options.short else plans(options.seconds, options.every, options.seed)
    chosen = [plan for plan in made if options.only in plan.name]
    if not chosen:
        parser.error(f"no run has {options.only!r} in its name; there are: {'; '.join(plan.name for plan in made)}")
    signal.signal(signal.SIGTERM, _stop)
    logging.disable(logging.WARNING)  # these servers keep nothing on a disk, on purpose
    outcomes: list[Outcome] = []
    try:
        with cluster(options.kind) as nodes:
            server = nodes.servers[0].info("server")
            for plan in chosen:
                say(f"{plan.name}: {plan.seconds:g} s")
                outcomes.append(run(plan, nodes, say))
    except KeyboardInterrupt:
        say("interrupted; every server is stopped")
        return INTERRUPTED
    facts: dict[str, Any] = {
        "server": f"{options.kind} {server.get('valkey_version') or server['redis_version']}, 3 primaries, 3 replicas",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
        "subjects": f"{HOT} hot, {COLD} cold",
        "seed": options.seed,
        "deadline_s": chosen[-1].deadline_s,
    }
    faults = {one.plan.name: why for one in outcomes if (why := broken(one))}
    if options.json:
        print(json.dumps({**facts, "runs": [row(one) for one in outcomes]}, indent=2))
    else:
        print("; ".join(f"{name} {value}" for name, value in facts.items()))
        print(table(outcomes))
    for name, why in faults.items():
        say(f"BROKEN {name}: {'; '.join(why)}")
    say("as promised" if not faults else f"{len(faults)} of {len(outcomes)} runs are not as promised")
    return 1 if faults else 0


def _stop(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends it as control-C does."""
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
