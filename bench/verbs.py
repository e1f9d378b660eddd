"""What the other verbs cost against one `decide` on the same server: `schedule`, three subjects in one, an id.

Loopback, one connection, one after the other, two limits, every attempt allowed; the parties take turns. Round trips
are counted by the server: its calls of EVALSHA in a round, one for each attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _harness import Report, arguments, best_interleaved, check

from capline import Attempt, Limiter, Policy
from capline.testing.servers import KINDS, single

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.testing.servers import Server

SUBJECTS = [f"user:{number}" for number in range(1000)]
LIMITS = ["100000/minute", "1000000/day"]
ID_HITS = 10


def calls(server: Server) -> int:
    """How many scripts the server ran so far."""
    line = server.info("commandstats").get("cmdstat_evalsha", "calls=0,")
    return int(line.split("calls=")[1].split(",")[0])


def timed(report: Report, kind: str, server: Server, rounds: int) -> None:
    """Each verb over `decide`."""
    names = ("decide", "schedule", "id", "joint", "campaign", "tenant")
    with Limiter(server.url, [Policy(name, LIMITS) for name in names]) as limiter:
        number = 0

        def decide() -> None:
            check(all(limiter.decide("decide", subject) for subject in SUBJECTS), "decide")

        def schedule() -> None:
            check(all(limiter.schedule("schedule", subject) for subject in SUBJECTS), "schedule")

        def with_id() -> None:
            nonlocal number
            number += 1
            check(all(limiter.decide("id", subject, id=f"message:{number}") for subject in SUBJECTS), "id")

        def joint() -> None:
            for subject in SUBJECTS:
                parts = [Attempt("joint", subject), Attempt("campaign", "spring"), Attempt("tenant", "acme")]
                check(limiter.decide_all(parts).allowed, "three subjects")

        works: dict[str, Callable[[], None]] = {
            "decide": decide,
            "schedule": schedule,
            "decide with an id": with_id,
            "decide_all over 3 subjects": joint,
        }
        for name, work in works.items():
            work()
            before = calls(server)
            work()
            check(calls(server) - before == len(SUBJECTS), f"{name} is not one round trip")
        best = best_interleaved(works, rounds)
    for name, seconds in best.items():
        report.add(f"{kind}: {name}", seconds / len(SUBJECTS) * 1e6, "us")
    targets = {"schedule": 1.1, "decide_all over 3 subjects": 1.6}
    for name in [*best][1:]:
        report.add(f"{kind}: {name} over decide", best[name] / best["decide"], "x", at_most=targets.get(name))


def weighed(report: Report, kind: str, server: Server) -> None:
    """Bytes that an id adds to a hit."""
    for layout in ("subject", "bucket"):
        policies = [Policy(name, ["10/day", "50/week"], layout=layout) for name in ("plain", "named")]
        before = int(server.info("memory")["used_memory_dataset"])
        sizes: list[float] = []
        with Limiter(server.url, policies, namespace=layout) as limiter:
            for policy in policies:
                for hit in range(ID_HITS):
                    for subject in range(5000):
                        limiter_id = f"{subject}:{hit}" if policy.name == "named" else None
                        if limiter_id is None:
                            continue
                        check(bool(limiter.decide("named", subject, id=limiter_id)), "id")
                    if policy.name == "plain":
                        check(bool(limiter.decide_many("plain", range(5000)).allowed.all()), "plain")
                after = int(server.info("memory")["used_memory_dataset"])
                sizes.append((after - before) / 5000)
                before = after
        report.add(f"{kind}, {layout}: {ID_HITS} hits", sizes[0], "bytes a user")
        report.add(f"{kind}, {layout}: {ID_HITS} hits with ids", sizes[1], "bytes a user")
        report.add(f"{kind}, {layout}: an id", (sizes[1] - sizes[0]) / ID_HITS, "bytes a hit", at_most=10)


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, rounds=20)
    report = Report("The other verbs on a server, two limits, loopback")
    for kind in KINDS:
        with single(kind) as server:
            timed(report, kind, server, options.rounds)
            weighed(report, kind, server)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
