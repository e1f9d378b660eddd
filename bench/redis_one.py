"""One decision on a server: against redis-py's plain SET, against other limiters, and a long log against a short one.

Loopback, one connection, one attempt after the other, two limits, every attempt allowed; the parties take turns. The
others are used as their own pages show: `limits` is asked for each limit in turn, `throttled-py` too (its sliding
window is an estimate from two counters), `pyrate-limiter` has a bucket for each subject and takes both limits in one
script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import limits
import pyrate_limiter
import redis
import throttled
from _harness import Report, arguments, best_interleaved, check
from _servers import KINDS, single
from limits.storage import RedisStorage
from limits.strategies import MovingWindowRateLimiter
from peers import by_pyrate

from capline import Limiter, ManualClock, Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from _servers import Server

SUBJECTS = [f"user:{number}" for number in range(1000)]
MINUTE, DAY = 1000, 10_000
STEP_US = 1_000_000
"""Between two hits of the long and the short log: a second, so that no key expires while others have their turn."""


def plain_set(server: Server) -> Callable[[str], bool]:
    """redis-py's SET."""
    client: Any = redis.Redis(port=server.port)
    return lambda subject: client.set(subject, "x" * 16)


def moving_window(server: Server) -> Callable[[str], bool]:
    """`limits`, both limits in turn."""
    strategy = MovingWindowRateLimiter(RedisStorage(f"redis://{server.address}"))
    minute, day = limits.parse(f"{MINUTE}/minute"), limits.parse(f"{DAY}/day")
    return lambda subject: strategy.hit(minute, subject) and strategy.hit(day, subject)


def pyrate(server: Server) -> Callable[[str], bool]:
    """`pyrate-limiter`, both limits in one script."""
    rates = [
        pyrate_limiter.Rate(MINUTE, pyrate_limiter.Duration.MINUTE),
        pyrate_limiter.Rate(DAY, pyrate_limiter.Duration.DAY),
    ]
    ask = by_pyrate.attempt(rates, server.address)
    return lambda subject: bool(ask(subject, 1))


def throttled_twice(server: Server) -> Callable[[str], bool]:
    """`throttled-py`, both limits in turn."""
    store = throttled.RedisStore(server=f"redis://{server.address}/0")
    minute = throttled.Throttled(using="sliding_window", quota=throttled.per_min(MINUTE), store=store)
    day = throttled.Throttled(using="sliding_window", quota=throttled.per_day(DAY), store=store)
    return lambda subject: not minute.limit(subject).limited and not day.limit(subject).limited


def against_others(report: Report, kind: str, rounds: int) -> None:
    """Microseconds a decision of each party, on one server."""
    with single(kind) as server, Limiter(server.url, [Policy("p", [f"{MINUTE}/minute", f"{DAY}/day"])]) as limiter:
        decide = limiter.decide
        parties: dict[str, Callable[[str], Any]] = {
            "capline": lambda subject: decide("p", subject).allowed,
            "redis-py's SET": plain_set(server),
            "limits, moving window": moving_window(server),
            "pyrate-limiter": pyrate(server),
            "throttled-py": throttled_twice(server),
        }
        best = best_interleaved({name: asking(name, ask) for name, ask in parties.items()}, rounds)
    for name, seconds in best.items():
        report.add(f"{kind}: {name}", seconds / len(SUBJECTS) * 1e6, "us a decision")
    mine = best.pop("capline")
    report.add(f"{kind}: capline over redis-py's SET", mine / best.pop("redis-py's SET"), "x", at_most=0.9)
    for name, seconds in best.items():
        report.add(f"{kind}: {name} over capline", seconds / mine, "x", at_least=1)


def asking(name: str, ask: Callable[[str], Any]) -> Callable[[], None]:
    """A round: every subject once, and every answer yes."""

    def work() -> None:
        allowed = sum(1 for subject in SUBJECTS if ask(subject))
        check(allowed == len(SUBJECTS), f"{name} allowed {allowed} of {len(SUBJECTS)}")

    return work


def flat(report: Report, kind: str, hits: int, decisions: int) -> None:
    """A decision against a full log of many hits over one against 10, each log in its steady state (see flat.py)."""
    sizes = {f"{quota:,} hits": quota for quota in (10, hits)}
    windows = {size: (quota // 2 * STEP_US, quota * STEP_US) for size, quota in sizes.items()}
    clocks = {size: ManualClock(1_700_000_000 * STEP_US) for size in sizes}
    with single(kind) as server:
        limiters = {
            size: Limiter(
                server.url,
                [Policy(f"p{quota}", [f"{window // STEP_US}/{window}us" for window in windows[size]])],
                clock=clocks[size],
            )
            for size, quota in sizes.items()
        }

        def steady(size: str, times: int, *, expected: bool) -> Callable[[], None]:
            """A round; where the attempts are allowed, the clock goes on a step with each."""
            name, decide, advance = f"p{sizes[size]}", limiters[size].decide, clocks[size].advance_us

            def work() -> None:
                for _ in range(times):
                    check(decide(name, "one").allowed is expected, f"{kind}, {size}: not allowed={expected}")
                    if expected:
                        advance(STEP_US)

            return work

        for size, quota in sizes.items():
            steady(size, quota, expected=True)()
        for verdict, expected in (("allowed", True), ("refused", False)):
            best = best_interleaved({size: steady(size, decisions, expected=expected) for size in sizes})
            for size, seconds in best.items():
                report.add(f"{kind}: {verdict}, {size}", seconds / decisions * 1e6, "us a decision")
            short, long = best.values()
            report.add(f"{kind}: {verdict}, long over short", long / short, "x", at_most=1.5)
            for clock in clocks.values():
                clock.advance_us(-1)
        for limiter in limiters.values():
            limiter.close()


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, rounds=20, hits=100_000, decisions=2_000)
    report = Report("One decision on a server, two limits, loopback")
    for kind in KINDS:
        against_others(report, kind, options.rounds)
        flat(report, kind, options.hits, options.decisions)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
