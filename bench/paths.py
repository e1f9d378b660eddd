"""One limit in memory, each algorithm and verb beside the peers that do the same work; on lmdb, each over one unit.

1,000 subjects in turn, one process, every attempt allowed; the parties take turns in one run. First each is asked until
it refuses: a quota of 3 is 3. A peer says yes or no; `throttled-py` and capline also say what is left and when more is.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from typing import TYPE_CHECKING

from _harness import Report, arguments, best_interleaved, check
from peers import attempts

from capline import AsyncLimiter, Limiter, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from peers import Ask

SUBJECTS = [f"user:{number}" for number in range(1000)]
ALGORITHMS = ("sliding_log", "bucketed", "fixed_window", "sliding_counter", "gcra")
UNITS, SMALL = 10**9, 3
"""The quota of a day where nothing is refused, and where the fourth unit is."""
THREADS = 8


def policies(quota: int) -> list[Policy]:
    """One for each algorithm, of its name."""
    return [Policy(name, [f"{quota}/day"], algorithm=name) for name in ALGORITHMS]  # pyright: ignore[reportArgumentType] - a name of each


def verbs(limiter: Limiter, algorithm: str) -> dict[str, Ask]:
    """What is timed of capline under an algorithm."""
    number = iter(range(UNITS))

    def acquire(subject: str) -> bool:
        with limiter.acquire(algorithm, subject) as slot:
            return slot.allowed

    found: dict[str, Ask] = {
        "one unit": lambda subject: limiter.decide(algorithm, subject).allowed,
        "cost 2": lambda subject: limiter.decide(algorithm, subject, 2).allowed,
        "peek": lambda subject: limiter.peek(algorithm, subject).allowed,
    }
    if algorithm == "sliding_log":
        found["with an id"] = lambda subject: limiter.decide(algorithm, subject, id=str(next(number))).allowed
        found["schedule"] = lambda subject: limiter.schedule(algorithm, subject).allowed
        found["acquire"] = acquire
    return found


def asking(name: str, ask: Ask) -> Callable[[], None]:
    """A round: every subject once, and every answer yes. Each row has subjects, and so logs, of its own."""
    subjects = [f"{name}:{subject}" for subject in SUBJECTS]
    return lambda: check(all(map(ask, subjects)), name)


def exact(name: str, ask: Ask) -> None:
    """A quota of 3 is 3."""
    check([bool(ask("one")) for _ in range(SMALL + 1)] == [True] * SMALL + [False], f"{name}: a quota of {SMALL}")


def in_memory(report: Report, rounds: int) -> None:
    """Each algorithm beside its peers."""
    with Limiter("memory://", policies(SMALL)) as few, Limiter("memory://", policies(UNITS)) as limiter:
        for algorithm in ALGORITHMS:
            exact(f"capline, {algorithm}", verbs(few, algorithm)["one unit"])
            for name, ask in attempts(algorithm, SMALL).items():
                if not name.endswith("peek"):
                    exact(f"{name}, {algorithm}", ask(1))
            works = {f"{algorithm}: {verb}": ask for verb, ask in verbs(limiter, algorithm).items()}
            for name, ask in attempts(algorithm, UNITS).items():
                costs = {"": 1} if name.endswith("peek") else {", one unit": 1, ", cost 2": 2}
                works |= {f"{algorithm}: {name}{shown}": ask(cost) for shown, cost in costs.items()}
            best = timed(report, "memory", works, rounds)
            for verb in ("one unit", "cost 2", "peek"):
                beside = [us for name, us in best.items() if name.endswith(f", {verb}")]
                if beside:
                    ahead = min(beside) / best[f"{algorithm}: {verb}"]
                    report.add(f"memory, {algorithm}: {verb}, the fastest peer over capline", ahead, "x", at_least=1)


def on_lmdb(report: Report, rounds: int) -> None:
    """Each path over one unit of the default algorithm."""
    with tempfile.TemporaryDirectory() as folder, Limiter(f"lmdb://{folder}/store", policies(UNITS)) as limiter:
        for algorithm in ALGORITHMS:
            works = {"one unit": verbs(limiter, "sliding_log")["one unit"]}
            works |= {f"{algorithm}: {verb}": ask for verb, ask in verbs(limiter, algorithm).items()}
            best = timed(report, "lmdb", works, rounds)
            for name in [*best][1:]:
                report.add(f"lmdb, {name} over one unit", best[name] / best["one unit"], "x", at_most=1.6)


def timed(report: Report, store: str, works: Mapping[str, Ask], rounds: int) -> dict[str, float]:
    """Microseconds each."""
    best = best_interleaved({name: asking(name, ask) for name, ask in works.items()}, rounds)
    us = {name: seconds / len(SUBJECTS) * 1e6 for name, seconds in best.items()}
    for name, figure in us.items():
        report.add(f"{store}, {name}", figure, "us")
    return us


def awaited(report: Report, rounds: int) -> None:
    """`AsyncLimiter.acquire`."""

    async def work() -> None:
        async with AsyncLimiter("memory://", policies(UNITS)) as limiter:
            await limiter.decide("sliding_log", "warm up")
            for subject in SUBJECTS:
                async with limiter.acquire("sliding_log", subject) as slot:
                    check(slot.allowed, "an awaited slot")

    best = best_interleaved({"acquire": lambda: asyncio.run(work())}, rounds)
    report.add("memory, acquire, awaited, on new subjects", best["acquire"] / len(SUBJECTS) * 1e6, "us")


def many(report: Report, rounds: int) -> None:
    """A row of `decide_many` against a loop of `decide`."""
    with Limiter("memory://", policies(UNITS)) as limiter:
        rows = SUBJECTS * 10
        works: dict[str, Callable[[], None]] = {
            "decide_many": lambda: check(bool(limiter.decide_many("sliding_log", rows).allowed.all()), "decide_many"),
            "a loop of decide": lambda: check(all(limiter.decide("sliding_log", one) for one in rows), "decide"),
        }
        for name, seconds in best_interleaved(works, rounds).items():
            report.add(f"memory, a row of {name}", seconds / len(rows) * 1e6, "us")


def threads(report: Report, rounds: int) -> None:
    """Eight threads on one store, each asking for every subject, or for one, so often."""
    for shown, subjects in (("1,000 subjects", SUBJECTS * 10), ("one subject", ["one"] * 10_000)):
        with Limiter("memory://", policies(UNITS)) as limiter:

            def each(subjects: list[str] = subjects, limiter: Limiter = limiter) -> None:
                check(all(limiter.decide("sliding_log", subject) for subject in subjects), "a thread")

            def together(each: Callable[[], None] = each) -> None:
                workers = [threading.Thread(target=each) for _ in range(THREADS)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()

            best = best_interleaved({"one thread": each, f"{THREADS} threads": together}, rounds)
            counted = limiter.usage("sliding_log", subjects[0])[0].used
        check(counted == rounds * (THREADS + 1) * subjects.count(subjects[0]), "a hit of a thread is missing")
        for name, times in (("one thread", 1), (f"{THREADS} threads", THREADS)):
            report.add(f"memory, {name}, {shown}", len(subjects) * times / best[name], "decisions/s")


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, rounds=20)
    report = Report("Every path beside its peers, one limit, 1,000 subjects in turn")
    in_memory(report, options.rounds)
    on_lmdb(report, options.rounds)
    awaited(report, options.rounds)
    many(report, options.rounds)
    threads(report, min(options.rounds, 5))
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
