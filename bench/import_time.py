"""How long `import capline` takes, beside an interpreter that does nothing and the parts that are loaded late.

Processor seconds of a whole fresh process, the best of several: a ratio says more than a time on a busy machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from _harness import Report, arguments, check

PROGRAMS = {
    "import capline": "import capline",
    "a decision in memory": (
        "from capline import Limiter, Policy\n"
        "assert Limiter('memory://', [Policy('p', ['3/day'])]).decide('p', 's').remaining == 2"
    ),
    "AsyncLimiter": "from capline import AsyncLimiter",
    "decide_many": (
        "from capline import Limiter, Policy\n"
        "assert Limiter('memory://', [Policy('p', ['3/day'])]).decide_many('p', ['s']).allowed.all()"
    ),
}


def processor_seconds(code: str, rounds: int) -> float:
    """Of one fresh interpreter that runs this, the least of so many."""
    found: list[float] = []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], check=False)  # noqa: S603 - the program above
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        check(done.returncode == 0, code)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, rounds=15)
    report = Report("Loading capline, processor time of a whole process")
    bare = processor_seconds("pass", options.rounds)
    report.add("python -c pass", bare * 1e3, "ms")
    for name, code in PROGRAMS.items():
        seconds = processor_seconds(code, options.rounds)
        report.add(name, seconds * 1e3, "ms", at_most=60 if name == "import capline" else None)
        report.add(f"{name}, over python -c pass", seconds / bare, "x")
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
