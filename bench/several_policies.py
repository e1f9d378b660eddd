"""Three policies at once in bulk over one, on each store: 10,000 subjects, all allowed, then all refused.

The parties take turns in one run. First both are asked until they refuse: of quotas of 3, 2 and 4 all three together
allow 2, and name the one that binds. Times are the processor's, of this process and of the server together.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from _harness import Report, arguments, best_by_clocks, check, processor_clock
from _servers import single
from paths import UNITS

from capline import Limiter, Policy
from capline.policy.joint import JointPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = list(range(10_000))
QUOTAS = {"a": 3, "b": 2, "c": 4}


def policies(layout: str, **quotas: int) -> tuple[list[Policy], str]:
    """One of each quota, and the name of all of them as one."""
    members = [
        Policy(name, [f"{quota}/day", f"{2 * quota}/week"], layout=layout, population=10_000)
        for name, quota in quotas.items()
    ]
    joint = JointPolicy(members)
    return [*members, joint], joint.name


def exact(url: str, layout: str) -> None:
    """All of them allow what the least does, once however often it is asked under a receipt."""
    few, all_of_them = policies(layout, **QUOTAS)
    with Limiter(url, few, namespace=f"few-{layout}") as limiter:
        for turn in range(3):
            for _ in range(2):
                answers = limiter.decide_many(all_of_them, ROWS[:100], receipt=str(turn))
                check(answers.allowed.tolist() == [turn < min(QUOTAS.values())] * 100, f"{layout}: turn {turn}")
                check({str(answer.limit) for answer in answers} == {"b: 2/day"}, f"{layout}: the one that binds")
        left = [limiter.peek_many(name, ROWS[:1]).remaining.tolist() for name in QUOTAS]
        check(left == [[0], [0], [1]], f"{layout}: each log has two hits")


def asked(limiter: Limiter, name: str, numbers: count[int], *, full: bool) -> None:
    """A batch, under a receipt."""
    answers = limiter.decide_many(name, ROWS, receipt=f"{name} {next(numbers)}")
    check(not answers.allowed.any() if full else bool(answers.allowed.all()), f"{name}: all are allowed, or none")


def compared(report: Report, kind: str, rounds: int) -> None:
    """Each layout on this store."""
    with ExitStack() as stack:
        clock, url, layouts = time.process_time, "memory://", ["subject"]
        if kind == "lmdb":
            url = f"lmdb://{stack.enter_context(tempfile.TemporaryDirectory())}/store"
        elif kind != "memory":
            server = stack.enter_context(single(kind))
            clock, url, layouts = processor_clock(server.pid), f"{server.url}?deadline=10s", ["subject", "bucket"]
        for layout in layouts:
            exact(url, layout)
            for quota, what in ((UNITS, "allowed"), (1, "refused")):
                many, all_of_them = policies(layout, **dict.fromkeys(QUOTAS, quota))
                names = [f"{number}-{layout}-{what}" for number in "13"]
                limiters = [stack.enter_context(Limiter(url, many, namespace=name)) for name in names]
                works: dict[str, Callable[[], object]] = {}
                for limiter, name in zip(limiters, ("a", all_of_them), strict=True):
                    asked(limiter, name, count(-1), full=False)
                    works[name] = partial(asked, limiter, name, count(), full=what == "refused")
                [best] = best_by_clocks(works, rounds, [clock])
                ratio = best[all_of_them] / best["a"]
                report.add(f"{kind}, by {layout}, all {what}: three policies over one", ratio, "x", at_most=4.5)


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, rounds=20, kinds="memory,lmdb,redis,valkey")
    report = Report("Three policies at once in bulk over one")
    for kind in options.kinds.split(","):
        compared(report, kind, options.rounds)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
