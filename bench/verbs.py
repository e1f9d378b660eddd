"""What the other verbs cost against one `decide` on the same server: `schedule`, three subjects in one, an id.

Loopback, one connection, one after the other, two limits, every attempt allowed; the parties take turns. Round trips
are counted by the server: its calls of EVALSHA in a round, one for each attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _harness import Report, arguments, best_interleaved, check
from _servers import KINDS, single

from capline import Attempt, Limiter, Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from _servers import Server

SUBJECTS = [f"user:{number}" for number in range(1000)]
PROVIDERS = [f"provider:{number}" for number in range(20)] * (len(SUBJECTS) // 20)
WAITING = 200
"""Slots taken at each provider before it is timed: more than a log has that is read whole."""
LIMITS = ["100000/minute", "1000000/day"]
USERS = 5000
PATIENT = "?deadline=5s"
COMPACT_BYTES = 160
"""Of `hash-max-listpack-value`, where hits have ids: what docs/reference/stores.md recommends."""


def calls(server: Server) -> int:
    """How many scripts the server ran so far."""
    line = server.info("commandstats").get("cmdstat_evalsha", "calls=0,")
    return int(line.split("calls=")[1].split(",")[0])


def slots(limiter: Limiter) -> dict[str, Callable[[], None]]:
    """A slot that is free now, one behind a slot far off, and one behind many."""
    check(all(limiter.schedule("queue", subject, not_before=600) for subject in SUBJECTS), "a slot in ten minutes")
    check(all(limiter.schedule("crowd", provider) for provider in set(PROVIDERS) for _ in range(WAITING)), "a crowd")

    def free() -> None:
        check(all(limiter.schedule("schedule", subject) for subject in SUBJECTS), "schedule")

    def behind() -> None:
        check(all(limiter.schedule("queue", subject).wait > 0 for subject in SUBJECTS), "a slot behind another")

    def behind_many() -> None:
        check(all(limiter.schedule("crowd", provider).wait > 0 for provider in PROVIDERS), "a slot behind many")

    return {"schedule": free, "schedule, behind another": behind, "schedule, behind 100 and more": behind_many}


def timed(report: Report, kind: str, server: Server, rounds: int) -> None:
    """Each verb over `decide`."""
    names = ("decide", "schedule", "queue", "id", "joint", "campaign", "tenant")
    policies = [*(Policy(name, LIMITS) for name in names), Policy("crowd", ["100/10s", "1000000/day"])]
    with Limiter(server.url + PATIENT, policies) as limiter:
        number = 0

        def decide() -> None:
            check(all(limiter.decide("decide", subject) for subject in SUBJECTS), "decide")

        def with_id() -> None:
            nonlocal number
            number += 1
            check(all(limiter.decide("id", subject, id=f"message:{number}") for subject in SUBJECTS), "id")

        def joint() -> None:
            for subject in SUBJECTS:
                parts = [Attempt("joint", subject), Attempt("campaign", "spring"), Attempt("tenant", "acme")]
                check(limiter.decide_all(parts).allowed, "three subjects")

        works = {
            "decide": decide,
            **slots(limiter),
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
    targets = {name: 1.6 if name.startswith("decide_all") else 1.1 for name in best if name != "decide with an id"}
    for name in [*best][1:]:
        report.add(f"{kind}: {name} over decide", best[name] / best["decide"], "x", at_most=targets.get(name))


def weighed(report: Report, kind: str, server: Server) -> None:
    """Bytes that an id adds to a hit, where each user has ten, and where users have from one to forty.

    A value grows by the steps of the server's allocator: with one number of hits an id costs what the step makes of it.
    A bucket stays compact while no log in it is longer than `hash-max-listpack-value`: 64 bytes by default.
    """
    cases = (
        ("subject", "subject", 64),
        ("bucket", "bucket", 64),
        ("bucket", f"bucket, listpacks to {COMPACT_BYTES} bytes", COMPACT_BYTES),
    )
    for layout, shown, compact_bytes in cases:
        server.command("CONFIG", "SET", "hash-max-listpack-value", compact_bytes)
        policies = [Policy(name, ["40/day", "50/week"], layout=layout) for name in ("plain", "named")]
        for label, own in (("10 hits", [10] * USERS), ("1 to 40 hits", [1 + user % 40 for user in range(USERS)])):
            namespace = f"{layout}{compact_bytes}{label[:2].strip()}"
            with Limiter(server.url + PATIENT, policies, namespace=namespace) as limiter:
                plain, named = (filled(limiter, server, policy.name, own) for policy in policies)
            report.add(f"{kind}, {shown}: {label} a user", plain / USERS, "bytes a user")
            report.add(f"{kind}, {shown}: {label} a user, with ids", named / USERS, "bytes a user")
            of_an_id = (named - plain) / sum(own)
            report.add(f"{kind}, {shown}: an id, {label} a user", of_an_id, "bytes a hit", at_most=14)


def filled(limiter: Limiter, server: Server, policy: str, own: list[int]) -> int:
    """The bytes that the hits of all users take, of whom each has so many."""
    before = int(server.info("memory")["used_memory_dataset"])
    for hit in range(max(own)):
        names = [f"{user}:{hit}" if policy == "named" else None for user in range(USERS)]
        asked = [Attempt(policy, user, id=names[user]) for user in range(USERS) if hit < own[user]]
        check(all(limiter.decide_batch(asked)), "every attempt is allowed")
    return int(server.info("memory")["used_memory_dataset"]) - before


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
