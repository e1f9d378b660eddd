"""One limit in memory, each algorithm and verb beside the peers that do the same work; on lmdb, each over one unit.

1,000 subjects in turn, one process, every attempt allowed; the parties take turns in one run. First each is asked until
it refuses: a quota of 3 is 3. A peer says yes or no; `throttled-py` and capline also say what is left and when more is.
Each row has logs of its own, as long as those of the others. A time is the processor's, of threads and processes that
of the clock on the wall; a unit is one of the default algorithm in the same run.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from _harness import Report, arguments, best_by_clocks, best_interleaved, check
from peers import attempts

from capline import AsyncLimiter, Attempt, Limiter, ManualClock, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.synchronize import Barrier

    from peers import Ask


SUBJECTS = [f"user:{number}" for number in range(1000)]
ALGORITHMS = ("sliding_log", "bucketed", "fixed_window", "sliding_counter", "gcra")
UNITS, SMALL = 10**9, 3
"""The quota of a day where nothing is refused, and where the fourth unit is."""
UNIT = "sliding_log: one unit"
THREADS, PROCESSES = 8, (1, 2, 4, 8)
WANTED_US = {
    "sliding_log": {"one unit": 1.3, "cost 2": 2.2, "peek": 1.8, "with an id": 3.5, "schedule": 2.2, "acquire": 3},
    "bucketed": {"one unit": 2.2, "cost 2": 2.2, "peek": 2.5},
    **{name: {"one unit": 2.5, "cost 2": 2.5, "peek": 2.5} for name in ALGORITHMS[2:]},
}
NOON_US = 1_700_049_600_000_000
SECOND_US = 1_000_000


RULE = "beside the floor it is what the row names: a zone's table, a second log, a record of what is pending"
TWICE = (
    "each log is looked up, judged and recorded as for one unit; a tenth of a unit are the Attempts, as much the Joint"
)
VERB = "the verb in general: a generator, the attempt checked, an Operation, then the store's own step"
BEGUN = "rows of numbers are three objects, which are made and entered; a tenth is the sweep of old ones"
BYTES = "a transaction with one put takes a third of one unit; columns of sums are read, judged and written beside it"
QUEUE = (
    "who waits for LMDB's lock is woken at each commit and mostly finds it taken again: two sleeps in five decisions"
)
HASH = "the floor is one unit, and OpenSSL's HMAC of the subject, as long again"
FLOOR = "a half is the floor: the call, the lock, the look-up, the clock and a Decision"


class Row(NamedTuple):
    """An attempt, how many units it may take, and why it takes more; `ready` runs before each round."""

    ask: Ask
    at_most: float
    ready: Callable[[], object] | None = None
    why: str = RULE


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


def asking(name: str, ask: Ask, ready: Callable[[], object] | None = None) -> Callable[[], None]:
    """A round: every subject once, and every answer yes. Each row has subjects, and so logs, of its own."""
    subjects = [f"{name}:{subject}" for subject in SUBJECTS]

    def work() -> None:
        if ready is not None:
            ready()
        check(all(map(ask, subjects)), name)

    return work


def first_hits(name: str, ask: Ask, rounds: int) -> Callable[[], None]:
    """A round: subjects that were never asked about."""
    turns = iter([[f"{name}:{turn}:{subject}" for subject in SUBJECTS] for turn in range(rounds)])
    return lambda: check(all(map(ask, next(turns))), name)


def exact(name: str, ask: Ask) -> None:
    """A quota of 3 is 3."""
    check([bool(ask("one")) for _ in range(SMALL + 1)] == [True] * SMALL + [False], f"{name}: a quota of {SMALL}")


def timed(works: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Microseconds each."""
    [best] = best_by_clocks(works, rounds, [time.process_time])
    return {name: seconds / len(SUBJECTS) * 1e6 for name, seconds in best.items()}


def in_memory(report: Report, rounds: int) -> None:
    """Each algorithm beside its peers."""
    with Limiter("memory://", policies(SMALL)) as few, Limiter("memory://", policies(UNITS)) as limiter:
        for algorithm in ALGORITHMS:
            exact(f"capline, {algorithm}", verbs(few, algorithm)["one unit"])
            for name, ask in attempts(algorithm, SMALL).items():
                if not name.endswith("peek"):
                    exact(f"{name}, {algorithm}", ask(1))
            own, found = verbs(limiter, algorithm), attempts(algorithm, UNITS)
            works = {f"{algorithm}: {verb}": asking(f"{algorithm}: {verb}", ask) for verb, ask in own.items()}
            works["first hits"] = first_hits(algorithm, own["one unit"], rounds)
            beside: dict[str, dict[str, str]] = {verb: {} for verb in own}
            for name, ask in found.items():
                peer, _, verb = name.partition(", ")
                for shown, cost in {verb: 1}.items() if verb else {"one unit": 1, "cost 2": 2}.items():
                    beside[shown][peer] = f"{algorithm}: {peer}, {shown}"
                    works[beside[shown][peer]] = asking(beside[shown][peer], ask(cost))
            us = timed(works, rounds)
            for verb in own:
                name, peers = f"{algorithm}: {verb}", {peer: us[row] for peer, row in beside[verb].items()}
                report.add(f"memory, {name}", us[name], "us", WANTED_US[algorithm][verb], None, peers, FLOOR)
            first = us["first hits"] / us[f"{algorithm}: one unit"]
            report.add(
                f"memory, {algorithm}: first hits of a subject over one unit", first, "x", at_most=1.3, why=BEGUN
            )


class Listener:
    """An observer that only counts."""

    heard = 0

    def decided(self, *_: object) -> None:
        """One more."""
        self.heard += 1

    decided_one = decided


def beside_the_usual(report: Report, rounds: int) -> None:
    """What is not rare for who uses it, in units."""
    clock, quota = ManualClock(NOON_US), f"{UNITS}/day"
    listener: Any = Listener()
    kinds = [
        *policies(UNITS),
        Policy("calendar", [f"{UNITS}/calendar-day"], zone="Asia/Kathmandu"),
        Policy("denied", [quota], count_denied=True),
        Policy("channels", [quota], channels={"push": [quota]}),
        Policy("gap", [quota, "gap 1us"]),
        Policy("quiet", [quota, "not between 01:00 and 05:00"], zone="UTC"),
        Policy("reserved", [quota], reservations=True),
        *(Policy(f"{name}-s", [f"{UNITS}/s"], algorithm=name) for name in ("fixed_window", "sliding_counter")),
        Policy("mixed", [quota]),
    ]
    with (
        Limiter("memory://", kinds) as limiter,
        Limiter("memory://", kinds, clock=clock) as still,
        Limiter("memory://", kinds, observers=[listener]) as heard,
        Limiter("memory://", kinds, deny_cache=1000) as caching,
        Limiter("memory://", kinds, subject_key=bytes(16)) as hashing,
    ):
        check(all(limiter.decide("mixed", f"on a log of costs:{subject}", 2) for subject in SUBJECTS), "costs")

        def deciding(policy: str, limiter: Limiter = limiter, channel: str | None = None) -> Ask:
            return lambda subject: limiter.decide(policy, subject, channel=channel).allowed

        def next_window() -> None:
            clock.advance_us(SECOND_US)

        def committed(subject: str) -> bool:
            taken = limiter.reserve("reserved", subject, ttl=60)
            return limiter.commit("reserved", subject, taken.hit or 0)

        def joint(subject: str) -> bool:
            return limiter.decide_all([Attempt("sliding_log", subject), Attempt("gap", subject)]).allowed

        def with_headers(subject: str) -> bool:
            decision = limiter.decide("sliding_log", subject)
            return bool(decision.headers("draft-11")) and decision.allowed

        rows = {
            "one unit": Row(deciding("sliding_log"), 1),
            "on a log of costs": Row(deciding("mixed"), 2),
            "a calendar day": Row(deciding("calendar", still), 3),
            "count_denied": Row(deciding("denied"), 3),
            "a channel": Row(deciding("channels", channel="push"), 3),
            "a gap": Row(deciding("gap"), 3),
            "quiet hours": Row(deciding("quiet", still), 3),
            "reservations, none pending": Row(deciding("reserved"), 3),
            "reserve and commit": Row(committed, 6),
            "fixed_window, first in a window": Row(deciding("fixed_window-s", still), 3, next_window),
            "sliding_counter, first in a window": Row(deciding("sliding_counter-s", still), 3, next_window),
            "decide and its headers": Row(with_headers, 3),
            "an observer": Row(deciding("sliding_log", heard), 3),
            "a deny cache": Row(deciding("sliding_log", caching), 3, why=VERB),
            "hashed keys": Row(deciding("sliding_log", hashing), 3, why=HASH),
            "decide_all of two": Row(joint, 2.2, why=TWICE),
        }
        us = timed({name: asking(name, row.ask, row.ready) for name, row in rows.items()}, rounds)
        check(listener.heard == rounds * len(SUBJECTS), "an event is missing")
    for name, row in [*rows.items()][1:]:
        report.add(f"memory, {name}", us[name] / us["one unit"], "units", at_most=row.at_most, why=row.why)


def on_lmdb(report: Report, rounds: int) -> None:
    """Each path over one unit of the default algorithm."""
    with tempfile.TemporaryDirectory() as folder, Limiter(f"lmdb://{folder}/store", policies(UNITS)) as limiter:
        asks = {f"{kind}: {verb}": ask for kind in ALGORITHMS for verb, ask in verbs(limiter, kind).items()}
        us = timed({name: asking(name, ask) for name, ask in asks.items()}, rounds)
    report.add(f"lmdb, {UNIT}", us[UNIT], "us")
    for name in [*us][1:]:
        asked = None if name.endswith(("id", "acquire")) else 1.6
        report.add(f"lmdb, {name} over one unit", us[name] / us[UNIT], "x", at_most=asked, why=BYTES)


def awaited(report: Report, rounds: int) -> None:
    """`AsyncLimiter.acquire`."""
    with asyncio.Runner() as runner:

        async def opened() -> AsyncLimiter:
            return AsyncLimiter("memory://", policies(UNITS))

        limiter = runner.run(opened())

        async def take() -> None:
            for subject in SUBJECTS:
                async with limiter.acquire("sliding_log", subject) as slot:
                    check(slot.allowed, "an awaited slot")

        us = timed({"acquire": lambda: runner.run(take())}, rounds)
        runner.run(limiter.close())
    report.add("memory, acquire, awaited", us["acquire"], "us", at_most=3)


def many(report: Report, rounds: int) -> None:
    """A row of `decide_many` against a loop of `decide`."""
    with Limiter("memory://", policies(UNITS)) as limiter:
        rows = SUBJECTS * 10
        works: dict[str, Callable[[], None]] = {
            "decide_many": lambda: check(bool(limiter.decide_many("sliding_log", rows).allowed.all()), "decide_many"),
            "a loop of decide": lambda: check(all(limiter.decide("sliding_log", one) for one in rows), "decide"),
        }
        us = {name: own / 10 for name, own in timed(works, rounds).items()}
    report.add("memory, a row of decide_many", us["decide_many"], "us", at_most=1)
    report.add("memory, a row of a loop of decide", us["a loop of decide"], "us")


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
        report.add(f"memory, one thread, {shown}", len(subjects) / best["one thread"], "decisions/s")
        rate = len(subjects) * THREADS / best[f"{THREADS} threads"]
        report.add(f"memory, {THREADS} threads, {shown}", rate, "decisions/s", at_least=500_000)


def one_process(url: str, number: int, rounds: int, gate: Barrier) -> tuple[float, float]:
    """When this process began and ended: every subject so often, each an attempt of its own."""
    subjects = [f"{number}:{subject}" for subject in SUBJECTS]
    with Limiter(url, policies(UNITS)) as limiter:
        gate.wait()
        began = time.monotonic()
        check(all(limiter.decide("sliding_log", one) for _ in range(rounds) for one in subjects), "a process")
        return began, time.monotonic()


def processes(report: Report, rounds: int) -> None:
    """Processes that share one lmdb store, each with subjects of its own."""
    fork = multiprocessing.get_context("fork")
    rates: dict[int, float] = {}
    for count in PROCESSES:
        with tempfile.TemporaryDirectory() as folder, fork.Manager() as manager, fork.Pool(count) as pool:
            url, gate = f"lmdb://{folder}/store", manager.Barrier(count)
            spans: Sequence[tuple[float, float]] = pool.starmap(
                one_process, [(url, number, rounds, gate) for number in range(count)], chunksize=1
            )
            with Limiter(url, policies(UNITS)) as limiter:
                used = [limiter.usage("sliding_log", f"{number}:{SUBJECTS[0]}")[0].used for number in range(count)]
        check(used == [rounds] * count, "a hit of a process is missing")
        took_s = max(ended for _, ended in spans) - min(began for began, _ in spans)
        rates[count] = count * rounds * len(SUBJECTS) / took_s
        report.add(f"lmdb, processes: {count}", rates[count], "decisions/s")
    for count in PROCESSES[1:]:
        wanted = 1 if count < 3 else None
        report.add(f"lmdb, processes: {count} over one", rates[count] / rates[1], "x", at_least=wanted, why=QUEUE)


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, rounds=20)
    report = Report("Every path beside its peers, one limit, 1,000 subjects in turn")
    in_memory(report, options.rounds)
    beside_the_usual(report, options.rounds)
    on_lmdb(report, options.rounds)
    awaited(report, options.rounds)
    many(report, options.rounds)
    threads(report, min(options.rounds, 5))
    processes(report, options.rounds)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
