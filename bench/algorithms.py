"""What each algorithm costs, keeps and errs by: the table of docs/explanation/algorithms.md.

    cost     us a decision of one unit, two limits, 1000 subjects in turn, every one allowed; memory, lmdb, a server
    bytes    of a subject that used a quota of 1000 an hour, evenly, on a server (keys of its own)
    error    on the access log in ../shared/data, in order of time, each address limited to 50 a day (in buckets of a
             minute), and to 10 in 45 seconds: against the exact log of what the algorithm itself let in, the most that
             one window held above the quota, the most units that were left when it refused, and how often some were

Bytes and errors are the same in every run. Where the log is not there its columns are left out.
"""

from __future__ import annotations

import gzip
import re
import tempfile
from bisect import bisect_right
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _harness import Report, arguments, best_interleaved, check
from _servers import single
from limits import parse
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter

from capline import Limiter, ManualClock, Policy

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = Path(__file__).resolve().parents[2] / "shared" / "data" / "access.log.gz"
SUBJECTS = [f"user:{number}" for number in range(1000)]
MINUTE_US = 60_000_000
KINDS: dict[str, dict[str, Any]] = {
    "sliding_log": {},
    "bucketed": {"algorithm": "bucketed"},
    "sliding_counter": {"algorithm": "sliding_counter"},
    "fixed_window": {"algorithm": "fixed_window"},
    "gcra": {"algorithm": "gcra"},
    "sliding_log, count_denied": {"count_denied": True},
    "sliding_log, calendar-day": {},
}
ERRING = (("50/day", 50, 1440 * MINUTE_US, "1min"), ("10/45s", 10, MINUTE_US * 3 // 4, None))


def limits_of(kind: str) -> list[str]:
    """Two limits, one of them by the calendar where that is what is measured."""
    return ["1000000/minute", "3000000/calendar-day" if kind.endswith("day") else "3000000/day"]


def timed(report: Report, rounds: int) -> None:
    """Microseconds a decision, on each store."""
    with tempfile.TemporaryDirectory() as directory, single("redis") as server:
        for store, url in (("memory", "memory://"), ("lmdb", f"lmdb://{directory}/store"), ("redis", server.url)):
            policies = [Policy(f"p{number}", limits_of(kind), **KINDS[kind]) for number, kind in enumerate(KINDS)]
            with Limiter(url, policies) as limiter:

                def work(name: str, limiter: Limiter = limiter) -> Callable[[], None]:
                    def ask() -> None:
                        check(all(limiter.decide(name, subject) for subject in SUBJECTS), name)

                    return ask

                best = best_interleaved({kind: work(f"p{i}") for i, kind in enumerate(KINDS)}, rounds)
            for kind, seconds in best.items():
                report.add(f"{store}: {kind}", seconds / len(SUBJECTS) * 1e6, "us a decision")
            for kind in [*best][1:]:
                report.add(f"{store}: {kind} over sliding_log", best[kind] / best["sliding_log"], "x")


def weighed(report: Report) -> None:
    """Bytes a subject."""
    with single("redis") as server:
        for number, (kind, options) in enumerate(KINDS.items()):
            limit = "1000/calendar-day" if kind.endswith("day") else "1000/hour"
            clock = ManualClock(1_700_000_000_000_000)
            with Limiter(server.url, [Policy("p", [limit], **options)], clock=clock, namespace=f"n{number}") as limiter:
                for _ in range(1000):
                    check(bool(limiter.decide("p", "user:42")), kind)
                    clock.advance_us(3_500_000)
            keys = server.command("KEYS", f"n{number}:*")
            report.add(f"{kind}: 1000 hits", sum(server.command("MEMORY", "USAGE", key) for key in keys), "bytes")


def unit_hits(report: Report) -> None:
    """Bytes a hit of a long log of single units in steady use, with 1,000 hits in the window: the most at any time.

    In the present form, of which nothing is wanted, an entry has 14 bytes, in the next 5. A string that grows doubles,
    and hits that left wait for a trim.
    """
    for kind in ("present", "next"):
        clock, most = ManualClock(1_700_000_000_000_000), 0
        with single("redis") as server:
            with Limiter(f"{server.url}?forms={kind}", [Policy("p", ["1000/hour"])], clock=clock) as limiter:
                for number in range(4000):
                    check(bool(limiter.decide("p", "user:42")), kind)
                    clock.advance_us(3_600_000)
                    if number >= 1000 and number % 8 == 0:
                        [key] = server.command("KEYS", "*")
                        most = max(most, server.command("MEMORY", "USAGE", key))
            strategy, item = MovingWindowRateLimiter(RedisStorage(f"redis://{server.address}")), parse("1000/day")
            check(all(strategy.hit(item, "user:42") for _ in range(1000)), "limits")
            [theirs] = [key for key in server.command("KEYS", "*") if b"p:" not in key]
            peers = {"limits": server.command("MEMORY", "USAGE", theirs) / 1000}
        row, at_most = f"sliding_log, forms={kind}: a hit of 1000", 11 if kind == "next" else None
        report.add(row, most / 1000, "bytes", at_most, peers=peers)


def requests() -> list[tuple[int, str]]:
    """(microseconds, address) of each request, in order of time."""
    form = re.compile(r"(\S+) \S+ \S+ \[([^\]]+)\]")
    found: list[tuple[int, str]] = []
    with gzip.open(LOG, "rt", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            match = form.match(line)
            if match:
                at = datetime.strptime(match[2], "%d/%b/%Y:%H:%M:%S %z")
                found.append((int(at.timestamp()) * 1_000_000, match[1]))
    return sorted(found)


def erring(report: Report) -> None:
    """The most above the quota, and the most left at a refusal."""
    stream = requests()
    for limit, quota, window_us, granularity in ERRING:
        for kind, options in [*KINDS.items()][:5]:
            finer: dict[str, Any] = {"granularity": granularity} if kind == "bucketed" else {}
            clock = ManualClock(stream[0][0])
            let_in: defaultdict[str, list[int]] = defaultdict(list)
            over = left = refused = undue = 0
            with Limiter("memory://", [Policy("p", [limit], **options, **finer)], clock=clock) as limiter:
                for at_us, address in stream:
                    clock.advance_us(at_us - clock.now_us())
                    own = let_in[address]
                    inside = len(own) - bisect_right(own, at_us - window_us)
                    if limiter.decide("p", address):
                        own.append(at_us)
                        over = max(over, inside + 1 - quota)
                    else:
                        refused += 1
                        undue += inside < quota
                        left = max(left, quota - inside)
            check(kind != "sliding_log" or (over <= 0 and left == 0), "the exact log errs")
            check(kind != "bucketed" or over <= 0, "bucketed let in too many")
            report.add(f"{limit}, {kind}: refused of {len(stream):,}", refused, "requests")
            report.add(f"{limit}, {kind}: most above the quota", max(0, over), "requests")
            report.add(f"{limit}, {kind}: most left when refused", left, "requests")
            report.add(f"{limit}, {kind}: refused with some left", undue, "requests")


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, rounds=20)
    report = Report("The algorithms side by side")
    timed(report, options.rounds)
    weighed(report)
    unit_hits(report)
    if LOG.exists():
        erring(report)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
