"""An attempt that asks that units stay free, over the same attempt without: one by one and in bulk, on each store.

1,000 subjects in turn, one process, every attempt allowed; the parties take turns in one run. First each is asked until
it refuses: of a quota of 3 with one to stay free it may have 2. Times are the processor's, of this process and of the
server together.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from _harness import Report, arguments, best_by_clocks, check, processor_clock
from _servers import single
from paths import ALGORITHMS, SMALL, SUBJECTS, UNITS, policies

from capline import Limiter

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = [f"{subject}:{copy}" for subject in SUBJECTS for copy in range(10)]
"""Of a batch."""


def exact(limiter: Limiter, algorithm: str) -> None:
    """One of the quota stays free, one by one and in bulk."""
    answers = [limiter.decide(algorithm, "one", keep_free=1).allowed for _ in range(SMALL)]
    answers += limiter.decide_many(algorithm, ["many"] * SMALL, keep_free=1).allowed.tolist()
    check(answers == 2 * ([True] * (SMALL - 1) + [False]), f"{algorithm}: one of {SMALL} stays free")


def one_by_one(limiter: Limiter, algorithm: str, keep_free: int) -> None:
    """A round of single attempts."""
    if keep_free:
        allowed = [limiter.decide(algorithm, f"kept:{one}", keep_free=keep_free).allowed for one in SUBJECTS]
    else:
        allowed = [limiter.decide(algorithm, f"free:{one}").allowed for one in SUBJECTS]
    check(all(allowed), f"{algorithm}: one by one")


def in_bulk(limiter: Limiter, algorithm: str, keep_free: int) -> None:
    """A round of one batch."""
    rows = [f"{'kept' if keep_free else 'free'}:{row}" for row in ROWS]
    check(bool(limiter.decide_many(algorithm, rows, keep_free=keep_free).allowed.all()), f"{algorithm}: in bulk")


def compared(report: Report, kind: str, rounds: int) -> None:
    """Each algorithm on this store."""
    with ExitStack() as stack:
        clock, url = time.process_time, "memory://"
        if kind == "lmdb":
            url = f"lmdb://{stack.enter_context(tempfile.TemporaryDirectory())}/store"
        elif kind != "memory":
            server = stack.enter_context(single(kind))
            clock, url = processor_clock(server.pid), f"{server.url}?deadline=10s"
        few = stack.enter_context(Limiter(url, policies(SMALL), namespace="few"))
        limiter = stack.enter_context(Limiter(url, policies(UNITS)))
        works: dict[str, Callable[[], None]] = {}
        for algorithm in ALGORITHMS:
            exact(few, algorithm)
            for name, work in (("one", one_by_one), ("in bulk", in_bulk)):
                for keep_free in (0, 1):
                    works[f"{algorithm}, {name}, {keep_free}"] = partial(work, limiter, algorithm, keep_free)
        for work in works.values():
            work()
        [best] = best_by_clocks(works, rounds, [clock])
    for name in [name.removesuffix(", 1") for name in works if name.endswith(", 1")]:
        report.add(f"{kind}, {name}: keep_free over none", best[f"{name}, 1"] / best[f"{name}, 0"], "x", at_most=1.1)


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, rounds=20, kinds="memory,lmdb,redis,valkey")
    report = Report("keep_free over the same attempt without, one limit")
    for kind in options.kinds.split(","):
        compared(report, kind, options.rounds)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
